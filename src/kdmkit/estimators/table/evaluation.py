"""The report on synthetic rows: how they compare with real ones, what the model knows, what it gives away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kdmkit._core.files import replacing
from kdmkit.estimators.table.display import rich_table, text_table
from kdmkit.metrics.synthetic_rows import present_cells

_HEADER = ("what", "value", "ideal")
# Bars of a figure: of numbers, of levels, of probabilities.
_BARS, _SHOWN_LEVELS, _BINS = 24, 12, 10


class Finding(NamedTuple):
    """One line of the summary.

    Attributes:
        what: is measured.
        value: as text.
        ideal: the best value, as text.
        words: what the value says.

    With `table` as in the example of `KDMTable`:

    >>> table.evaluate(table.sample(50), synthetic=table.sample(50)).summary[0].what
    'columns: similarity of distributions'
    """

    what: str
    value: str
    ideal: str
    words: str


@dataclass(frozen=True)
class Evaluation:
    """How synthetic rows of a table compare with real ones. Numbers are NaN where they cannot be measured.

    Attributes:
        n_rows: of the `training`, `holdout` and `synthetic` rows.
        used_rows: rows of each part that a measure took: a uniform sample of them.
        columns: by column, the `similarity` of its distribution (`kdmkit.metrics.column_similarity`) and the
            shares of `missing` cells in both.
        pairs: by two columns, the similarity of their dependence (`kdmkit.metrics.pair_similarity`).
        c2st: the classifier two-sample test (`kdmkit.metrics.c2st`) against `training` rows, against
            `holdout` rows, against `as_many_training` rows as there are held-out ones, and of these two
            `real` parts with each other.
        prediction: by target, the score of boosted trees that learned from `synthetic` and from `real` rows,
            on held-out rows.
        intervals: by column of numbers, the `coverage` of 90 % intervals given the rest of a row, the
            probability that the model `claimed`, and their `width` in standard deviations.
        calibration: by column of levels, the `accuracy` of the most probable level given the rest of a row,
            the mean `confidence` in it and the calibration `error`.
        privacy: the share of `copies` of training rows, and of such rows among the held-out ones
            (`holdout_copies`); the `dcr_share` and median distances to the closest training row; the
            `membership_auc` by log p; the number of `rare_cells` with texts of few rows.
        rules: by rule, the share of rows that break it in each part.
        figures: the numbers behind the figures.
        seconds: by part of the report.

    With `table` as in the example of `KDMTable`:

    >>> rows = table.sample(200, random_state=0)
    >>> report = table.evaluate(rows, random_state=1)
    >>> report.columns["size"]["similarity"] > 0.9
    True
    """

    n_rows: dict[str, int]
    used_rows: dict[str, int]
    columns: dict[str, dict[str, float]]
    pairs: dict[tuple[str, str], float]
    c2st: dict[str, float]
    prediction: dict[str, dict[str, Any]]
    intervals: dict[str, dict[str, float]]
    calibration: dict[str, dict[str, float]]
    privacy: dict[str, float]
    rules: dict[str, dict[str, float]]
    figures: dict[str, Any] = field(repr=False)
    seconds: dict[str, float] = field(repr=False)

    # ---- the report in other forms

    def to_dict(self) -> dict[str, Any]:
        """The report in the types of JSON; NaN is None."""
        fields = {
            **asdict(self),
            "pairs": [{"columns": list(pair), "similarity": value} for pair, value in self.pairs.items()],
            "summary": [finding._asdict() for finding in self.summary],
        }
        plain: dict[str, Any] = _plain(fields)
        return plain

    def to_json(self, path: Any = None) -> str:
        """The report as JSON, also written to a file if there is a path."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        return text if path is None else _written(text, path)

    def to_html(self, path: Any = None, title: str = "Synthetic rows") -> str:
        """The report as a page with figures that needs no other file, also written to a file.

        Args:
            path: of the file; None only returns the page.
            title: of the page.
        """
        from kdmkit.estimators.table.report_page import page_of

        page = page_of(self, title)
        return page if path is None else _written(page, path)

    def __repr__(self) -> str:
        return text_table(_HEADER, [finding[:3] for finding in self.summary])

    def __rich__(self) -> Any:
        return rich_table(_HEADER, [finding[:3] for finding in self.summary])

    # ---- in words

    @property
    def similarity(self) -> float:
        """The mean similarity of the distributions of the columns."""
        return mean_of(column["similarity"] for column in self.columns.values())

    @property
    def pair_similarity(self) -> float:
        """The mean similarity of the dependence of two columns."""
        return mean_of(self.pairs.values())

    @property
    def summary(self) -> list[Finding]:
        """The numbers that matter most, each with what it says; those that were measured."""
        findings = [*self._likeness(), *self._knowledge(), *self._privacy()]
        return [finding for finding in findings if finding.value not in ("nan", "nan %")]

    def _likeness(self) -> list[Finding]:
        c2st = "1: boosted trees cannot tell them from synthetic rows; 0: they always can."
        few = (
            f"The same with {self.used_rows.get('c2st_holdout', 0):,} rows of each. "
            "A classifier with few rows sees less: compare with the next two lines."
        )
        return [
            Finding(
                "columns: similarity of distributions",
                _three(self.similarity),
                "1",
                "Each column on its own, the mean: 1 minus the largest gap between the distribution "
                "functions of numbers, or minus half the sum of the gaps between the shares of levels.",
            ),
            Finding(
                "pairs: similarity of dependence",
                _three(self.pair_similarity),
                "1",
                "Two columns at a time, the mean: 1 minus half the gap between correlations of numbers; "
                "of other pairs, between the tables of both columns.",
            ),
            Finding("C2ST, training rows", _three(self._test("training")), "1", c2st),
            Finding("C2ST, held-out rows", _three(self._test("holdout")), "as the next two", few),
            Finding(
                "C2ST, as many training rows",
                _three(self._test("as_many_training")),
                "as held-out rows",
                "Much higher than against held-out rows: synthetic rows are closer to those of the fit.",
            ),
            Finding(
                "C2ST of training with held-out rows",
                _three(self._test("real")),
                "1",
                "What real rows reach: no model can be expected to do better.",
            ),
        ]

    def _test(self, name: str) -> float:
        return self.c2st.get(name, float("nan"))

    def _knowledge(self) -> list[Finding]:
        findings = [
            Finding(
                f"{scores['measure']} of {target}, learned from synthetic rows",
                _three(scores["synthetic"]),
                _three(scores["real"]),
                "Boosted trees that learned from synthetic rows predict the column in held-out rows; "
                "the ideal is what they reach from the training rows.",
            )
            for target, scores in self.prediction.items()
        ]
        if self.intervals:
            claimed = mean_of(one["claimed"] for one in self.intervals.values())
            findings.append(
                Finding(
                    "coverage of 90 % intervals",
                    _percent(mean_of(one["coverage"] for one in self.intervals.values())),
                    _percent(claimed),
                    "The share of cells inside the interval that the model gives, knowing the rest of the "
                    "row; the ideal is the probability that the model claims.",
                )
            )
        if self.calibration:
            findings.append(
                Finding(
                    "calibration error of levels",
                    _three(mean_of(one["error"] for one in self.calibration.values())),
                    "0",
                    "The mean gap between the probability that the model gives to a level and how often "
                    "it is right.",
                )
            )
        return findings

    def _privacy(self) -> list[Finding]:
        get = self.privacy.get
        nan = float("nan")
        by_chance = (
            f"at most {_percent(get('holdout_copies', 0.0))}" if "holdout_copies" in self.privacy else "0 %"
        )
        broken = [one["synthetic"] for one in self.rules.values()]
        findings = [
            Finding(
                "exact copies of training rows",
                _percent(get("copies", nan)),
                by_chance,
                "The share of synthetic rows that equal a training row in every column; coincidence gives "
                "as many as there are among held-out rows.",
            ),
            Finding(
                "nearer to a training row than to a held-out row",
                _percent(get("dcr_share", nan)),
                "50 %",
                "The share of synthetic rows whose closest real row is one of the fit; half by chance.",
            ),
            Finding(
                "membership inference, AUC",
                _three(get("membership_auc", nan)),
                "0.5",
                "How well log p tells training rows from held-out ones: 0.5 is not at all, 1 always.",
            ),
            Finding(
                "cells with texts of few rows",
                f"{get('rare_cells', nan):g}",
                "0",
                "Texts that fewer rows have than the model may draw, among all synthetic cells.",
            ),
        ]
        if broken:
            findings.append(
                Finding(
                    f"rows that break one of {len(broken)} rules",
                    _percent(self.figures.get("broken", max(broken))),
                    "0 %",
                    "The share of synthetic rows that break a rule of the table.",
                )
            )
        return findings


def mean_of(values: Any) -> float:
    """The mean of the numbers that are not NaN; NaN of none."""
    numbers = [value for value in values if value == value]
    return float(np.mean(numbers)) if numbers else float("nan")


def _three(value: float) -> str:
    return f"{value:.3f}" if value == value else "nan"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %" if value == value else "nan %"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _written(text: str, path: Any) -> str:
    with replacing(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


# ---- the numbers behind figures


def column_shares(real: np.ndarray, synthetic: np.ndarray, written: tuple[str, ...] = ()) -> dict[str, Any]:
    """The shares of the bars of a column in both parts.

    Args:
        real, synthetic: numbers with NaN, or texts with None.
        written: the least and the greatest value of a column of dates or times, as they are written.
    """
    present = [present_cells(part) for part in (real, synthetic)]
    if real.dtype == object:
        levels, rows = np.unique(present[0].astype(str), return_counts=True)
        shown = levels[np.argsort(-rows, kind="stable")][:_SHOWN_LEVELS].tolist()
        shares = [[float((part == level).sum()) / max(len(part), 1) for level in shown] for part in present]
        return {"levels": shown, "n_levels": len(levels), "training": shares[0], "synthetic": shares[1]}
    if not len(present[0]):
        return {"edges": [0.0, 1.0], "training": [0.0], "synthetic": [0.0]}
    low, high = (present[0].min(), present[0].max()) if written else _ends(present[0])
    edges = np.linspace(low, max(high, low + 1e-9), _BARS + 1)
    counts = [np.histogram(part, edges)[0] / max(len(part), 1) for part in present]
    return {
        "edges": edges.tolist(),
        "ends": [written[0], written[-1]] if written else [],
        "training": counts[0].tolist(),
        "synthetic": counts[1].tolist(),
    }


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The middle 99 % of the values; all of them if that is a single value."""
    low, high = np.quantile(values, [0.005, 0.995])
    if low == high:
        low, high = values.min(), values.max()
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def reliability_bins(tops: np.ndarray, rights: np.ndarray) -> dict[str, list[float]]:
    """The mean of probabilities and the share of right levels, in bins of the probability.

    Args:
        tops: the probability of the most probable level in each row.
        rights: whether it is the true one.
    """
    place = np.minimum((tops * _BINS).astype(int), _BINS - 1)
    used = [i for i in range(_BINS) if (place == i).any()]
    return {
        "confidence": [float(tops[place == i].mean()) for i in used],
        "accuracy": [float(rights[place == i].mean()) for i in used],
        "share": [float((place == i).mean()) for i in used],
    }


def distance_shares(synthetic: np.ndarray, holdout: np.ndarray) -> dict[str, list[float]]:
    """The shares of bars of distances to the closest training row; the last bar has the largest ones."""
    high = float(np.quantile(np.concatenate([synthetic, holdout]), 0.99)) or 1.0
    edges = np.linspace(0, high, _BARS + 1)
    shares = [np.histogram(np.minimum(part, high), edges)[0] / len(part) for part in (synthetic, holdout)]
    return {"edges": edges.tolist(), "synthetic": shares[0].tolist(), "holdout": shares[1].tolist()}
