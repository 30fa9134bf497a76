"""Docstrings are plain text with formulas: what reStructuredText would misread is escaped."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")


def escaped(line: str) -> str:
    """A line whose bars |x| are bars, and no substitutions."""
    parts = _CODE.split(line)
    return "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


def escape_bars(app: Sphinx, what: str, name: str, object_: Any, options: Any, lines: list[str]) -> None:
    is_example = False
    for place, line in enumerate(lines):
        is_example = line.lstrip().startswith((">>>", "...")) or (is_example and bool(line.strip()))
        if not is_example:
            lines[place] = escaped(line)


def keep_properties_whole(
    app: Sphinx, what: str, name: str, object_: Any, options: Any, lines: list[str]
) -> None:
    """Napoleon would take `text: more` of a property for its type and description; a comment prevents it."""
    if what in ("property", "attribute", "data") and lines and ":" in lines[0]:
        lines[:0] = ["..", ""]


def skip_members_of_others(
    app: Sphinx, what: str, name: str, object_: Any, skip: bool, options: Any
) -> bool | None:
    """Whether a member is inherited from torch or scikit-learn, whose own pages describe it."""
    function = getattr(object_, "fget", None) or getattr(object_, "func", None) or object_
    module = getattr(function, "__module__", None)
    return True if module and module.split(".")[0] not in ("kdmkit", "builtins") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-process-docstring", keep_properties_whole, priority=400)  # before Napoleon
    app.connect("autodoc-skip-member", skip_members_of_others)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
