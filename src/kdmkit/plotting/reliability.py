"""The reliability diagram of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdmkit.metrics import expected_calibration_error, reliability_curve
from kdmkit.plotting._arrays import Array
from kdmkit.plotting._axes import GREY, INK, PALETTE, Axes, axes, finish, legend_with_number


def plot_reliability(probs: Any, labels: Any, n_bins: int = 15, *, ax: Axes | None = None) -> Axes:
    """Accuracy against confidence, bin by bin, with the expected calibration error and the bins' counts.

    The bars show accuracy; what is missing from, or exceeds, the confidence of the bin is hatched. The strip
    on top counts the rows in each bin.

    Args:
        probs: predicted probabilities `(n, k)`.
        labels: true classes `(n,)`, integers in 0 … k−1.
        n_bins: number of bins.
        ax: where to draw; None makes a new figure.

    Returns:
        The axes that were drawn on.

    >>> from kdmkit.plotting import plot_reliability
    >>> ax = plot_reliability([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 0, 1])
    >>> ax.get_legend().get_title().get_text()
    'ECE 0.433'
    """
    curve = reliability_curve(probs, labels, n_bins)
    error = expected_calibration_error(probs, labels, n_bins).item()
    edges, confidence, accuracy, counts = (part.cpu().numpy() for part in curve)
    filled = counts > 0
    left, width = edges[:-1][filled], np.diff(edges)[filled]
    ax = axes(ax, (4.2, 4.4))
    _bars(ax, left, width, confidence[filled], accuracy[filled])
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--", label="calibrated")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    _counts(ax, edges, counts)
    legend_with_number(ax, f"ECE {error:.3f}")
    return finish(ax, x="confidence", y="accuracy")


def _bars(ax: Axes, left: Array, width: Array, confidence: Array, accuracy: Array) -> None:
    ax.bar(
        left,
        accuracy,
        width,
        align="edge",
        color=PALETTE[0],
        edgecolor="white",
        linewidth=0.8,
        label="accuracy",
    )
    gap: dict[str, Any] = {"color": "none", "edgecolor": PALETTE[1], "hatch": "////", "linewidth": 0.6}
    ax.bar(
        left, confidence - accuracy, width, bottom=accuracy, align="edge", label="gap to confidence", **gap
    )


def _counts(ax: Axes, edges: Array, counts: Array) -> None:
    """A strip above the axes."""
    strip = ax.inset_axes((0, 1.04, 1, 0.16), sharex=ax)
    strip.bar(edges[:-1], counts, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.8)
    finish(strip, y="rows")
    strip.tick_params(labelbottom=False)
    strip.set_yticks([0, int(counts.max())])
    strip.yaxis.label.set(fontsize="small", color=INK)
