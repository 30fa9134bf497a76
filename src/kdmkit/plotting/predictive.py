"""Predictive distributions of a real variable along a real input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import as_levels, bad_argument, check_count
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import check_density
from kdmkit.plotting._arrays import Array, as_array, as_column
from kdmkit.plotting._axes import INK, PALETTE, Axes, axes, finish, legend_above, tint


def plot_predictive_bands(
    x: Any,
    rho: KDM,
    levels: Sequence[float] = (0.5, 0.9),
    data: tuple[Any, Any] | None = None,
    *,
    ax: Axes | None = None,
    show_density: bool = False,
    n_grid: int = 200,
) -> Axes:
    """The mean of y given x, and central intervals that hold y with the given probabilities.

    An interval cannot show that y has two likely values with nothing between them: `show_density` shades
    p(y|x) instead, relative to its maximum at each x.

    Args:
        x: the inputs, `(n,)` or `(n, 1)`, in any order.
        rho: the predictions there: a one-dimensional continuous KDM of batch shape `(n,)`.
        levels: probabilities of the intervals.
        data: observations `(X, y)` to show.
        ax: where to draw; None makes a new figure.
        show_density: whether to shade the density instead of the intervals.
        n_grid: points of the density along y.

    Returns:
        The axes that were drawn on.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.plotting import plot_predictive_bands
    >>> x = torch.linspace(0.0, 1.0, 20)
    >>> rho = kdm.KDM(x.sin().reshape(20, 1, 1), None, kdm.RBF.from_std(0.1))
    >>> plot_predictive_bands(x, rho).get_legend_handles_labels()[1]
    ['90% interval', '50% interval', 'mean']
    """
    inputs = as_column("x", x)
    check_density(rho, 1, batch=(len(inputs),))
    shown = None if data is None else _data(data)
    intervals = as_levels("levels", levels).tolist()
    n_grid = check_count("n_grid", n_grid, least=2)
    order = np.argsort(inputs)
    inputs = inputs[order]
    ax = axes(ax, (5.4, 3.4))
    if show_density:
        _shading(ax, inputs, rho, order, shown, n_grid)
    else:
        _bands(ax, inputs, rho, order, intervals)
    if shown is not None:
        dots: dict[str, Any] = {"markersize": 2.4, "markeredgewidth": 0, "alpha": 0.55, "zorder": 1.5}
        ax.plot(*shown, "o", color=INK, label="data", **dots)
    mean = as_array("mean", rho.mean)[order, 0]
    ax.plot(
        inputs, mean, color=PALETTE[1], linewidth=1.6, linestyle="--" if show_density else "-", label="mean"
    )
    ax.set_xlim(inputs[0], inputs[-1])
    legend_above(ax)
    return finish(ax, x="x", y="y")


def _data(data: Any) -> tuple[Array, Array]:
    if not isinstance(data, Sequence) or len(data) != 2:
        got = f"{len(data)} parts" if isinstance(data, Sequence) else type(data).__name__
        raise ValueError(bad_argument("data", "a pair (X, y)", got))
    X = as_column("data[0]", data[0])
    return X, as_column("data[1]", data[1], len(X))


def _quantiles(rho: KDM, q: Sequence[float]) -> Array:
    """Of shape `(len(q), n)`."""
    with torch.no_grad():
        probabilities = torch.tensor(q, dtype=torch.float64).to(rho.components).unsqueeze(-1)
        return as_array("quantiles", rho.icdf(probabilities))[..., 0]


def _bands(ax: Axes, inputs: Array, rho: KDM, order: Array, levels: Sequence[float]) -> None:
    wide_first = sorted(levels, reverse=True)
    for i, level in enumerate(wide_first):
        low, high = _quantiles(rho, [(1 - level) / 2, (1 + level) / 2])[:, order]
        color = tint(PALETTE[0], 0.2 + 0.35 * i / max(1, len(wide_first) - 1))
        label = f"{100 * level:g}% interval"
        ax.fill_between(inputs, low, high, color=color, linewidth=0, label=label)


def _shading(
    ax: Axes, inputs: Array, rho: KDM, order: Array, shown: tuple[Array, Array] | None, n: int
) -> None:
    """p(y|x) relative to its maximum at each x."""
    ends = _quantiles(rho, [0.005, 0.995])
    low, high = ends[0].min(), ends[1].max()
    if shown is not None:
        low, high = min(low, shown[1].min()), max(high, shown[1].max())
    grid = np.linspace(low - 0.03 * (high - low), high + 0.03 * (high - low), n)
    with torch.no_grad():
        points = torch.as_tensor(grid).to(rho.components).reshape(-1, 1, 1)
        log_values = rho.log_prob(points).double().cpu().numpy()[:, order]
    relative = np.exp(log_values - log_values.max(0))
    # The map ends before its darkest blue, which would hide the mean.
    ax.pcolormesh(inputs, grid, relative, cmap="Blues", vmin=0, vmax=1.25, shading="gouraud", rasterized=True)
    ax.set_ylim(grid[0], grid[-1])
