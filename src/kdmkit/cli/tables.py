"""Commands on tables: fit a file, ask the model, fill in, predict, score and draw rows."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit.cli.printing import console, errors, errors_in_one_line

_STANDARD = "-"

Model = Annotated[Path, typer.Argument(help="A model that `kdmkit fit` wrote.")]
Estimator = Annotated[Path, typer.Argument(help="A model that `kdmkit fit` or `kdmkit.save` wrote.")]
Keep = Annotated[list[str] | None, typer.Option(help="A column to repeat; may be repeated.")]
Data = Annotated[str, typer.Argument(help="A CSV or Parquet file; - is CSV from standard input.")]
Output = Annotated[
    str, typer.Option("--output", "-o", help="A .csv or .parquet file; - is CSV to standard output.")
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Seed; none: other draws every time.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# The kinds of columns; the help of a command imports no estimator.
_KINDS = "float, integer, count, duration, boolean, category, ordinal, date, time, constant, identifier, text"


def add_commands(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (fit, describe, ask, predict, impute, score, sample):
        app.command()(command)


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


def _bad_input() -> Any:
    return errors_in_one_line(ValueError, TypeError, OSError, ImportError)


def _load(model: Path) -> Any:
    from kdmkit import KDMTable, load

    return load(model, kind=KDMTable)


def _load_estimator(model: Path) -> Any:
    from kdmkit import load
    from kdmkit.estimators.common import KDMEstimator

    loaded: Any = load(model)
    check_instance("model", loaded, KDMEstimator, "a saved estimator")
    return loaded


def fit(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.")],
    target: Annotated[list[str] | None, typer.Option(help="A column to predict; may be repeated.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", help=f"What a column is, zip=category; may be repeated. Kinds: {_KINDS}."),
    ] = None,
    model: Annotated[Literal["tree", "flat"], typer.Option(help="How columns are tied.")] = "tree",
    components: Annotated[int | None, typer.Option(min=1, help="Components of every column.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the rows at most.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows to learn from; of more a uniform sample is taken.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A folder from which a killed fit goes on when it is run again.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the fit.")] = 0,
) -> None:
    """Learns the joint distribution of all columns of a CSV or Parquet file, which is never held in memory.

    Example: kdmkit fit diamonds.csv --type clarity=category -o diamonds
    """
    from kdmkit import KDMTable, save

    with _bad_input(), _source(data) as path:
        options: dict[str, Any] = {"n_components": components, "max_epochs": epochs, "max_rows": rows}
        table = KDMTable(
            types=_types(kind or []),
            targets=target or None,
            model=model,
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
        if not column.variables and column.kind != "empty":  # a warning tells of these
            errors.print(f"left out: {column.name!r} ({column.reason})", markup=False, highlight=False)
    if table.columns_.origin:
        errors.print(table.columns_.origin, highlight=False)
    errors.print(f"fitted in {time.perf_counter() - start:.0f} s, wrote {output}", highlight=False)


def _types(kinds: list[str]) -> dict[str, str] | None:
    pairs = [kind.rpartition("=") for kind in kinds]
    for kind, (name, sign, _) in zip(kinds, pairs, strict=True):
        if not sign or not name:
            raise ValueError(f"--type: expected column=kind, got {kind!r}")
    return {name: kind for name, _, kind in pairs} or None


def describe(model: Model, as_json: AsJson = False) -> None:
    """Tells what every column was taken for, and how columns depend on each other.

    Example: kdmkit describe diamonds
    """
    with _bad_input():
        table = _load(model)
        dependence = table.dependence()
    if as_json:
        names = ("kind", "why", "details", "missing")
        columns = {n: {key: getattr(c, key) for key in names} for n, c in table.columns_.items()}
        pairs = [{"columns": [a, b], "mutual_information": v} for a, b, v in dependence.pairs()]
        typer.echo(json.dumps({"columns": columns, "dependence": pairs}))
        return
    console.print(table.columns_)
    console.print(dependence)


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
    with _bad_input():
        answer = _load(model).query(query)
        if as_json:
            typer.echo(json.dumps(answer.to_dict()))
        else:
            console.print(answer)


def predict(
    model: Estimator,
    data: Data,
    target: Annotated[
        str | None, typer.Option(help="The column to predict; of other models than tables only its name.")
    ] = None,
    output: Output = _STANDARD,
    interval: Annotated[float | None, typer.Option(help="Also intervals of this coverage.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also the probability of every level.")] = False,
    keep: Keep = None,
) -> None:
    """Predicts a column from the rest of each row.

    Example: kdmkit predict diamonds new.csv --target price --interval 0.9 -o prices.parquet
    """
    options = {"target": target, "interval": interval, "proba": proba or None}
    given = {name: value for name, value in options.items() if value is not None}
    _stream(model, "predict", output, data, keep=keep or (), **given)


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


def score(model: Estimator, data: Data, output: Output = _STANDARD, keep: Keep = None) -> None:
    """Computes log p of the observed part of each row: low where a row is odd.

    Example: kdmkit score diamonds new.csv -o scores.csv
    """
    _stream(model, "score", output, data, keep=keep or ())


def sample(
    model: Model,
    n: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 10,
    given: Annotated[str | None, typer.Option(help="What they have in common: 'income = \">50K\"'")] = None,
    output: Output = _STANDARD,
    seed: Seed = None,
) -> None:
    """Draws new rows.

    Example: kdmkit sample adult -n 1000 --given 'income = ">50K", age in [30, 40]' -o rows.csv
    """
    _stream(model, "sample", output, n=n, given=given, random_state=seed)


def _stream(model: Path, what: str, output: str, data: str | None = None, **options: Any) -> None:
    """Writes what a model makes of the batches of a file, or draws."""
    from kdmkit.estimators.common.csv_parquet import write_batches

    load = _load_estimator if what in ("predict", "score") else _load
    with _bad_input(), nullcontext() if data is None else _source(data) as path:
        write_batches(load(model).stream(what, path, **options), output)
