"""How synthetic rows compare with real ones: columns, pairs, classifiers that tell them apart, copies.

Rows are mappings from column to array, or frames. Numbers are arrays of numbers, a missing one is NaN.
Everything else is levels: arrays of objects, texts or booleans, None where a cell is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count

Columns = dict[str, np.ndarray]

# The most levels of a category that boosted trees take; the rarest ones become missing.
_MOST_LEVELS = 254
_FOLDS = 3
# Distances that differ by less are equal, up to rounding in single precision.
_TIE = 1e-5
# Bins of numbers beside levels, and decimals that count, as in sdmetrics.
_BINS, _DECIMALS = 10, 14


def column_similarity(real: Any, synthetic: Any) -> dict[str, float]:
    """How alike the distributions of each column are: 1, equal; 0, no value in common.

    Missing cells are left out. Of numbers 1 − D, where D is the largest distance of the two distribution
    functions (Kolmogorov and Smirnov); of levels 1 − ½ Σ |share − share|. These are `KSComplement` and
    `TVComplement` of sdmetrics.

    Args:
        real, synthetic: rows, whose common columns are compared.

    Returns:
        The similarity by column; NaN if a part has missing cells only.

    >>> from kdmkit.metrics import column_similarity
    >>> real = {"x": [1.0, 2, 3, 4], "y": ["a", "a", "b", "b"]}
    >>> column_similarity(real, {"x": [1.0, 2, 3, 5], "y": ["a", "a", "a", "b"]})
    {'x': 0.75, 'y': 0.75}
    """
    a, b = _both(real, synthetic)
    return {name: _similarity(*(present_cells(part[name]) for part in (a, b))) for name in a}


def _similarity(a: np.ndarray, b: np.ndarray) -> float:
    if not len(a) or not len(b):
        return float("nan")
    if a.dtype == object:
        return 1 - _variation(a, b)
    a, b = np.sort(a.round(_DECIMALS)), np.sort(b.round(_DECIMALS))
    places = np.concatenate([a, b])
    steps = [np.searchsorted(part, places, side="right") / len(part) for part in (a, b)]
    return float(1 - np.abs(steps[0] - steps[1]).max())


def pair_similarity(real: Any, synthetic: Any) -> dict[tuple[str, str], float]:
    """How alike the dependence of each pair of columns is: 1, equal.

    Of two numbers 1 − ½ |r − r′|, where r is Pearson's correlation; NaN if one of them is constant. Of other
    pairs 1 − ½ Σ |share − share| over the cells of the table of both columns, with numbers in ten bins of
    equal width and missing cells as a level. These are `CorrelationSimilarity` and `ContingencySimilarity`
    of sdmetrics.

    Args:
        real, synthetic: rows, whose common columns are compared.

    Returns:
        The similarity by two columns.

    >>> from kdmkit.metrics import pair_similarity
    >>> real = {"x": [1.0, 2, 3, 4], "y": ["a", "a", "b", "b"]}
    >>> pair_similarity(real, {"x": [1.0, 2, 3, 4], "y": ["b", "a", "b", "b"]})
    {('x', 'y'): 0.75}
    """
    a, b = _both(real, synthetic)
    codes = {name: _binned(a[name], b[name]) for name in a}
    similarity = {}
    for left, right in combinations(a, 2):
        if a[left].dtype != object and a[right].dtype != object:
            first, second = (_correlation(part[left], part[right]) for part in (a, b))
            similarity[left, right] = 1 - abs(first - second) / 2
        else:
            width = 1 + max(int(code.max(initial=0)) for code in codes[right])
            cells = [one * width + other for one, other in zip(codes[left], codes[right], strict=True)]
            similarity[left, right] = 1 - _variation(*cells)
    return similarity


def _variation(a: np.ndarray, b: np.ndarray) -> float:
    """½ Σ |share − share| over all values."""
    values, place = np.unique(np.concatenate([a, b]), return_inverse=True)
    parts = np.split(place.ravel(), [len(a)])
    shares = [np.bincount(part, minlength=len(values)) / len(part) for part in parts]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _binned(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """The codes of the values of two parts: levels, or bins of the first; a missing cell has a code, too."""
    if a.dtype == object:
        texts = [np.where(_missing(part), "m", np.char.add("p", part.astype(str))) for part in (a, b)]
        codes = np.unique(np.concatenate(texts), return_inverse=True)[1].ravel()
        return np.split(codes, [len(a)])
    present = present_cells(a)
    edges = np.histogram_bin_edges(present if len(present) else np.zeros(1), _BINS)
    edges[0], edges[-1] = -np.inf, np.inf
    return [np.digitize(part, edges) for part in (a, b)]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    there = ~(np.isnan(a) | np.isnan(b))
    a, b = a[there], b[there]
    if len(a) < 2 or not np.ptp(a) or not np.ptp(b):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


# ---- classifiers


def c2st(real: Any, synthetic: Any, classifier: Callable[[list[bool]], Any] | None = None) -> float:
    """Classifier two-sample test: 1 if a classifier cannot tell the rows apart, 0 if it always can.

    1 − (2·max(AUC, ½) − 1), the mean over three shuffled stratified folds, by the columns of both parts.

    Args:
        real, synthetic: rows; as many of each make the clearest test.
        classifier: a function from a list, which says for each column whether it has codes of levels, to an
            unfitted classifier; None: scikit-learn's histogram boosting with default settings.

    Returns:
        One number between 0 and 1.

    >>> import numpy as np
    >>> from kdmkit.metrics import c2st
    >>> x = np.random.default_rng(0).normal(size=400)
    >>> c2st({"x": x[:200]}, {"x": x[200:] + 3}) < 0.3
    True
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    make = _boosting if classifier is None else classifier
    parts, is_level = _features(*_both(real, synthetic))
    x, y = np.concatenate(parts), np.repeat([1, 0], [len(part) for part in parts])
    scores = []
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(x, y):
        model = make(is_level).fit(x[train], y[train])
        area = roc_auc_score(y[test], model.predict_proba(x[test])[:, 1])
        scores.append(2 - 2 * max(float(area), 0.5))
    return float(np.mean(scores))


def _boosting(is_level: list[bool]) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(categorical_features=is_level, random_state=0)


def boosting_score(train: Any, test: Any, target: str, *, seed: int = 0) -> float:
    """How well histogram boosting that learned from some rows predicts others (scikit-learn's defaults).

    Of levels the area under the ROC curve, of several the mean over levels, each against the others; of
    numbers R². With synthetic rows to learn from and real ones to test on, it tells what they are good for.

    Args:
        train: rows to learn from.
        test: rows to predict.
        target: the column to predict; rows without it are left out.
        seed: of the boosting.

    Returns:
        The score; NaN if the rows to learn from have a single level.

    >>> import numpy as np
    >>> from kdmkit.metrics import boosting_score
    >>> x = np.random.default_rng(0).normal(size=400)
    >>> rows = {"x": x, "y": np.where(x > 0, "high", "low")}
    >>> boosting_score(rows, rows, "y") > 0.99
    True
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.metrics import r2_score

    a, b = _both(train, test)
    if target not in a:
        raise ValueError(bad_argument("target", "a column of both parts", repr(target)))
    labels = [part.pop(target) for part in (a, b)]
    parts, is_level = _features(a, b)
    there = [~_missing(part) for part in labels]
    x, x_test = (part[rows] for part, rows in zip(parts, there, strict=True))
    y, y_test = (part[rows] for part, rows in zip(labels, there, strict=True))
    options: dict[str, Any] = {"categorical_features": is_level, "random_state": seed}
    if y.dtype != object:
        model = HistGradientBoostingRegressor(**options).fit(x, y)
        return float(r2_score(y_test, model.predict(x_test)))
    if len(set(y.tolist())) < 2:
        return float("nan")
    model = HistGradientBoostingClassifier(**options).fit(x, y.astype(str))
    return level_auc(y_test.astype(str), model.predict_proba(x_test), list(model.classes_))


def level_auc(labels: Any, probs: Any, levels: Sequence[Any]) -> float:
    """The area under the ROC curve; of several levels the mean over levels, each against the others.

    Args:
        labels: the true levels, `(n,)`.
        probs: the probability of every level, `(n, levels)`.
        levels: their names, in the order of `probs`.

    Returns:
        The area; NaN if the labels have a single level.

    >>> from kdmkit.metrics import level_auc
    >>> level_auc(["a", "b"], np.array([[0.9, 0.1], [0.2, 0.8]]), ["a", "b"])
    1.0
    """
    from sklearn.metrics import roc_auc_score

    labels = np.asarray(labels)
    areas = [
        roc_auc_score(labels == level, probs[:, i])
        for i, level in enumerate(levels)
        if 0 < np.mean(labels == level) < 1
    ]
    return float(np.mean(areas)) if areas else float("nan")


def _features(*parts: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], list[bool]]:
    """Several parts as matrices, with codes of levels and NaN for missing; which columns are levels."""
    is_level = [column.dtype == object for column in parts[0].values()]
    matrices = [np.empty((_count(part), len(is_level))) for part in parts]
    for i, name in enumerate(parts[0]):
        levels = _levels(*(part[name] for part in parts)) if is_level[i] else []
        places = {level: code for code, level in enumerate(levels)}
        for matrix, part in zip(matrices, parts, strict=True):
            cells = part[name]
            matrix[:, i] = (
                [np.nan if cell is None else places.get(str(cell), np.nan) for cell in cells]
                if is_level[i]
                else cells
            )
    return matrices, is_level


def _levels(*columns: np.ndarray) -> list[str]:
    """The most frequent levels of some columns together, sorted."""
    cells = np.concatenate(columns)
    levels, counts = np.unique(cells[~_missing(cells)].astype(str), return_counts=True)
    return sorted(levels[np.argsort(-counts, kind="stable")[:_MOST_LEVELS]].tolist())


# ---- copies


def dcr_share(synthetic: Any, seen: Any, unseen: Any, *, block: int = 1024) -> float:
    """The share of synthetic rows that are nearer to a seen row than to every unseen one; ties count ½.

    The distance to the closest record (DCR) is Σ |x − x′| / range over numbers, and 2 for every level that
    differs; a missing number is a level, and counts as the column's mean. Both parts of the real rows should
    have the same size: then ½ is ideal, and copies of seen rows give 1.

    Args:
        synthetic: rows of a model; only their columns count.
        seen: the real rows that the model was fitted to.
        unseen: other real rows.
        block: synthetic rows whose distances to all real rows are in memory at once.

    Returns:
        The share.

    >>> from kdmkit.metrics import dcr_share
    >>> dcr_share({"x": [1.0, 2.0]}, {"x": [1.0, 2.1]}, {"x": [5.0, 6.0]})
    1.0
    """
    return share_nearer(*nearest_distances(synthetic, seen, unseen, block=block))


def share_nearer(to_seen: Any, to_unseen: Any) -> float:
    """The share of rows that are nearer to a seen row than to every unseen one, by their distances."""
    gap = torch.as_tensor(to_unseen) - torch.as_tensor(to_seen)
    return float(torch.where(gap.abs() <= _TIE, 0.5, (gap > 0).float()).mean())


def nearest_distances(rows: Any, *real: Any, block: int = 1024) -> list[np.ndarray]:
    """The distance of every row to the nearest row of each real part.

    It is Σ |x − x′| / range over numbers, and 2 for every level that differs. A missing number is a level,
    and counts as the column's mean beside others.
    """
    block = check_count("block", block)
    parts = _both(rows, *real)
    events = _events(*parts)
    return [_nearest(events[0], part, block).numpy() for part in events[1:]]


def _events(*parts: Mapping[str, np.ndarray]) -> list[tuple[Tensor, Tensor]]:
    """For every part its numbers over their range among the real rows, and the indicators of its levels."""
    numbers: list[list[np.ndarray]] = [[] for _ in parts]
    levels: list[list[np.ndarray]] = [[] for _ in parts]
    for name, column in parts[0].items():
        cells = [part[name] for part in parts]
        if column.dtype == object:
            names = np.array(_levels(*cells), dtype=object)
            for place, part in zip(levels, cells, strict=True):
                missing = _missing(part)
                texts = np.where(missing, "", part.astype(str)).astype(object)
                indicators = texts[:, None] == names
                place.append(np.column_stack([indicators & ~missing[:, None], ~indicators.any(1) | missing]))
            continue
        real = present_cells(np.concatenate(cells[1:]))
        scale, mean = (np.ptp(real) or 1.0, real.mean()) if len(real) else (1.0, 0.0)
        is_empty = [np.isnan(part) for part in cells]
        for i, part in enumerate(cells):
            numbers[i].append(np.where(is_empty[i], mean, part)[:, None] / scale)
            if any(mask.any() for mask in is_empty):
                levels[i].append(np.column_stack([is_empty[i], ~is_empty[i]]))
    return [
        (_matrix(columns, part), _matrix(indicators, part))
        for columns, indicators, part in zip(numbers, levels, parts, strict=True)
    ]


def _matrix(columns: list[np.ndarray], part: Mapping[str, np.ndarray]) -> Tensor:
    return torch.from_numpy(
        np.concatenate([np.zeros((_count(part), 0)), *columns], axis=1).astype(np.float32)
    )


def _nearest(rows: tuple[Tensor, Tensor], real: tuple[Tensor, Tensor], block: int) -> Float[Tensor, " n"]:
    n_categories = rows[1].sum(1).max() if rows[1].shape[1] else torch.zeros(())
    distances = []
    for numbers, levels in zip(rows[0].split(block), rows[1].split(block), strict=True):
        distance = torch.cdist(numbers, real[0], p=1)
        distance += 2 * (n_categories - levels @ real[1].T)
        distances.append(distance.min(1).values)
    return torch.cat(distances)


def copied(rows: Any, real: Any) -> np.ndarray:
    """Which rows equal a real row in every column of both, missing cells included."""
    parts = _both(rows, real)
    keys = [list(zip(*(_keys(column) for column in part.values()), strict=True)) for part in parts]
    there = set(keys[1])
    return np.array([key in there for key in keys[0]], dtype=bool)


def _keys(column: np.ndarray) -> list[Any]:
    return [None if gone else cell for gone, cell in zip(_missing(column), column.tolist(), strict=True)]


# ---- columns


def _both(*parts: Any) -> list[Columns]:
    """The columns that all parts have, in the order of the first, as numbers in float64 or objects."""
    every = [list(getattr(part, "columns", part)) for part in parts]
    names = [name for name in every[0] if all(name in some for some in every)]
    if not names:
        raise ValueError(bad_argument("rows", "parts with at least one column in common", "none"))
    columns = [{str(name): _as_column(part[name]) for name in names} for part in parts]
    for name in map(str, names):
        if len({part[name].dtype == object for part in columns}) > 1:
            for part in columns:
                part[name] = part[name].astype(object)
    return columns


def _as_column(cells: Any) -> np.ndarray:
    array = np.asarray(cells)
    if array.dtype.kind in "Mm":
        return np.where(np.isnat(array), np.nan, array.astype("int64").astype(np.float64))
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    array = array.astype(object)
    array[_missing(array)] = None
    return array


def _missing(column: np.ndarray) -> np.ndarray:
    if column.dtype != object:
        return np.isnan(column)
    return np.array([cell is None or cell != cell for cell in column], dtype=bool)


def present_cells(column: np.ndarray) -> np.ndarray:
    """The cells of a column that are there."""
    return column[~_missing(column)]


def _count(part: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(part.values())))
