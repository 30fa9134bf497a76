"""Probabilities as bars, and matrices of numbers between columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.plotting._canvas import INK, PALETTE, Array, Axes, axes, finish, matplotlib


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
