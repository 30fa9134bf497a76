"""Inventories of other projects, from the lists in `docs/inventories`: links without asking their servers.

The first line of a list is the project's address. Every other line is a name, its type and its page.
"""

from __future__ import annotations

import zlib
from pathlib import Path


def compiled(lines: list[str], project: str) -> bytes:
    """The list in Sphinx's format (version 2): a page `…$` ends with the name."""
    entries = []
    for line in lines:
        name, kind, page = line.split()
        entries.append(f"{name} {kind} 1 {page} -\n")
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    return (head + "# The remainder of this file is compressed using zlib.\n").encode() + zlib.compress(
        "".join(entries).encode()
    )


def mapping(lists: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """`intersphinx_mapping` of all lists; the compiled inventories go to `folder`."""
    found = {}
    for path in sorted(lists.glob("*.txt")):
        address, *lines = path.read_text(encoding="utf-8").split("\n")
        inventory = folder / f"{path.stem}.inv"
        inventory.write_bytes(compiled([line for line in lines if line], path.stem))
        found[path.stem] = (address, str(inventory))
    return found
