"""Commands about rows: predict, fill in, score and draw them, and ask for them in SQL."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import rich.table
import rich.text
import typer

from kdmkit.cli.shell import (
    STANDARD,
    AsJson,
    Data,
    Estimator,
    Keep,
    Model,
    Output,
    Seed,
    console,
    errors_in_one_line,
    load_estimator,
    load_table,
    source,
)


def explain(
    model: Model,
    data: Data,
    rows: Annotated[int, typer.Option(min=1, help="That many rows from the start of the file.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Shows which cells are surprising given the other cells of their row, and what was expected.

    Example: kdmkit explain diamonds new.csv --rows 1000
    """
    with errors_in_one_line(), source(data) as path:
        from kdmkit.estimators.table.table_stream import batches_for

        table = load_table(model)
        explanation = table.explain(next(iter(batches_for(table, path, rows))))
    if as_json:
        typer.echo(json.dumps(explanation.to_list()))
    else:
        console.print(explanation)


def predict(
    model: Estimator,
    data: Data,
    target: Annotated[
        str | None,
        typer.Option(help="The column to predict; for models of one target, its name in the output."),
    ] = None,
    output: Output = STANDARD,
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


def impute(
    model: Model,
    data: Data,
    output: Output = STANDARD,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw missing cells instead of expecting them.")
    ] = False,
    seed: Seed = None,
) -> None:
    """Fills in missing cells: the mean of numbers, the most probable level; or draws.

    Example: kdmkit impute diamonds gaps.csv -o whole.csv
    """
    _stream(model, "impute", output, data, draw=draw, random_state=seed)


def score(model: Estimator, data: Data, output: Output = STANDARD, keep: Keep = None) -> None:
    """Computes log p of the observed part of each row, which is low for unusual rows.

    It is a natural logarithm, and a density if a continuous column is in the row: compare rows with it.

    Example: kdmkit score diamonds new.csv -o scores.csv
    """
    _stream(model, "score", output, data, keep=keep or ())


def sample(
    model: Model,
    n: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Rows (10); of --given-file, for each of its rows (1)."),
    ] = None,
    given: Annotated[str | None, typer.Option(help="A condition on the rows: 'income = \">50K\"'")] = None,
    given_file: Annotated[
        Path | None, typer.Option(help="A CSV or Parquet file of which each row is completed to a new row.")
    ] = None,
    hold: Annotated[
        list[str] | None,
        typer.Option(help="A column of --given-file that counts; may be repeated. All of them by default."),
    ] = None,
    output: Output = STANDARD,
    seed: Seed = None,
) -> None:
    """Draws new rows.

    Examples:
    kdmkit sample adult -n 1000 --given 'income = ">50K", age in [30, 40]' -o rows.csv
    kdmkit sample adult --given-file conditions.csv --hold age --hold sex
    """
    with errors_in_one_line():
        if given_file is not None and given is not None:
            raise ValueError("--given-file: expected no --given beside it, got both")
    n = 10 if n is None and given_file is None else n
    _stream(model, "sample", output, n=n, given=given_file or given, hold=hold, random_state=seed)


def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="The rows of the fit: a CSV or Parquet file.")],
    holdout: Annotated[
        Path | None, typer.Option(help="Other rows of the same source: needed to judge privacy and use.")
    ] = None,
    synthetic: Annotated[
        Path | None, typer.Option(help="Rows to judge, of any model; without it, the model draws some.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--targets", "--target", help="A column that boosted trees predict; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A page (.html) or the numbers (.json); may be absent."),
    ] = None,
    as_json: AsJson = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of draws and samples.")] = 0,
) -> None:
    """Reports how synthetic rows compare with real ones: likeness, use, calibration, privacy and rules.

    Example: kdmkit evaluate adult adult.csv --holdout test.csv --target income -o report.html
    """
    with errors_in_one_line():
        if output is not None and output.suffix not in (".html", ".json"):
            raise ValueError(f"--output: expected a name that ends in .html or .json, got {output}")
        table = load_table(model)
        with source(data) as path:
            report = table.evaluate(
                path, holdout, synthetic=synthetic, targets=target or None, random_state=seed
            )
        if output is not None and output.suffix == ".html":
            report.to_html(output, title=f"Synthetic rows of {model.stem}")
        elif output is not None:
            report.to_json(output)
    if as_json:
        typer.echo(report.to_json())
    else:
        console.print(report)


def sql(
    model: Model,
    query: Annotated[str, typer.Argument(help="SQL of DuckDB; files of data stand in quotes after FROM.")],
    name: Annotated[
        str | None, typer.Option(help="The start of the names of functions; by default that of the file.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="A .csv or .parquet file; - is CSV; none: a table.")
    ] = None,
    seed: Seed = None,
    unseen: Annotated[
        str, typer.Option(help="What a level is that the model lacks: an error, or missing.")
    ] = "error",
) -> None:
    """Answers SQL with functions of the model: NAME_logp, NAME_predict, NAME_probability, NAME_sample …

    Example: kdmkit sql loans "SELECT *, loans_predict(a, 'rate') FROM 'new.csv' a ORDER BY loans_logp(a)"
    """
    with errors_in_one_line():
        from kdmkit.estimators.common.csv_parquet import write_batches
        from kdmkit.sql import answer, as_name

        how: Any = {"random_state": seed, "unseen": unseen}
        rows = answer(query, load_table(model), name or as_name(model.stem), **how)
        if output is not None:
            write_batches(iter([rows]), output)
        else:
            console.print(_as_table(rows))


def _as_table(rows: Any, most: int = 40) -> Any:
    """The first rows for people."""
    shown = rows.slice(0, most)
    grid = rich.table.Table(*rows.column_names, box=None, header_style="bold")
    for cells in zip(*(column.to_pylist() for column in shown.columns), strict=True):
        grid.add_row(*[rich.text.Text("" if cell is None else str(cell)) for cell in cells])
    if len(rows) > most:
        grid.caption = f"{most} of {len(rows):,} rows: --output writes all"
    return grid


def _stream(model: Path, what: str, output: str, data: str | None = None, **options: Any) -> None:
    """Writes the answers of a model to the batches of a file, or its draws."""
    from kdmkit.estimators.common.csv_parquet import write_batches

    load = load_estimator if what in ("predict", "score") else load_table
    with errors_in_one_line(), nullcontext() if data is None else source(data) as path:
        write_batches(load(model).stream(what, path, **options), output)


#: In the order of the help.
COMMANDS = (explain, predict, impute, score, sample, evaluate, sql)
