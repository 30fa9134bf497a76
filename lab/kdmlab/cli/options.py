"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Output = Annotated[Path, typer.Option(file_okay=False, help="Where the results are and go.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")]
OnlyReport = Annotated[
    bool,
    typer.Option("--only-report", help="Measure nothing; write the tables from the existing lines."),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that measure at the same time.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
ImageFolder = Annotated[Path, typer.Option(help="The folder of mnist.npz, fashion_mnist.npz, cifar10.npz.")]
ImageSets = Annotated[
    list[str] | None, typer.Option(help="mnist, fashion_mnist, cifar10 or digits; may be repeated.")
]
FlightsFolder = Annotated[Path, typer.Option(help="The folder of flights-3m.parquet.")]
TrainedFolder = Annotated[Path, typer.Option(help="Where trained weights are kept.")]
Part = Annotated[
    Literal["development", "test"] | None,
    typer.Option(help="Only those that defaults were chosen on, or only the others."),
]
Datasets = Annotated[list[str] | None, typer.Option("--dataset", help="One of the sets; may be repeated.")]
