"""`kdmlab reproduce`: the experiments with many rows, and with rows that come in chunks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from kdmlab.cli.options import Datasets, FlightsFolder, Fresh, OnlyReport, Output, Workers
from kdmlab.cli.printing import show_report


def reproduce_streams(
    output: Output = Path("results"),
    part: Literal["development", "test"] = "test",
    model: Annotated[list[str] | None, typer.Option(help="KDMDensity or KDMClassifier.")] = None,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """`partial_fit` of ten chunks with a budget, compared with a fit to all rows."""
    from kdmlab import streams

    run = partial(streams.run, output, part=part, models=model or (), workers=workers, fresh=fresh)
    show_report(partial(streams.summarize, output, part=part) if only_report else run)


def reproduce_large_table(
    data_dir: FlightsFolder = Path("data"),
    output: Output = Path("results"),
    work_dir: Annotated[Path, typer.Option(help="Where the commands write.")] = Path("runs/large-table"),
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Seconds and peak memory of `fit`, `ask`, `sample`, `score` and `impute` on three million rows."""
    from kdmlab import large_table

    run = partial(large_table.run, output, data_dir, work_dir, fresh=fresh)
    show_report(partial(large_table.summarize, output) if only_report else run)


def reproduce_cluster(
    data_dir: FlightsFolder = Path("data"),
    output: Output = Path("results"),
    work_dir: Annotated[Path, typer.Option(help="Where models and rows go.")] = Path("runs/cluster"),
    model: Annotated[
        list[str] | None,
        typer.Option(help="KDMDensity, KDMClassifier, KDMRegressor or KDMTable; may be repeated."),
    ] = None,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Three million rows by Ray Data with two workers, one of which is killed, and by one process."""
    from kdmlab import cluster

    run = partial(cluster.run, output, data_dir, work_dir, models=model or (), fresh=fresh)
    show_report(partial(cluster.summarize, output) if only_report else run)


def reproduce_evaluate(
    data_dir: Annotated[Path, typer.Option(help="The folder of Adult, MAGIC and Shoppers.")] = Path("data"),
    output: Output = Path("results"),
    dataset: Datasets = None,
    work_dir: Annotated[Path, typer.Option(help="Where fits are kept.")] = Path("runs/evaluate"),
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Reports on synthetic rows of three tables, compared with the laboratory's measures."""
    from kdmlab import evaluate

    run = partial(evaluate.run, output, data_dir, datasets=dataset or (), work_dir=work_dir, fresh=fresh)
    show_report(partial(evaluate.summarize, output) if only_report else run)


def add_commands(app: typer.Typer) -> None:
    """Adds the experiments to `kdmlab reproduce`."""
    app.command("streams")(reproduce_streams)
    app.command("large-table")(reproduce_large_table)
    app.command("cluster")(reproduce_cluster)
    app.command("evaluate")(reproduce_evaluate)
