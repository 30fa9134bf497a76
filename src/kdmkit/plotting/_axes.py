"""Where figures come from, and what they have in common."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kdmkit._core.checks import bad_argument

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    # The annotations have to mean something at run time also without matplotlib.
    Axes = Any

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
    """Labelled axes, thin spines, none where there is nothing to read off."""
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
    """A legend without a frame, where there is anything to name."""
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
    """`color` on white paper: unlike transparency, the same in the legend and where areas overlap."""
    return tuple(1 - strength * (1 - part) for part in matplotlib("colors").to_rgb(color))


def class_colors(n: int) -> Sequence[Any]:
    """n colours as unlike each other as the number permits."""
    if n <= len(PALETTE):
        return PALETTE[:n]
    if n <= len(MANY):
        return MANY[:n]
    return [matplotlib("pyplot").get_cmap("turbo")(i / (n - 1)) for i in range(n)]
