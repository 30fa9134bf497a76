"""`kdmkit explore`: a page in the browser to ask a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kdmkit._core.checks import bad_argument
from kdmkit.cli.printing import console, errors_in_one_line


def explore(
    model: Annotated[
        Path | None, typer.Argument(help="A saved KDMTable or KDMClassifier of images; none: two examples.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that answer, for many people at once.")
    ] = 1,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which others call this machine; may be repeated.")
    ] = None,
) -> None:
    """Opens a page to explore a model: hold some columns, see what the others become. Ctrl+C ends it.

    Example: kdmkit explore diamonds
    """
    with errors_in_one_line(ValueError, TypeError, OSError, ImportError):
        from kdmkit.explore import Server, example_models

        server = Server(
            example_models() if model is None else {model.stem: _saved(model)},
            host=host,
            port=port,
            allowed_hosts=allow_host or (),
            stop_on_failure=model is not None,
            workers=workers,
        )
        console.print(f"kdmkit explore: {server.url}", soft_wrap=True, highlight=False)
        if browser:
            server.open_browser()
        server.run()
        if server.error is not None:
            raise server.error


def _saved(path: Path) -> Any:
    """The model of a file, loaded while the page opens."""
    from kdmkit.explore.models import Entry

    if not path.exists():
        raise ValueError(bad_argument("model", "a file that kdmkit wrote", f"no file {path}"))
    return Entry(path.stem, partial(_load, path), path=str(path))


def _load(path: Path) -> Any:
    from kdmkit import load

    return load(path)
