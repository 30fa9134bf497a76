"""The table and the figures of what the KDM adds."""

from __future__ import annotations

from pathlib import Path

from kdmlab.adds.comparisons import EXPERIMENTS, order
from kdmlab.adds.figure import save_figure
from kdmlab.adds.pairs import Experiment, Gain, gains
from kdmlab.common import CONFIDENCE, Report, markdown_table, newest, read_rows

NAME = "adds"
_HEADER = ("data", "heads", "measure", "pairs", "gain", "interval", "better")


def summarize(folder: Path, *, figures: bool = True) -> Report:
    """Writes `adds.md` and a figure for every experiment with pairs, from the lines that there are.

    Args:
        folder: the results of the other experiments; the files go there, too.
        figures: whether to draw.
    """
    notes, drawn = [_TEXT], list[Path]()
    for experiment in EXPERIMENTS:
        gains = _gains(experiment, folder)
        notes += [f"## {experiment.title}", experiment.text]
        if not gains:
            notes.append("Not measured yet.")
            continue
        notes += [
            markdown_table(_HEADER, [gain.cells() for gain in gains]),
            f"From the lines in `{experiment.file}`.",
        ]
        path = folder / f"{NAME}-{experiment.name}.png"
        if figures:
            drawn.append(save_figure(gains, path))
        if path.exists():
            notes.append(f"![{experiment.title}]({path.name})")
    report = Report(
        "Paired differences: what the KDM adds", notes=[*notes, "Written by `kdmlab reproduce adds`."]
    )
    target = folder / f"{NAME}.md"
    target.write_text(report.markdown(), encoding="utf-8")
    return Report(report.title, notes=report.notes, files=(target, *drawn))


_TEXT = (
    "Pairs of runs on the same data with the same seed or split, whose heads are exchanged. Each section "
    "says what else is the same. A gain is by how much the KDM is better: differences of accuracy, area or "
    f"share, and differences of losses with the opposite sign. Mean over pairs, and its {CONFIDENCE:.0%} "
    "t-interval. “Better” names a head where the interval does not hold zero."
)


def _gains(experiment: Experiment, folder: Path) -> list[Gain]:
    """The gains in the newest lines of every head."""
    repeated = ("seed", "split", "trial")
    subject = [
        "dataset",
        "encoder",
        experiment.head,
        *(name for name in experiment.run if name not in repeated),
    ]
    rows = newest(read_rows(folder / experiment.file), subject, ("settings", "drawing"))
    return gains(experiment, sorted(rows, key=order))
