"""The `kdmlab` command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from kdmlab.cli import large, reproduce
from kdmlab.cli.options import OnlyReport, Output
from kdmlab.cli.printing import console, show_report

# Experiments are imported by the commands that run them: --help needs none of them.
app = typer.Typer(
    help="The laboratory of kdmkit: demonstration, benchmarks and experiments.",
    epilog="Exit codes: 0, done; 2, options or files that cannot be used; 1, any other error.",
    no_args_is_help=True,
)
large.add_commands(reproduce.app)
app.add_typer(reproduce.app, name="reproduce")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(file_okay=False, help="Where the figures go.")] = Path("demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the split, the fit and the draws.")
    ] = 0,
) -> None:
    """Fits one KDM to handwritten digits: it classifies, detects novelty and generates. Then asks a table."""
    from kdmlab import demo, table_demo

    show_report(lambda: demo.run(output, seed=seed, say=console.print))
    show_report(lambda: table_demo.run(seed=seed, say=console.print))


@app.command()
def bench(
    output: Output = Path("results"),
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Repetitions of each measurement, in seconds.")
    ] = 3.0,
    growth: Annotated[bool, typer.Option(help="Measure how cost grows with size, too.")] = True,
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Measure this device only.")] = None,
    only: Annotated[str, typer.Option(help="Measure the cases with this text in their name.")] = "",
    only_report: OnlyReport = False,
    compare: Annotated[
        bool, typer.Option(help="Compare the last benchmark with earlier ones on this kind of machine.")
    ] = False,
) -> None:
    """Times the reductions, compared with other implementations, on the CPU and on a CUDA device."""
    import torch

    from kdmlab import bench

    cuda = torch.cuda.is_available()
    if device == "cuda" and not (cuda or only_report or compare):
        raise typer.BadParameter("expected 'cpu' where there is no CUDA device, got 'cuda'")
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda") if cuda else ("cpu",)
    for each in devices if device is None else (device,):
        if compare:
            show_report(partial(bench.compare, output, each))
            continue
        run = partial(bench.run, output, device=each, seconds=seconds, growth=growth, only=only)
        show_report(partial(bench.summarize, output, each) if only_report else run)
