"""Axes, colours and legends that figures share, and the arrays that they draw."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import as_floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    # Annotations are evaluated at run time also without matplotlib.
    Axes = Any

Array = np.ndarray[Any, np.dtype[Any]]

#: Blue, vermilion, green, orange, purple, sky: Okabe and Ito's palette, without yellow (too light for lines).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
#: Paul Tol's muted scheme: ten colours that stay apart for colour-blind readers.
MANY = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#117733",
    "#999933",
    "#DDCC77",
    "#CC6677",
    "#882255",
    "#AA4499",
    "#777777",
)
INK = "#333333"
GREY = "#9A9A9A"
LIGHT = "#D9D9D9"


def matplotlib(module: str) -> Any:
    """A module of matplotlib, imported on demand."""
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        message = "kdmkit.plotting needs matplotlib, which is not installed: pip install 'kdmkit[plot]'"
        raise ImportError(message, name="matplotlib") from error
    return importlib.import_module(f"matplotlib.{module}")


def axes(ax: Axes | None, size: tuple[float, float] = (5.0, 3.4)) -> Axes:
    """`ax`, or the axes of a new figure of `size` inches."""
    if ax is None:
        _, new = matplotlib("pyplot").subplots(figsize=size, layout="constrained")
        return new
    if not hasattr(ax, "plot"):
        raise TypeError(bad_argument("ax", "matplotlib Axes", type(ax).__name__))
    return ax


def finish(ax: Axes, *, x: str = "", y: str = "", frame: bool = False) -> Axes:
    """Labelled axes with thin spines: on the left and below, or all around with a frame."""
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_color(INK)
        spine.set_visible(frame or side in ("left", "bottom"))
    ax.tick_params(width=0.6, length=3, color=INK, labelcolor=INK, labelsize="small")
    return ax


def labelled_contours(
    ax: Axes, first: Any, second: Any, values: Any, thresholds: Mapping[float, float]
) -> None:
    """Contour lines of `values` at the thresholds, each labelled with its fraction in percent."""
    lines = ax.contour(
        first, second, values, sorted(thresholds), colors=INK, linewidths=0.6, negative_linestyles="solid"
    )
    ax.clabel(lines, fmt={value: f"{part:.0%}" for value, part in thresholds.items()}, fontsize="x-small")


def legend(ax: Axes, **options: Any) -> None:
    """A legend without a frame, if anything has a label."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, frameon=False, fontsize="small", labelcolor=INK, **options)


def legend_above(ax: Axes) -> None:
    """A legend in one line above the axes, for figures that fill them."""
    n = len(ax.get_legend_handles_labels()[0])
    if not n:
        return
    look = {"handletextpad": 0.4, "columnspacing": 1.2, "handlelength": 1.4, "borderaxespad": 0.2}
    legend(ax, loc="lower left", bbox_to_anchor=(0, 1), ncols=n, **look)
    # Titles move above inset axes, but not above legends.
    room = 0.22 * ax.figure.dpi / ax.get_window_extent().height
    ax.inset_axes((0, 1, 1, room), zorder=-1).set_axis_off()


def legend_with_number(ax: Axes, text: str) -> None:
    """A legend in the upper left with a number as its title."""
    legend(
        ax,
        loc="upper left",
        title=text,
        alignment="left",
        title_fontproperties={"weight": "bold", "size": "small"},
    )


def tint(color: str, strength: float) -> Any:
    """`color` mixed with white. Unlike transparency, it looks the same in legends and where areas overlap."""
    return tuple(1 - strength * (1 - part) for part in matplotlib("colors").to_rgb(color))


def class_colors(n: int) -> Sequence[Any]:
    """n colours as unlike each other as the number permits."""
    if n <= len(PALETTE):
        return PALETTE[:n]
    if n <= len(MANY):
        return MANY[:n]
    return [matplotlib("pyplot").get_cmap("turbo")(i / (n - 1)) for i in range(n)]


# ---- arrays


def as_array(argument: str, value: Any, shape: Sequence[int | None] | None = None) -> Array:
    """Finite numbers in float64; `shape` fixes the number of dimensions and those sizes that are not None."""
    array: Array = as_floats(argument, value).double().cpu().numpy()
    if shape is None:
        return array
    sizes = zip(shape, array.shape, strict=False)
    if array.ndim != len(shape) or any(size not in (None, got) for size, got in sizes):
        inside = ", ".join("n" if size is None else str(size) for size in shape)
        wanted = f"({inside},)" if len(shape) == 1 else f"({inside})"
        raise ValueError(bad_argument(argument, f"shape {wanted}", array.shape))
    return array


def as_column(argument: str, value: Any, n: int | None = None) -> Array:
    """`(n,)` numbers, from `(n,)` or `(n, 1)`."""
    array = as_array(argument, value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return as_array(argument, array, (n,))


def parts(rho: KDM) -> tuple[Array, Array, Array]:
    """Components `(m, d)`, weights `(m,)` and standard deviations `(m, d)` of an unbatched KDM."""
    with torch.no_grad():
        components = rho.components.reshape(-1, *rho.event_shape)
        std = rho.kernel.variance(components).sqrt()
        weights = rho.weights.reshape(-1)
    return as_array("components", components), as_array("weights", weights), as_array("std", std)


def extent(rho: KDM, samples: Array | None = None, *, reach: float = 4.0) -> list[tuple[float, float]]:
    """The range of every dimension: all samples, and components to `reach` standard deviations.

    Components in the last thousandth of the weight at either end do not stretch the axes.
    """
    components, weights, std = parts(rho)
    ranges = []
    for i in range(components.shape[1]):
        order = np.argsort(components[:, i])
        below = np.cumsum(weights[order])
        seen = order[(below > 1e-3) & (below - weights[order] < below[-1] - 1e-3)]
        low = (components[seen, i] - reach * std[seen, i]).min()
        high = (components[seen, i] + reach * std[seen, i]).max()
        if samples is not None:
            low, high = min(low, samples[:, i].min()), max(high, samples[:, i].max())
        ranges.append((float(low), float(high)))
    return ranges


def log_density(rho: KDM, points: Array) -> Array:
    """log f̂ at points `(n, d)`; −∞ outside a compact support."""
    with torch.no_grad():
        values = rho.log_prob(torch.as_tensor(points).to(rho.components))
    result: Array = values.double().cpu().numpy()
    return result


def mesh(ranges: Sequence[tuple[float, float]], n: int) -> tuple[Array, Array, Array]:
    """A grid of n × n points over a rectangle: both axes, and the points `(n², 2)`."""
    n = check_count("n_grid", n, least=2)
    first, second = (np.linspace(low, high, n) for low, high in ranges)
    points = np.stack(np.meshgrid(first, second), -1).reshape(-1, 2)
    return first, second, points
