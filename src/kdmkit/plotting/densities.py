"""Densities in one and two dimensions, and predictive densities along an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import as_levels, bad_argument, check_count, check_number
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import check_density
from kdmkit.plotting._canvas import (
    INK,
    LIGHT,
    PALETTE,
    Array,
    Axes,
    as_array,
    as_column,
    axes,
    extent,
    finish,
    labelled_contours,
    legend,
    legend_above,
    log_density,
    matplotlib,
    mesh,
    parts,
    tint,
)

# With more components, single stems cannot be distinguished.
_MANY = 60


def plot_density_1d(
    rho: KDM,
    ax: Axes | None = None,
    samples: Any = None,
    *,
    show_components: bool = True,
    n_grid: int = 512,
) -> Axes:
    """The density f̂(x) of a one-dimensional KDM, its components, and a histogram of data.

    A component is a stem as high as its share of the density at its centre, w_j·M_j. With many components,
    they are marks on the axis, as dark as their weight.

    Args:
        rho: a KDM with event shape `(1,)` and no batch.
        ax: where to draw; None makes a new figure.
        samples: data for the histogram, `(n,)` or `(n, 1)`.
        show_components: whether to draw the components.
        n_grid: points of the curve, besides the components' centres.

    Returns:
        The axes that were drawn on.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.plotting import plot_density_1d
    >>> rho = kdm.KDM(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.3, 0.7]), kdm.RBF(0.5))
    >>> ax = plot_density_1d(rho, samples=rho.sample((200,)))
    >>> ax.get_ylabel()
    'density'
    """
    check_density(rho, 1, ())
    n_grid = check_count("n_grid", n_grid, least=2)
    data = None if samples is None else as_column("samples", samples)
    ((low, high),) = extent(rho, None if data is None else data[:, None])
    ax = axes(ax)
    if data is not None:
        ax.hist(data, _bins(data), density=True, color=LIGHT, edgecolor="white", linewidth=0.4, label="data")
    grid = _grid(rho, low, high, n_grid)
    density = np.exp(log_density(rho, grid[:, None]))
    ax.plot(grid, density, color=PALETTE[0], linewidth=1.8, label="density")
    if show_components:
        _components_1d(ax, rho)
    ax.set_xlim(low, high)
    ax.set_ylim(bottom=0)
    legend(ax)
    return finish(ax, x="x", y="density")


def _bins(data: Array) -> int:
    """Freedman and Diaconis' number of bins, at most 80 and at least 30 (fewer for small samples)."""
    n = len(np.histogram_bin_edges(data, "fd")) - 1
    return int(np.clip(n, min(30, 1 + len(data) // 10), 80))


def _grid(rho: KDM, low: float, high: float, n: int) -> Array:
    """Equidistant points, and the centres of components, whose peaks may lie between those."""
    centres = np.unique(parts(rho)[0][:, 0])
    inside = centres[(centres > low) & (centres < high)]
    return np.union1d(np.linspace(low, high, n), inside[:: max(1, len(inside) // n)])


def _components_1d(ax: Axes, rho: KDM) -> None:
    components, weights, _ = parts(rho)
    centres, label = components[:, 0], f"{len(weights):,} components"
    shade = weights / weights.max()
    if len(weights) > _MANY:
        colors = matplotlib("colors").to_rgba_array(PALETTE[1], 0.15 + 0.6 * shade)
        # Heights are fractions of the axes.
        ax.vlines(centres, 0, 0.035, transform=ax.get_xaxis_transform(), colors=colors, linewidth=0.7)
        ax.plot([], [], color=PALETTE[1], linewidth=1, label=label)
        return
    peak = np.exp(rho.kernel.log_norm(rho.components).detach().double().cpu().numpy())
    heights = weights * peak
    ax.vlines(centres, 0, heights, color=PALETTE[1], linewidth=1.0)
    ax.plot(centres, heights, "o", color=PALETTE[1], markersize=3.5, label=label)


def plot_density_2d(
    rho: KDM,
    ax: Axes | None = None,
    samples: Any = None,
    *,
    show_components: bool = True,
    levels: Sequence[float] = (0.5, 0.9, 0.99),
    depth: float = 12.0,
    n_grid: int = 160,
) -> Axes:
    """The log-density of a two-dimensional KDM as a map, and the smallest regions that hold most of it.

    Args:
        rho: a KDM with event shape `(2,)` and no batch.
        ax: where to draw; None makes a new figure.
        samples: data `(n, 2)`, drawn as dots.
        show_components: whether to draw the components, with areas in proportion to their weights.
        levels: probabilities of the regions whose borders are drawn.
        depth: how many nats below its maximum the map ends.
        n_grid: points of the grid along each side.

    Returns:
        The axes that were drawn on.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.plotting import plot_density_2d
    >>> ax = plot_density_2d(kdm.KDM(torch.eye(2), None, kdm.RBF(0.5)))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('$x_1$', '$x_2$')
    """
    check_density(rho, 2, ())
    regions = as_levels("levels", levels, least=0).tolist()
    depth = check_number("depth", depth, "a finite number > 0", positive=True)
    data = None if samples is None else as_array("samples", samples, (None, 2))
    ranges = extent(rho, data)
    first, second, points = mesh(ranges, n_grid)
    log_values = log_density(rho, points).reshape(n_grid, n_grid)
    ax = axes(ax, (5.2, 4.2))
    _map(ax, ranges, log_values, depth)
    if regions:
        labelled_contours(ax, first, second, log_values, _thresholds(log_values, regions))
    if data is not None:
        ax.plot(*data.T, "o", color=INK, markersize=1.6, alpha=0.5, markeredgewidth=0, label="data")
    if show_components:
        _components_2d(ax, rho)
    ax.set(xlim=ranges[0], ylim=ranges[1])
    legend_above(ax)
    return finish(ax, x="$x_1$", y="$x_2$", frame=True)


def _map(ax: Axes, ranges: Sequence[tuple[float, float]], log_values: Array, depth: float) -> None:
    top = log_values.max()
    image = ax.imshow(
        np.maximum(log_values, top - depth),
        extent=(*ranges[0], *ranges[1]),
        origin="lower",
        aspect="auto",
        cmap="Blues",
        vmin=top - depth,
        # Beyond the maximum: the darkest colours would hide what is drawn on the map.
        vmax=top + 0.8 * depth,
        interpolation="bilinear",
    )
    bar = ax.figure.colorbar(image, ax=ax, boundaries=np.linspace(top - depth, top, 128), extend="min")
    bar.outline.set_linewidth(0.6)
    bar.ax.tick_params(width=0.6, length=3, labelsize="small", color=INK, labelcolor=INK)
    bar.locator = matplotlib("ticker").MaxNLocator(5)
    bar.update_ticks()
    bar.set_label("log-density", color=INK)


def _thresholds(log_values: Array, levels: Sequence[float]) -> dict[float, float]:
    """Log-densities at the borders of highest-density regions, with the probability inside each."""
    ordered = np.sort(log_values.ravel())[::-1]
    mass = np.cumsum(np.exp(ordered - ordered[0]))
    places = np.searchsorted(mass / mass[-1], np.asarray(levels))
    return {float(ordered[min(i, len(ordered) - 1)]): share for i, share in zip(places, levels, strict=True)}


def _components_2d(ax: Axes, rho: KDM) -> None:
    components, weights, _ = parts(rho)
    sizes = 60 * weights / weights.max() if len(weights) <= _MANY else 14 * weights / weights.max()
    ax.scatter(
        components[:, 0],
        components[:, 1],
        s=np.maximum(sizes, 0.5),
        color=PALETTE[1],
        edgecolors="white",
        linewidths=0.5 if len(weights) <= _MANY else 0,
        alpha=0.9,
        label=f"{len(weights):,} components",
    )


# ---- predictive densities


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
    """Quantiles of shape `(len(q), n)`."""
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
