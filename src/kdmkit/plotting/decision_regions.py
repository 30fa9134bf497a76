"""Decision regions of a classifier of two features, and the density of the features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import as_levels, bad_argument
from kdmkit.distributions import JointKDM
from kdmkit.plotting._canvas import (
    Array,
    Axes,
    as_array,
    axes,
    class_colors,
    finish,
    labelled_contours,
    legend,
    log_density,
    matplotlib,
    mesh,
)

Function = Callable[[Array], Any]


def plot_decision_regions(
    model: JointKDM | Function,
    X: Any,
    y: Any = None,
    *,
    ax: Axes | None = None,
    log_prob: Function | None = None,
    classes: Iterable[Any] | None = None,
    levels: Sequence[float] = (0.5, 0.9, 0.99),
    n_grid: int = 200,
) -> Axes:
    """Class probabilities as a blend of the classes' colours, and log p(x) as contour lines.

    Each line encloses the given fraction of the points X: beyond the last one there were hardly any data, and
    a prediction is a guess.

    Args:
        model: a JointKDM of a two-dimensional x and a discrete y; or a function from points `(n, 2)` to
            probabilities `(n, k)` such as a classifier's `predict_proba`.
        X: points `(n, 2)` to show; they also set the limits of the axes.
        y: their classes `(n,)`: numbers 0 … k−1, or members of `classes`.
        ax: where to draw; None makes a new figure.
        log_prob: a function from points to log p(x) such as a classifier's `score_samples`; a JointKDM needs
            none.
        classes: names of the classes in the order of the probabilities, such as a classifier's `classes_`.
        levels: fractions of the points inside each contour line; empty for no lines.
        n_grid: points of the grid along each side.

    Returns:
        The axes that were drawn on.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.plotting import plot_decision_regions
    >>> X, y = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 1])
    >>> components = {"x": X, "y": torch.eye(2)[y]}
    >>> joint = kdm.JointKDM(components, None, {"x": kdm.RBF(0.8), "y": kdm.Cosine()})
    >>> plot_decision_regions(joint, X, y, classes=["left", "right"]).get_xlabel()
    '$x_1$'
    """
    points = as_array("X", X, (None, 2))
    fractions = as_levels("levels", levels, least=0).tolist()
    predict, log_prob = _functions(model, log_prob)
    ranges = [_padded(points[:, i]) for i in range(2)]
    first, second, grid = mesh(ranges, n_grid)
    probs = as_array("model(X)", predict(grid), (len(grid), None))
    names = _names(classes, probs.shape[1])
    index = None if y is None else _indices(y, classes, len(points), len(names))
    ax = axes(ax, (5.0, 4.2))
    colors = matplotlib("colors").to_rgba_array(class_colors(len(names)))[:, :3]
    blend = 1 - 0.5 * (1 - np.clip(probs @ colors, 0, 1))
    image = blend.reshape(n_grid, n_grid, 3)
    ax.imshow(image, extent=(*ranges[0], *ranges[1]), origin="lower", aspect="auto", interpolation="bilinear")
    if log_prob is not None and fractions:
        values = np.asarray(log_prob(grid)).reshape(n_grid, n_grid)
        _lines(ax, first, second, values, np.asarray(log_prob(points)), fractions)
    if index is not None:
        _points(ax, points, index, names, colors)
    ax.set(xlim=ranges[0], ylim=ranges[1])
    return finish(ax, x="$x_1$", y="$x_2$", frame=True)


def _functions(model: Any, log_prob: Function | None) -> tuple[Function, Function | None]:
    """The functions that give class probabilities and log p(x)."""
    if not isinstance(model, JointKDM):
        if not callable(model):
            wanted = "a JointKDM or a function such as a classifier's predict_proba"
            raise TypeError(bad_argument("model", wanted, type(model).__name__))
        return model, log_prob
    if set(model.variables) != {"x", "y"} or model.batch_shape:
        got = f"{list(model.variables)} of batch shape {tuple(model.batch_shape)}"
        raise ValueError(bad_argument("model", "one joint of the variables x and y", got))
    if model.event_shapes["x"] != (2,) or not model.kernels["y"].discrete:
        got = f"x of shape {tuple(model.event_shapes['x'])}, y with the kernel {model.kernels['y']}"
        raise ValueError(bad_argument("model", "a two-dimensional x and a discrete y", got))
    like = model.components["x"]

    def predict(points: Array) -> Any:
        with torch.no_grad():
            return model.infer(x=torch.as_tensor(points).to(like), target="y").probs

    if log_prob is None and model.kernels["x"].has_density:
        marginal = model.marginal("x")
        log_prob = lambda points: log_density(marginal, points)  # noqa: E731
    return predict, log_prob


def _padded(values: Array) -> tuple[float, float]:
    """The range of the values, and a fifth of it on either side."""
    low, high = float(values.min()), float(values.max())
    pad = 0.2 * (high - low) or 1.0
    return low - pad, high + pad


def _names(classes: Iterable[Any] | None, k: int) -> list[str]:
    names = [str(i) for i in range(k)] if classes is None else [str(name) for name in classes]
    if len(names) != k:
        raise ValueError(bad_argument("classes", f"{k} names, one for each probability", len(names)))
    return names


def _indices(y: Any, classes: Iterable[Any] | None, n: int, k: int) -> Array:
    """The number of each point's class."""
    labels = np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
    if labels.shape != (n,):
        raise ValueError(bad_argument("y", f"shape ({n},), a class for each point", labels.shape))
    members = list(range(k)) if classes is None else list(classes)
    if np.issubdtype(labels.dtype, np.integer) and not set(labels.tolist()) <= set(members):
        # The labels are numbers of classes, whose names are for the legend only.
        members = list(range(k))
    places = {name: i for i, name in enumerate(members)}
    unknown = [label for label in labels.tolist() if label not in places]
    if unknown:
        raise ValueError(bad_argument("y", f"classes among {members}", repr(unknown[0])))
    return np.array([places[label] for label in labels.tolist()])


def _lines(
    ax: Axes, first: Array, second: Array, values: Array, at_points: Array, levels: Sequence[float]
) -> None:
    """Contours of log p(x) that enclose fractions of the points."""
    seen = np.sort(at_points[np.isfinite(at_points)])[::-1]
    if not len(seen):
        return
    thresholds = {float(seen[min(len(seen) - 1, int(level * len(seen)))]): level for level in levels}
    labelled_contours(ax, first, second, np.ma.masked_invalid(values), thresholds)


def _points(ax: Axes, points: Array, index: Array, names: Sequence[str], colors: Array) -> None:
    for i, name in enumerate(names):
        chosen = points[index == i]
        ax.scatter(
            chosen[:, 0],
            chosen[:, 1],
            s=14,
            color=[colors[i]],
            edgecolors="white",
            linewidths=0.4,
            label=name,
        )
    legend(ax, loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.2)
