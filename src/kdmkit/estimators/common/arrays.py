"""Arrays of users as checked tensors: rows, sample weights, training and validation rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_number
from kdmkit.training import Rows

Array = NDArray[Any]

# Fewer validation rows than this are too few to choose by.
_FEWEST_VALIDATION = 8


@dataclass(frozen=True)
class CheckedRows:
    """Rows that need no check: as many columns as the model has features, in their order, all finite."""

    array: Array


def checked_rows(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """scikit-learn's `validate_data` for numbers: a Series is one column; dates and texts raise."""
    X = X.to_frame() if hasattr(X, "to_frame") else X
    targets = {"y": y[0]} if y and options.get("y_numeric") else {}
    for name, data in {"X": X, **targets}.items():
        kinds = getattr(data, "dtypes", getattr(data, "dtype", None))
        kinds = list(kinds) if isinstance(kinds, Iterable) else [kinds]
        dates = [kind for kind in kinds if getattr(kind, "kind", "") in ("m", "M")]
        if dates:
            raise ValueError(bad_argument(name, "numbers, for example days since a date", dates[0]))
    try:
        return validate_data(estimator, X, *y, dtype=[np.float64, np.float32], **options)
    except TypeError as error:
        raise TypeError(bad_argument("X", "an array of numbers", f"{type(X).__name__} ({error})")) from error
    except ValueError as error:
        if not str(error).startswith("could not convert string"):
            raise
        wanted = "numbers (kdmkit.KDMTable takes texts and categories as they are)"
        raise ValueError(bad_argument("X", wanted, str(error))) from error


def to_tensor(X: Array) -> Tensor:
    """A tensor that owns its memory, float32 or float64 as the array is."""
    return torch.from_numpy(np.array(X, order="C"))


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's: grids of parameters are full of them."""
    return value.item() if isinstance(value, np.generic) else value


def checked_weights(sample_weight: Any, X: Array) -> Array:
    """One finite number ≥ 0 for every row, in float64; None gives ones."""
    options: Any = {"dtype": np.float64, "ensure_non_negative": True}
    return np.asarray(_check_sample_weight(sample_weight, X, **options))


def weighted_rows(sample_weight: Any, X: Array, *others: Array) -> tuple[Any, ...]:
    """Sample weights as a tensor of mean 1 (None stays None), and the rows whose weight is positive.

    Only the ratios of weights mean something: weights and a thousand times them give the same model.
    """
    if sample_weight is None:
        return None, X, *others
    try:
        weights = checked_weights(sample_weight, X)
    except (ValueError, TypeError) as error:
        raise ValueError(bad_argument("sample_weight", "a number ≥ 0 for every row", error)) from error
    present = weights > 0
    if not present.any():
        raise ValueError(bad_argument("sample_weight", "at least one positive weight", "zeros"))
    weights = weights[present] / weights.max()
    weights = weights / weights.mean()
    return torch.from_numpy(weights), X[present], *(other[present] for other in others)


def weights_of_classes(class_weight: Any, classes: Array) -> Array:
    """The weight of every class, as scikit-learn reads `class_weight`: classes that it leaves out have 1."""
    if not isinstance(class_weight, Mapping):
        wanted = "None, 'balanced' or a mapping from label to weight"
        raise TypeError(bad_argument("class_weight", wanted, repr(class_weight)))
    try:
        weights = compute_class_weight(dict(class_weight), classes=classes, y=classes)
        positive = bool((np.isfinite(weights) & (weights > 0)).all())
    except (ValueError, TypeError) as error:
        raise ValueError(bad_argument("class_weight", f"labels of {classes.tolist()}", error)) from error
    if not positive:
        raise ValueError(bad_argument("class_weight", "finite numbers > 0", dict(class_weight)))
    return weights


def class_weighted(
    class_weight: Any, weights: Float[Tensor, " n"] | None, labels: Int[Tensor, " n"], classes: Array
) -> Float[Tensor, " n"] | None:
    """Weights of rows times those of their classes, with mean 1; "balanced" gives all classes the same total.

    >>> class_weighted("balanced", None, torch.tensor([0, 0, 0, 1]), np.arange(2))
    tensor([0.6667, 0.6667, 0.6667, 2.0000], dtype=torch.float64)
    """
    if class_weight is None:
        return weights
    rows = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
    if isinstance(class_weight, str) and class_weight == "balanced":
        by_class = torch.bincount(labels, rows, len(classes)).reciprocal()
    else:
        by_class = torch.from_numpy(weights_of_classes(class_weight, classes))
    product = rows * by_class[labels]
    return product / product.mean()


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
    rows, group = first_equal(vectors).unique(return_inverse=True)
    w = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double()
    return rows, torch.bincount(group, w)


def first_equal(vectors: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """The number of the first row that equals each row."""
    order = torch.from_numpy(np.lexsort(vectors.numpy().T))
    is_new = torch.ones(len(vectors), dtype=torch.bool)
    is_new[1:] = (vectors[order[1:]] != vectors[order[:-1]]).any(1)
    # The sort is stable: the first of a group is the first in the order of the rows.
    return torch.empty_like(order).index_copy_(0, order, order[is_new][is_new.cumsum(0) - 1])


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
    """Rows to train on and rows to validate on, see `split_index`."""
    rows = Rows(tensors, None if weights is None else weights.float())
    train, validation = split_index(len(rows), fraction, seed, labels)
    return (rows, None) if validation is None else (Rows(*rows.take(train)), Rows(*rows.take(validation)))


def split_index(
    n: int, fraction: Any, seed: int, labels: Int[Tensor, " n"] | None = None
) -> tuple[Int[Tensor, " k"], Int[Tensor, " h"] | None]:
    """Numbers of the rows to train on and of those to validate on (None if they would be fewer than 8).

    Args:
        n: the number of rows.
        fraction: the share of rows to validate on.
        seed: of the split.
        labels: if given, both parts have the same label proportions, and the rows to train on have every
            label.
    """
    fraction = check_fraction(fraction)
    if fraction * n < _FEWEST_VALIDATION:
        return torch.arange(n), None
    classes = None if labels is None else labels.numpy()
    counts = np.empty(0) if classes is None else np.unique(classes, return_counts=True)[1]
    # A class with one member, or more classes than validation rows, cannot be stratified.
    is_random = len(counts) > 0 and (counts.min() < 2 or len(counts) > fraction * n)
    strata = None if is_random else classes
    train, validation = train_test_split(np.arange(n), test_size=fraction, random_state=seed, stratify=strata)
    if is_random and classes is not None:
        lost = ~np.isin(classes[validation], classes[train])
        train, validation = np.concatenate([train, validation[lost]]), validation[~lost]
    rows = torch.from_numpy(train), torch.from_numpy(validation)
    return rows if len(validation) else (torch.arange(n), None)
