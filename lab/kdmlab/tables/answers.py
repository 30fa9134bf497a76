"""Answers of a fitted table: 90 % intervals of held-out cells, and the time of a question."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kdmkit import KDMTable
from kdmlab.tables.data import Array, count, is_missing, sample_rows, take

COVERAGE = 0.9
#: Test rows whose cells are judged.
INTERVAL_ROWS = 2000
QUESTIONS = 200
_WARM_UP = 10
# A range in a question holds this share of the column's rows.
_RANGE_SHARE = 0.2


def interval_scores(table: KDMTable, test: Mapping[str, Array]) -> dict[str, Any]:
    """Coverage and width of 90 % intervals of every number given the rest of its row.

    Widths are in units of the column's standard deviation. `coverage`, `claimed` and `width` are means over
    all cells. `claimed` is what the model says that the intervals hold: more than 90 % where one value has
    more. `coverage_other` and `claimed_other` are the means over the cells without such a value.
    """
    rows = sample_rows(test, INTERVAL_ROWS)
    coverage, claimed, width, cells = {}, {}, {}, {}
    others: list[Array] = []
    for name, column in rows.items():
        if column.dtype == object or name not in table.columns_:
            continue
        some = take(rows, ~is_missing(column))
        rest = {other: cells for other, cells in some.items() if other != name}
        low, high = table.predict_interval(rest, name, COVERAGE).T
        true = np.asarray(some[name], np.float64)
        slack = 1e-6 * np.abs(true)  # ends of intervals are computed in single precision
        inside = (low <= true + slack) & (true - slack <= high)
        probability = table.interval_probability(rest, name, COVERAGE)
        coverage[name], claimed[name] = float(np.mean(inside)), float(np.mean(probability))
        others.append(np.stack([inside, probability])[:, (low < high) | (probability < COVERAGE)])
        width[name] = float(np.mean(high - low) / (np.std(true) or 1.0))
        cells[name] = len(true)
    weights = list(cells.values())
    return {
        "coverage": float(np.average(list(coverage.values()), weights=weights)),
        "claimed": float(np.average(list(claimed.values()), weights=weights)),
        **_means(np.concatenate(others, 1)),
        "width": float(np.average(list(width.values()), weights=weights)),
        "coverage_by_column": coverage,
        "claimed_by_column": claimed,
        "width_by_column": width,
        "cells": sum(weights),
    }


def _means(others: Array) -> dict[str, float]:
    """Means of the observed and of the claimed coverage, if there are such cells."""
    if not others.shape[1]:
        return {}
    return dict(zip(("coverage_other", "claimed_other"), others.mean(1).tolist(), strict=True))


def query_times(table: KDMTable, train: Mapping[str, Array], seed: int) -> dict[str, Any]:
    """Milliseconds of a question with its answer, medians and 95 % quantiles over random questions.

    `query_processor_ms_…` are milliseconds of the processor, which other programs do not change much.

    A question asks for a column given one to four others: values, ranges and sets. The answer is read: the
    probabilities of the levels, or the mean and a 90 % interval of a number.
    """
    times: dict[str, list[float]] = {"levels": [], "numbers": [], "query_processor": []}
    for i, (target, given) in enumerate(_questions(table, train, seed)):
        start, processor = time.perf_counter(), time.process_time()
        kind = "levels" if train[target].dtype == object else "numbers"
        _ask(table, target, given, kind)
        if i >= _WARM_UP:
            times[kind].append(1000 * (time.perf_counter() - start))
            times["query_processor"].append(1000 * (time.process_time() - processor))
    seconds = {"query": [*times["levels"], *times["numbers"]], **times}
    return {
        f"{name}_ms_p{q}": float(np.percentile(values, q))
        for name, values in seconds.items()
        for q in (50, 95)
        if values
    }


def _ask(table: KDMTable, target: str, given: dict[str, Any], kind: str) -> Any:
    answer: Any = table.query(target, given)
    return answer.probs if kind == "levels" else (answer.mean, answer.interval(COVERAGE))


def _questions(
    table: KDMTable, train: Mapping[str, Array], seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    complete = take(train, ~np.any([is_missing(column) for column in train.values()], axis=0))
    names = [name for name in complete if name in table.columns_]
    for _ in range(QUESTIONS + _WARM_UP):
        row = int(rng.integers(count(complete)))
        target, *others = rng.permutation(names)[: rng.integers(2, min(5, len(names)) + 1)]
        yield str(target), {str(name): _condition(complete[name], row, rng) for name in others}


def _condition(column: Array, row: int, rng: np.random.Generator) -> Any:
    """Evidence about a column: in half of the cases the cell of a row, else a set or a range around it."""
    cell = column[row]
    if column.dtype == object:
        return str(cell) if rng.random() < 0.5 else sorted({str(cell), str(rng.choice(column))})
    if rng.random() < 0.5:
        return float(cell)
    place = np.mean(column < cell)
    ends = np.clip([place - _RANGE_SHARE / 2, place + _RANGE_SHARE / 2], 0, 1)
    low, high = np.quantile(column, ends)
    return min(float(low), float(cell)), max(float(high), float(cell))
