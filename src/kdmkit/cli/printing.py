"""Where the commands print, and how they tell errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

console = Console()
errors = Console(stderr=True)


@contextmanager
def errors_in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """Bad options and bad data are told without a traceback, with exit code 2."""
    try:
        yield
    except kinds as error:
        errors.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
