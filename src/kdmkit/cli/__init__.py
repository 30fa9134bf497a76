"""The `kdmkit` command. This module needs no extra; the commands need the extra `table`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

#: Commands of 0.2 that are in the laboratory now.
_MOVED = ("bench", "demo", "reproduce")


def main() -> None:
    """Runs the command, or says in one line why it cannot."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in _MOVED:
        _stop(f"kdmkit {command} is now kdmlab {command}: run `make setup` in a clone of the repository")
    if any(find_spec(name) is None for name in ("rich", "typer")):
        _stop("the command kdmkit needs the extra table: pip install 'kdmkit[table]'")
    from kdmkit.cli.commands import app

    app()


def _stop(message: str) -> None:
    print(message, file=sys.stderr)
    sys.exit(2)
