"""Gains with their intervals, one panel per measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdmlab.adds.pairs import Gain

# Distinct without red and green alone.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = ("o", "s", "D", "^")
# The height that all comparisons of a subject take together.
_BAND = 0.6
# Panels side by side, at most.
_COLUMNS = 3


def save_figure(gains: Sequence[Gain], path: Path) -> Path:
    """Every subject is a line, every comparison a colour; right of zero the KDM is better."""
    import matplotlib.pyplot as plt

    measures, subjects, heads = (
        list(dict.fromkeys(getattr(gain, name) for gain in gains)) for name in ("measure", "subject", "heads")
    )
    columns = min(len(measures), _COLUMNS)
    lines = math.ceil(len(measures) / columns)
    height = 0.5 + 0.18 * len(subjects) * max(2, len(heads))
    size = (max(7.5, 2.2 + 3.1 * columns), 1.2 + lines * height)
    figure, grid = plt.subplots(
        lines, columns, figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    axes = grid.ravel()[: len(measures)]
    for unused in grid.ravel()[len(measures) :]:
        unused.set_visible(False)
    for ax, measure in zip(axes, measures, strict=True):
        _panel(ax, [gain for gain in gains if gain.measure == measure], subjects, heads)
        ax.set_title(measure, fontsize=10)
    axes[0].set_yticks(range(len(subjects)), subjects)
    axes[0].set_ylim(len(subjects) - 0.5, -0.5)
    figure.supxlabel("the KDM is worse  ←  difference, 99 % interval  →  the KDM is better", fontsize=9)
    groups = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [groups[name] for name in heads],
        heads,
        loc="outside upper center",
        ncols=min(len(heads), int(size[0] // 2.6)),
        frameon=False,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _panel(ax: Any, gains: Sequence[Gain], subjects: Sequence[str], heads: Sequence[str]) -> None:
    ax.axvline(0, color="#444444", linewidth=1)
    for place, name in enumerate(heads):
        some = [gain for gain in gains if gain.heads == name]
        if not some:
            continue
        shift = _BAND * ((place + 0.5) / len(heads) - 0.5)
        halves = [0.0 if math.isnan(gain.mean.half_width) else gain.mean.half_width for gain in some]
        ax.errorbar(
            [gain.mean.mean for gain in some],
            [subjects.index(gain.subject) + shift for gain in some],
            xerr=halves,
            color=_COLOURS[place % len(_COLOURS)],
            marker=_MARKERS[place % len(_MARKERS)],
            linestyle="",
            markersize=5,
            capsize=2,
            label=name,
        )
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", alpha=0.3)
    ax.locator_params(axis="x", nbins=5)
    ax.tick_params(axis="x", labelsize=8)
