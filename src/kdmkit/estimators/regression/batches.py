"""What a fitted regressor makes of a batch of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdmkit._core.checks import as_levels, check_number
from kdmkit.estimators.common.arrays import Array, CheckedRows
from kdmkit.estimators.common.arrow import answer_rows


def predict_batch(
    regressor: Any,
    rows: CheckedRows,
    *,
    target: str = "y",
    std: bool = False,
    interval: float | None = None,
    quantiles: Any = None,
) -> Any:
    """The mean of p(y|x), and what else is asked for, by the names of columns.

    Args:
        target: the name of the mean; means of several outputs are `<target> 0`, `<target> 1`, ….
        std: whether to add the standard deviation, `<target> std`.
        interval: the coverage of central intervals, `<target> low` and `<target> high`.
        quantiles: levels of quantiles, `<target> q0.1`, ….
    """

    def answer(X: CheckedRows) -> dict[str, Array]:
        mean, deviation = regressor.predict(X, return_std=True) if std else (regressor.predict(X), None)
        parts: dict[str, Array] = {"": mean}
        if deviation is not None:
            parts[" std"] = deviation
        if interval is not None:
            coverage = check_number("interval", interval, "0 < interval < 1", positive=True, below=1)
            ends = regressor.predict_interval(X, coverage=coverage)
            parts |= {" low": ends[..., 0], " high": ends[..., 1]}
        if quantiles is not None:
            levels = np.atleast_1d(as_levels("quantiles", quantiles).numpy())
            found = regressor.predict_quantiles(X, levels)
            parts |= {f" q{level:g}": found[..., i] for i, level in enumerate(levels)}
        return _columns(target, parts)

    return answer_rows(answer, rows)


def _columns(target: str, parts: dict[str, Array]) -> dict[str, Array]:
    if parts[""].ndim == 1:
        return {f"{target}{name}": values for name, values in parts.items()}
    outputs = range(parts[""].shape[1])
    return {f"{target} {i}{name}": values[:, i] for i in outputs for name, values in parts.items()}
