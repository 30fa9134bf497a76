"""Commands: fit a file, ask the model, fill in, predict, score and draw rows, and explore it in a browser."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from kdmkit._core.checks import bad_argument, check_instance

console = Console()
errors = Console(stderr=True)

_STANDARD = "-"

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
# The kinds of columns; the help of a command imports no estimator.
_KINDS = "float, integer, count, duration, boolean, category, ordinal, date, time, constant, identifier, text"

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
def _source(data: str) -> Iterator[Path]:
    """The file to read; standard input goes through a temporary file."""
    if data != _STANDARD:
        yield Path(data)
        return
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        if not file.tell():
            raise ValueError(bad_argument("data", "CSV in standard input", "nothing"))
        yield Path(file.name)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
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


def _load(model: Path) -> Any:
    from kdmkit import KDMTable, load

    return load(model, kind=KDMTable)


def _load_estimator(model: Path) -> Any:
    from kdmkit import load
    from kdmkit.estimators.common import KDMEstimator

    loaded: Any = load(model)
    check_instance("model", loaded, KDMEstimator, "a saved estimator")
    return loaded


@app.command()
def fit(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of the model to write.")],
    targets: Annotated[
        list[str] | None,
        typer.Option("--targets", "--target", help="A column to predict; may be repeated."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--types", "--type", help=f"The kind of a column, zip=category; may be repeated. Kinds: {_KINDS}."
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rules", "--rule", help="A rule between columns, 'low <= high'; or none, auto; may be repeated."
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Kinds of columns, as `kdmkit schema` writes them.")
    ] = None,
    components: Annotated[int | None, typer.Option(min=1, help="Components of every column.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the rows at most.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows to learn from at most; a larger file is sampled uniformly."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A folder for checkpoints; a killed fit resumes from it.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the fit.")] = 0,
) -> None:
    """Learns the joint distribution of all columns of a CSV or Parquet file, which is never held in memory.

    Example: kdmkit fit diamonds.csv --type clarity=category -o diamonds
    """
    from kdmkit import KDMTable, save

    with _errors_in_one_line(), _source(data) as path:
        options: dict[str, Any] = {"n_components": components, "max_epochs": epochs, "max_rows": rows}
        table = KDMTable(
            types=_types(kind or []),
            schema=schema,
            targets=targets or None,
            rules=_rules(rule or []),
            checkpoint_dir=checkpoint,
            device=device,
            random_state=seed,
            verbose=sys.stderr.isatty(),
            **{name: value for name, value in options.items() if value is not None},
        )
        start = time.perf_counter()
        table.fit(path)
        save(table, output)
    for column in table.columns_.values():
        if not column.variables and column.kind != "empty":  # there was a warning about these
            errors.print(f"left out: {column.name!r} ({column.reason})", markup=False, highlight=False)
    if table.columns_.origin:
        errors.print(table.columns_.origin, highlight=False)
    errors.print(f"fitted in {time.perf_counter() - start:.0f} s, wrote {output}", highlight=False)


def _rules(texts: list[str]) -> bool | list[str]:
    """The rules beside those that the rows keep; "none" alone switches the search off."""
    if texts == ["none"]:
        return False
    return ["auto", *(text for text in texts if text not in ("auto", "none"))] if texts else True


def _types(kinds: list[str]) -> dict[str, str] | None:
    pairs = [kind.rpartition("=") for kind in kinds]
    for kind, (name, sign, _) in zip(kinds, pairs, strict=True):
        if not sign or not name:
            raise ValueError(f"--type: expected column=kind, got {kind!r}")
    return {name: kind for name, _, kind in pairs} or None


@app.command("schema")
def print_schema(
    data: Data,
    rows: Annotated[int, typer.Option(min=1, help="Rows to look at; a larger file is sampled.")] = 100_000,
) -> None:
    """Prints what the columns of a file are taken for, as JSON: edit it, and give it to `fit --schema`.

    Only "kind" and "missing" (texts for missing cells) are read again.

    Example: kdmkit schema diamonds.csv > schema.json
    """
    with _errors_in_one_line(), _source(data) as path:
        from kdmkit.estimators.table.decisions import described
        from kdmkit.estimators.table.learning import sample_frame
        from kdmkit.estimators.table.rule_fitting import with_rules
        from kdmkit.estimators.table.schema import Schema

        frame = sample_frame("data", path, rows, seed=0)
        columns = with_rules(Schema.from_frame(frame), frame, True, "impossible").columns
        typer.echo(json.dumps(described(columns), indent=2, ensure_ascii=False))


@app.command()
def describe(model: Model, as_json: AsJson = False) -> None:
    """Shows the kind of every column, the rules between them, and how columns depend on each other.

    Example: kdmkit describe diamonds
    """
    with _errors_in_one_line():
        table = _load(model)
        dependence = table.dependence()
    if as_json:
        names = ("kind", "why", "details", "missing", "examples", "unsure")
        columns = {n: {key: getattr(c, key) for key in names} for n, c in table.columns_.items()}
        pairs = [
            {"columns": [a, b], "mutual_information": v, "interval": dependence.interval(a, b)}
            for a, b, v in dependence.pairs()
        ]
        typer.echo(json.dumps({"columns": columns, "rules": table.rules_.config(), "dependence": pairs}))
        return
    console.print(table.columns_)
    if table.rules_:
        console.print(table.rules_)
    console.print(dependence)


@app.command()
def ask(
    model: Model,
    query: Annotated[str, typer.Argument(help="For example: P(price | carat in [0.5, 1], cut = Ideal)")],
    as_json: AsJson = False,
) -> None:
    """Answers a question: the distribution of a column, or the probability of an event.

    Examples:
    kdmkit ask diamonds "P(price | 0.5 <= carat <= 1, cut in {Ideal, Good})"
    kdmkit ask diamonds "P(price > 1000 | cut = Ideal)"
    """
    with _errors_in_one_line():
        answer = _load(model).query(query)
        if as_json:
            typer.echo(json.dumps(answer.to_dict()))
        else:
            console.print(answer)


@app.command()
def predict(
    model: Estimator,
    data: Data,
    target: Annotated[
        str | None,
        typer.Option(help="The column to predict; for models of one target, its name in the output."),
    ] = None,
    output: Output = _STANDARD,
    interval: Annotated[float | None, typer.Option(help="Add intervals of this coverage.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of every level.")] = False,
    keep: Keep = None,
) -> None:
    """Predicts a column from the rest of each row.

    Example: kdmkit predict diamonds new.csv --target price --interval 0.9 -o prices.parquet
    """
    options = {"target": target, "interval": interval, "proba": proba or None}
    given = {name: value for name, value in options.items() if value is not None}
    _stream(model, "predict", output, data, keep=keep or (), **given)


@app.command()
def impute(
    model: Model,
    data: Data,
    output: Output = _STANDARD,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw missing cells instead of expecting them.")
    ] = False,
    seed: Seed = None,
) -> None:
    """Fills in missing cells: the mean of numbers, the most probable level; or draws.

    Example: kdmkit impute diamonds gaps.csv -o whole.csv
    """
    _stream(model, "impute", output, data, draw=draw, random_state=seed)


@app.command()
def score(model: Estimator, data: Data, output: Output = _STANDARD, keep: Keep = None) -> None:
    """Computes log p of the observed part of each row, which is low for unusual rows.

    Example: kdmkit score diamonds new.csv -o scores.csv
    """
    _stream(model, "score", output, data, keep=keep or ())


@app.command()
def sample(
    model: Model,
    n: Annotated[int, typer.Option("-n", min=1, help="The number of rows.")] = 10,
    given: Annotated[str | None, typer.Option(help="A condition on the rows: 'income = \">50K\"'")] = None,
    output: Output = _STANDARD,
    seed: Seed = None,
) -> None:
    """Draws new rows.

    Example: kdmkit sample adult -n 1000 --given 'income = ">50K", age in [30, 40]' -o rows.csv
    """
    _stream(model, "sample", output, n=n, given=given, random_state=seed)


@app.command()
def explore(
    model: Annotated[
        Path | None,
        typer.Argument(help="A saved KDMTable or KDMClassifier of images; without one, two examples."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that answer requests.")] = 1,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name to allow in requests; may be repeated.")
    ] = None,
) -> None:
    """Opens a page that shows how columns change when others are fixed. Ctrl+C ends it.

    Example: kdmkit explore diamonds
    """
    with _errors_in_one_line():
        from kdmkit.explore import Server, example_models

        server = Server(
            example_models() if model is None else {model.stem: _entry(model)},
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


def _entry(path: Path) -> Any:
    """A model of the page that is loaded while the page opens."""
    from kdmkit import load
    from kdmkit.explore import PageModel

    if not path.exists():
        raise ValueError(bad_argument("model", "a file that kdmkit wrote", f"no file {path}"))
    return PageModel(path.stem, partial(load, path), path=str(path))


def _stream(model: Path, what: str, output: str, data: str | None = None, **options: Any) -> None:
    """Writes the answers of a model to the batches of a file, or its draws."""
    from kdmkit.estimators.common.csv_parquet import write_batches

    load = _load_estimator if what in ("predict", "score") else _load
    with _errors_in_one_line(), nullcontext() if data is None else _source(data) as path:
        write_batches(load(model).stream(what, path, **options), output)
