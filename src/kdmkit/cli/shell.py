"""What all commands share: the application, their options, and errors in one line."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kdmkit._core.checks import bad_argument, check_instance

console = Console()
errors = Console(stderr=True)

STANDARD = "-"

Model = Annotated[Path, typer.Argument(help="A model that `kdmkit fit` wrote.")]
Estimator = Annotated[Path, typer.Argument(help="A model that `kdmkit fit` or `kdmkit.save` wrote.")]
Keep = Annotated[list[str] | None, typer.Option(help="A column to repeat; may be repeated.")]
Data = Annotated[str, typer.Argument(help="A CSV or Parquet file; - is CSV from standard input.")]
Output = Annotated[
    str, typer.Option("--output", "-o", help="A .csv or .parquet file; - is CSV to standard output.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, max=2**32 - 1, help="Seed; without one, draws differ every time.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# The library is imported by the commands that use it: --help needs nothing of it.
app = typer.Typer(
    help="Kernel density matrices: models of tables.",
    epilog="Exit codes: 0, done; 2, options, files or questions that cannot be used; 1, any other error.",
    no_args_is_help=True,
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        from kdmkit import __version__

        typer.echo(f"kdmkit {__version__}")
        raise typer.Exit
    return wanted


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
]


@app.callback()
def options(version: Version = False) -> None:
    """Kernel density matrices: models of tables."""


@contextmanager
def source(data: str) -> Iterator[Path]:
    """The file to read; standard input goes through a temporary file."""
    if data != STANDARD:
        yield Path(data)
        return
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        if not file.tell():
            raise ValueError(bad_argument("data", "CSV in standard input", "nothing"))
        yield Path(file.name)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Prints bad input without a traceback and exits with code 2; warnings take one line, too.

    If the reader of the output has gone (`| head`), the command ends silently.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except BrokenPipeError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, or the interpreter complains at its end
        raise typer.Exit(0) from error
    except (ValueError, TypeError, OSError, ImportError) as error:
        errors.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    errors.print(f"warning: {message}", markup=False, highlight=False, soft_wrap=True)


def load_table(model: Path) -> Any:
    from kdmkit import KDMTable, load

    return load(model, kind=KDMTable)


def load_estimator(model: Path) -> Any:
    from kdmkit import load
    from kdmkit.estimators.common import KDMEstimator

    loaded: Any = load(model)
    check_instance("model", loaded, KDMEstimator, "a saved estimator")
    return loaded
