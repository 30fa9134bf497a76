"""Plain numbers as they are: probabilities as bars, matrices as colours, images in rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, check_choice, check_count
from kdmkit.plotting._canvas import INK, PALETTE, Array, Axes, as_array, axes, finish, matplotlib

# Between images, in units of their width.
_GAP = 0.06


def plot_bars(shares: Mapping[str, float], *, title: str = "", x: str = "", ax: Axes | None = None) -> Axes:
    """Horizontal bars, one for each probability, from top to bottom.

    Args:
        shares: probabilities by label.
        title: above the axes.
        x: what the labels are.
        ax: where to draw; None makes a new figure.

    Returns:
        The axes that were drawn on.

    >>> from kdmkit.plotting import plot_bars
    >>> len(plot_bars({"yes": 0.7, "no": 0.3}, title="answer").patches)
    2
    """
    if not shares:
        raise ValueError(bad_argument("shares", "one or more probabilities", "none"))
    ax = axes(ax, (5.0, 0.8 + 0.28 * len(shares)))
    places = np.arange(len(shares))
    ax.barh(places, list(shares.values()), color=PALETTE[0], height=0.8)
    ax.set_yticks(places, list(shares))
    ax.invert_yaxis()
    ax.set_title(title, color=INK, fontsize="small", loc="left")
    return finish(ax, x="probability", y=x)


def plot_matrix(
    values: Array,
    names: Sequence[str],
    *,
    links: Sequence[tuple[str, str]] = (),
    label: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A square matrix as colours, with frames around some of its entries.

    Args:
        values: `(n, n)`; the diagonal is left blank.
        names: of rows and columns.
        links: pairs of names whose entries are framed, the links of a tree for example.
        label: what the colours mean.
        ax: where to draw; None makes a new figure.

    Returns:
        The axes that were drawn on.

    >>> import numpy as np
    >>> from kdmkit.plotting import plot_matrix
    >>> ax = plot_matrix(np.array([[0.0, 0.4], [0.4, 0.0]]), ["age", "job"], links=[("age", "job")])
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['age', 'job']
    """
    shown = np.array(values, dtype=np.float64)
    if shown.shape != (len(names), len(names)):
        raise ValueError(bad_argument("values", f"shape ({len(names)}, {len(names)})", shown.shape))
    np.fill_diagonal(shown, np.nan)
    size = 1.5 + 0.3 * len(names)
    ax = axes(ax, (size + 0.8, size))
    image: Any = ax.imshow(shown, cmap="Blues", vmin=0)
    ax.set_xticks(range(len(names)), list(names), rotation=90)
    ax.set_yticks(range(len(names)), list(names))
    place = {name: index for index, name in enumerate(names)}
    rectangle = matplotlib("patches").Rectangle
    for a, b in links:
        for i, j in ((place[a], place[b]), (place[b], place[a])):
            ax.add_patch(rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=PALETTE[1], linewidth=1.2))
    if ax.figure is not None:
        ax.figure.colorbar(image, ax=ax, label=label, fraction=0.046)
    return finish(ax, frame=True)


# ---- images


def plot_image_grid(
    images: Any,
    row_labels: Iterable[Any] | None = None,
    n_columns: int = 10,
    *,
    ax: Axes | None = None,
    cmap: str = "gray",
    value_range: tuple[float, float] | None = None,
) -> Axes:
    """Images in rows, in the order in which they come.

    Args:
        images: `(n, h, w)`, or `(n, h, w, c)` with one, three or four channels.
        row_labels: a label for each row, such as the class its images were drawn for.
        n_columns: images in a row; the last row may be shorter.
        ax: where to draw; None makes a new figure.
        cmap: matplotlib's name of the colour map for images without colour.
        value_range: values shown as darkest and brightest. None is the range of all images together; for
            coloured images 0 to 1, or 0 to 255 if a value exceeds 1.

    Returns:
        The axes that were drawn on.

    >>> import torch
    >>> from kdmkit.plotting import plot_image_grid
    >>> ax = plot_image_grid(torch.rand(6, 8, 8), row_labels=["zero", "one"], n_columns=3)
    >>> len(ax.images)
    6
    """
    tiles = _tiles(images)
    n_columns = min(check_count("n_columns", n_columns), len(tiles))
    n_rows = math.ceil(len(tiles) / n_columns)
    labels = _labels(row_labels, n_rows)
    check_choice("cmap", cmap, matplotlib("pyplot").colormaps())
    low, high = _range(tiles, value_range)
    shown = np.clip((tiles - low) / (high - low), 0, 1)
    # The unit of both axes is the width of an image.
    height = tiles.shape[1] / tiles.shape[2]
    # Inches per image width: the figure is at most as large as a page.
    inch = min(0.6, 10 / max(n_columns, n_rows * height))
    ax = axes(ax, (max(1.5, inch * n_columns + 0.4), max(1.0, inch * n_rows * height + 0.2)))
    for i, tile in enumerate(shown):
        left, top = (i % n_columns) * (1 + _GAP), (i // n_columns) * (height + _GAP)
        place = (left, left + 1, top + height, top)
        ax.imshow(tile, extent=place, cmap=cmap, vmin=0, vmax=1, interpolation="nearest")
    ax.set(xlim=(0, n_columns * (1 + _GAP) - _GAP), ylim=(n_rows * (height + _GAP) - _GAP, 0))
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([row * (height + _GAP) + height / 2 for row in range(n_rows)] if labels else [], labels)
    ax.tick_params(length=0, labelcolor=INK)
    ax.spines[:].set_visible(False)
    return ax


def _tiles(images: Any) -> Array:
    tiles = as_array("images", images)
    if tiles.ndim == 4 and tiles.shape[-1] == 1:
        tiles = tiles[..., 0]
    if tiles.ndim != 3 and not (tiles.ndim == 4 and tiles.shape[-1] in (3, 4)):
        wanted = "shape (n, h, w) or (n, h, w, c) with 1, 3 or 4 channels"
        raise ValueError(bad_argument("images", wanted, tiles.shape))
    return tiles


def _labels(row_labels: Iterable[Any] | None, n_rows: int) -> list[str]:
    labels = [] if row_labels is None else [str(label) for label in row_labels]
    if row_labels is not None and len(labels) != n_rows:
        raise ValueError(bad_argument("row_labels", f"{n_rows}, one for each row", len(labels)))
    return labels


def _range(tiles: Array, value_range: tuple[float, float] | None) -> tuple[float, float]:
    if value_range is not None:
        low, high = as_array("value_range", value_range, (2,)).tolist()
        if not low < high:
            raise ValueError(bad_argument("value_range", "the lower value first", value_range))
        return low, high
    if tiles.ndim == 4:
        return 0.0, 1.0 if tiles.max() <= 1 else 255.0
    low, high = float(tiles.min()), float(tiles.max())
    return low, high if high > low else low + 1
