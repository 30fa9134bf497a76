"""The rows of a fit: their weights, and the split into training and validation rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.common.checks import Array, check_number
from kdmkit.training import Rows

#: The dtypes of rows that are kept as they are.
FLOATS = [np.float64, np.float32]
# Fewer validation rows than this are too few to choose by.
_FEWEST_VALIDATION = 8


def checked_rows(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """scikit-learn's `validate_data` for numbers: a Series is one column, and dates are no numbers."""
    X = X.to_frame() if hasattr(X, "to_frame") else X
    targets = {"y": y[0]} if y and options.get("y_numeric") else {}
    for name, data in {"X": X, **targets}.items():
        kinds = getattr(data, "dtypes", getattr(data, "dtype", None))
        kinds = list(kinds) if isinstance(kinds, Iterable) else [kinds]
        dates = [kind for kind in kinds if getattr(kind, "kind", "") in ("m", "M")]
        if dates:
            raise ValueError(bad_argument(name, "numbers, for example days since a date", dates[0]))
    try:
        return validate_data(estimator, X, *y, dtype=FLOATS, **options)
    except TypeError as error:
        raise TypeError(bad_argument("X", "an array of numbers", f"{type(X).__name__} ({error})")) from error


def weighted_rows(sample_weight: Any, X: Array, *others: Array) -> tuple[Any, ...]:
    """Sample weights as a tensor of mean 1 (None stays None), and the rows whose weight is positive.

    Only the ratios of weights mean something: the same model comes of weights and of a thousand times them.
    """
    if sample_weight is None:
        return None, X, *others
    options: Any = {"dtype": np.float64, "ensure_non_negative": True}
    try:
        weights = np.asarray(_check_sample_weight(sample_weight, X, **options))
    except (ValueError, TypeError) as error:
        raise ValueError(bad_argument("sample_weight", "a number ≥ 0 for every row", error)) from error
    present = weights > 0
    if not present.any():
        raise ValueError(bad_argument("sample_weight", "at least one positive weight", "zeros"))
    weights = weights[present] / weights.max()
    weights = weights / weights.mean()
    return torch.from_numpy(weights), X[present], *(other[present] for other in others)


def merge_rows(
    x: Float[Tensor, "n d"], weights: Float[Tensor, " n"] | None, labels: Int[Tensor, " n"] | None = None
) -> tuple[Int[Tensor, " m"], Float[Tensor, " m"]]:
    """The first of every group of identical rows (with the same label, if given), and the groups' weights.

    A row that is repeated is then the same as a row with a larger weight.

    >>> rows, weights = merge_rows(torch.tensor([[5.0], [2.0], [5.0]]), None)
    >>> rows, weights
    (tensor([0, 1]), tensor([2., 1.], dtype=torch.float64))
    """
    vectors = x if labels is None else torch.cat([x, labels.to(x).unsqueeze(1)], 1)
    order = torch.from_numpy(np.lexsort(vectors.numpy().T))
    is_new = torch.ones(len(x), dtype=torch.bool)
    is_new[1:] = (vectors[order[1:]] != vectors[order[:-1]]).any(1)
    # The sort is stable: the first of a group is the first in the order of the rows.
    first, group = order[is_new], is_new.cumsum(0) - 1
    w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double()
    total = torch.bincount(group, w[order])
    order = first.argsort()
    return first[order], total[order]


def check_fraction(fraction: Any) -> float:
    """Checks the share of rows to validate on."""
    return check_number("validation_fraction", fraction, "0 ≤ validation_fraction < 1", below=1)


def split_rows(
    tensors: tuple[Tensor, ...],
    weights: Float[Tensor, " n"] | None,
    fraction: Any,
    seed: int,
    labels: Int[Tensor, " n"] | None = None,
) -> tuple[Rows, Rows | None]:
    """Rows to train on and rows to validate on (None where they would be fewer than 8).

    Args:
        tensors, weights: of all rows.
        fraction: the share of rows to validate on.
        seed: of the split.
        labels: where given, both parts have the same label proportions, and the rows to train on have every
            label.
    """
    fraction = check_fraction(fraction)
    rows = Rows(tensors, None if weights is None else weights.float())
    if fraction * len(rows) < _FEWEST_VALIDATION:
        return rows, None
    keep, held = _split_index(len(rows), fraction, seed, labels)
    if len(held) == 0:
        return rows, None
    return Rows(*rows.take(keep)), Rows(*rows.take(held))


def split_index(n: int, fraction: Any, seed: int) -> tuple[Int[Tensor, " k"], Int[Tensor, " h"] | None]:
    """Numbers of the rows to train on and of those to validate on (None where they would be fewer than 8)."""
    fraction = check_fraction(fraction)
    if fraction * n < _FEWEST_VALIDATION:
        return torch.arange(n), None
    return _split_index(n, fraction, seed, None)


def _split_index(n: int, fraction: float, seed: int, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    classes = None if labels is None else labels.numpy()
    if classes is not None:
        counts = np.bincount(classes)
        # A class with one member, or more classes than validation rows, cannot be stratified.
        if counts[counts > 0].min() < 2 or (counts > 0).sum() > fraction * n:
            return _random_split(n, fraction, seed, classes)
    keep, held = train_test_split(np.arange(n), test_size=fraction, random_state=seed, stratify=classes)
    return torch.from_numpy(keep), torch.from_numpy(held)


def _random_split(n: int, fraction: float, seed: int, classes: Array) -> tuple[Tensor, Tensor]:
    """A random split, except that classes without a row to train on are moved there."""
    keep, held = train_test_split(np.arange(n), test_size=fraction, random_state=seed)
    lost = ~np.isin(classes[held], classes[keep])
    return torch.from_numpy(np.concatenate([keep, held[lost]])), torch.from_numpy(held[~lost])
