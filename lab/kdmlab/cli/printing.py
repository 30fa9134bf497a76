"""How the commands print reports and errors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kdmlab.common import Report

console = Console()
errors = Console(stderr=True)


@contextmanager
def errors_in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """Prints bad options and bad data without a traceback and exits with code 2; warnings take one line."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except kinds as error:
        errors.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    errors.print(f"warning: {message}", markup=False, highlight=False, soft_wrap=True)


def show_report(make: Callable[[], Report]) -> None:
    """Prints the table of a report and the names of its files."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures go to files: no display is needed
    with errors_in_one_line(ValueError, OSError, ImportError):
        report = make()
    if report.header:
        table = Table(*report.header, title=report.title, title_justify="left")
        for row in report.rows:
            table.add_row(*row)
        console.print(table)
    for file in report.files:
        console.print(f"wrote {file}")
