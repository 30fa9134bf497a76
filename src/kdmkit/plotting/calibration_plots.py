"""Figures of calibration: of predictive distributions of a real variable, and of class probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kdmkit._core.checks import check_count
from kdmkit.metrics import (
    expected_calibration_error,
    quantile_calibration,
    quantile_calibration_error,
    reliability_curve,
)
from kdmkit.metrics.inputs import as_fractions
from kdmkit.plotting._canvas import (
    GREY,
    INK,
    LIGHT,
    PALETTE,
    Array,
    Axes,
    axes,
    finish,
    legend,
    legend_with_number,
)


def plot_pit(pit_values: Any, n_bins: int = 20, *, ax: Axes | None = None) -> Axes:
    """A histogram of F_i(y_i), flat if predictions are calibrated.

    A hump in the middle says that they are too wide, heaps at both ends that they are too narrow, a slope
    that they are biased. With a calibrated model, a bar ends inside the band 95 times out of 100.

    Args:
        pit_values: as `kdmkit.metrics.pit` gives them, of any shape.
        n_bins: number of bars.
        ax: where to draw; None makes a new figure.

    Returns:
        The axes that were drawn on.

    >>> import torch
    >>> from kdmkit.plotting import plot_pit
    >>> plot_pit(torch.rand(500), n_bins=10).get_xlabel()
    'probability integral transform F(y)'
    """
    values = as_fractions("pit_values", pit_values).double().flatten().cpu().numpy()
    n_bins = check_count("n_bins", n_bins)
    ax = axes(ax, (4.6, 3.0))
    heights, edges = np.histogram(values, n_bins, (0, 1), density=True)
    ax.stairs(heights, edges, fill=True, color=PALETTE[0], alpha=0.85)
    # The relative spread of a binomial count with probability 1/bins.
    spread = 1.96 * math.sqrt((n_bins - 1) / len(values))
    ax.axhspan(
        max(0, 1 - spread), 1 + spread, color=GREY, alpha=0.3, linewidth=0, label="95% range if calibrated"
    )
    ax.axhline(1, color=PALETTE[1], linewidth=1.2, linestyle="--", label="calibrated")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.35 * max(ax.get_ylim()[1], 1 + spread) / 1.05)
    legend(ax, loc="upper center", ncols=2)
    return finish(ax, x="probability integral transform F(y)", y="density")


def plot_calibration_curve(pit_values: Any, levels: Any = None, *, ax: Axes | None = None) -> Axes:
    """How often y falls below its predicted τ-quantile, against τ: the diagonal if calibrated.

    Args:
        pit_values: as `kdmkit.metrics.pit` gives them, of any shape.
        levels: τ, of shape `(k,)`; None is 0.05, 0.10, …, 0.95.
        ax: where to draw; None makes a new figure.

    Returns:
        The axes that were drawn on.

    >>> import torch
    >>> from kdmkit.plotting import plot_calibration_curve
    >>> plot_calibration_curve(torch.tensor([0.1, 0.2, 0.6, 0.9])).get_ylabel()
    'observed frequency'
    """
    nominal, observed = (part.cpu().numpy() for part in quantile_calibration(pit_values, levels))
    order = np.argsort(nominal)
    x, y = (np.concatenate([[0], values[order], [1]]) for values in (nominal, observed))
    error = quantile_calibration_error(pit_values, levels).item()
    ax = axes(ax, (3.8, 3.6))
    ax.fill_between(x, x, y, color=LIGHT, alpha=0.7, linewidth=0)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--", label="calibrated")
    ax.plot(
        nominal[order],
        observed[order],
        "o-",
        color=PALETTE[0],
        markersize=3.5,
        linewidth=1.4,
        label="observed",
    )
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    legend_with_number(ax, f"mean error {error:.3f}")
    return finish(ax, x="quantile level", y="observed frequency")


def plot_reliability(probs: Any, labels: Any, n_bins: int = 15, *, ax: Axes | None = None) -> Axes:
    """Accuracy against confidence, bin by bin, with the expected calibration error and the bins' counts.

    The bars show accuracy; the gap to the confidence of the bin is hatched. The strip on top counts the rows
    in each bin.

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
