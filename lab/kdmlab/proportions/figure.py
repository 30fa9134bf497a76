"""AUC against bag size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdmlab.common import Row
from kdmlab.proportions.report import Means, means
from kdmlab.proportions.settings import BAG_SIZES, METHODS, PAPER, Interval

# One colour per method, distinct without red and green alone.
_STYLES = {
    "kdm-encoder": ("#0072B2", "o"),
    "kdm": ("#56B4E9", "s"),
    "kdm-algorithm-4": ("#999999", "v"),
    "lmmcm": ("#D55E00", "D"),
    "network": ("#009E73", "^"),
    "kdm-refined": ("#000000", "*"),
    "network-likelihood": ("#CC79A7", "X"),
    "network-refined": ("#882255", "<"),
    "lmmcm-standardized": ("#E69F00", "P"),
}
_NAMES = {"adult": "Adult", "magic": "MAGIC"}
# Methods are shifted beside each other: this many fit into a doubling of the bag size.
_SPREAD = 12.0
# The lowest AUC shown, so that one method that fails does not flatten the others.
_LOWEST = 0.78


def save_figure(rows: Sequence[Row], path: Path) -> Path:
    """Plots every method's means with their 99 % intervals, one panel per data set and interval."""
    import matplotlib.pyplot as plt

    scores = means(rows)
    figure, axes = plt.subplots(1, 4, figsize=(14, 4.5), layout="constrained", sharey=True)
    for ax, group in zip(axes, PAPER, strict=True):
        _panel(ax, group, scores)
    axes[0].set_ylabel("AUC on test rows")
    axes[0].set_ylim(bottom=max(_LOWEST, axes[0].get_ylim()[0]))
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        columns = (len(labels) + 1) // 2
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _panel(ax: Any, group: tuple[str, Interval], scores: Means) -> None:
    name, (low, high) = group
    for method, line in (("KDM", ":"), ("LMMCM", "--")):
        values = [PAPER[group][method][size] for size in BAG_SIZES]
        ax.plot(BAG_SIZES, values, line, color="#444444", linewidth=1, label=f"{method}, paper")
    for place, method in enumerate(METHODS):
        there = [size for size in BAG_SIZES if (method, (name, (low, high), size)) in scores]
        cells = [scores[method, (name, (low, high), size)] for size in there]
        if not cells:
            continue
        color, marker = _STYLES[method]
        moved = [size * 2 ** ((place - len(METHODS) / 2) / _SPREAD) for size in there]
        means_, halves = [cell.mean for cell in cells], [cell.half_width for cell in cells]
        ax.errorbar(
            moved,
            means_,
            halves,
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.2,
            capsize=2,
            label=method,
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(BAG_SIZES, [str(size) for size in BAG_SIZES])
    ax.set_title(f"{_NAMES.get(name, name)}, proportions in [{low:g}, {high:g}]", fontsize=10)
    ax.set_xlabel("bag size")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.3)
