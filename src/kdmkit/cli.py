"""The `kdmkit` command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kdmkit.experiments import density, tabular
from kdmkit.experiments._results import Report

app = typer.Typer(help="Kernel density matrices: demonstration and experiments.", no_args_is_help=True)
reproduce = typer.Typer(help="Measure the library and write tables of results.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
console = Console()

Output = Annotated[Path, typer.Option(help="Where the results are and go.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")]


@app.callback()
def main() -> None:
    """Kernel density matrices: demonstration and experiments."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the split, the fit and the draws.")] = 0,
) -> None:
    """Fits one KDM to handwritten digits: it classifies, doubts and generates."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures go to files: no display is needed
    from kdmkit.experiments.demo import run

    result = run(output, seed=seed, say=console.print)
    table = Table("one model of digits", "", title_justify="left")
    for name, value in result.rows:
        table.add_row(name, value)
    console.print(table)
    for figure in result.figures:
        console.print(f"wrote {figure}")


@app.command()
def bench(
    output: Output = Path("results"),
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Repetitions of each measurement, in seconds.")
    ] = 3.0,
    growth: Annotated[bool, typer.Option(help="Measure how cost grows with size, too.")] = True,
) -> None:
    """Times the reductions beside other ways to write them, on the CPU and on a CUDA device."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    import torch

    from kdmkit.experiments.bench import run

    console.print(f"wrote {run(output, device='cpu', seconds=seconds, growth=growth)}")
    if torch.cuda.is_available():
        console.print(f"wrote {run(output, device='cuda', seconds=seconds, growth=growth)}")


@reproduce.command("density")
def reproduce_density(
    output: Output = Path("results"),
    folds: Annotated[int, typer.Option(min=2, help="Folds of the outer cross-validation.")] = 5,
    fresh: Fresh = False,
) -> None:
    """Held-out log-likelihood beside Gaussian mixtures and kernel density estimates."""
    _show(density.run(output, folds=folds, fresh=fresh))


@reproduce.command("estimators")
def reproduce_estimators(
    output: Output = Path("results"),
    only: Annotated[
        list[tabular.Measure] | None, typer.Option(help="Take this measure; may be repeated.")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Accuracy, calibration, novelty, generation, intervals and time, with their targets."""
    _show(tabular.run(output, only=only or (), fresh=fresh))


@reproduce.command("uci-regression")
def reproduce_uci_regression(
    data_dir: Annotated[Path, typer.Option(help="The folder of concrete.npz, energy.npz and the others.")],
    dataset: Annotated[list[str] | None, typer.Option(help="One of the sets; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="One of the methods; may be repeated.")] = None,
    splits: Annotated[int, typer.Option(min=1, help="How many of the standard splits.")] = 20,
    workers: Annotated[int, typer.Option(min=1, help="Processes that fit at the same time.")] = 1,
    figures: Annotated[bool, typer.Option(help="Draw bands, histograms and calibration curves.")] = True,
    output: Output = Path("results"),
    fresh: Fresh = False,
) -> None:
    """Regression with uncertainty on UCI sets, beside a GP, NGBoost and a deep ensemble."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from kdmkit.experiments import regression

    try:
        report = regression.run(
            output,
            data_dir,
            datasets=dataset or (),
            methods=method or (),
            splits=splits,
            figures=figures,
            workers=workers,
            fresh=fresh,
        )
    except (ValueError, OSError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(2) from error
    _show(report)


def _show(report: Report) -> None:
    table = Table(*report.header, title=report.title, title_justify="left")
    for row in report.rows:
        table.add_row(*row)
    console.print(table)
    for file in report.files:
        console.print(f"wrote {file}")


if __name__ == "__main__":
    app()
