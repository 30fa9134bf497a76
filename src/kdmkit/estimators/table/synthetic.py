"""New rows of a fitted table, and how good they are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.estimators.table.answering.given_rows import GivenRowSampler, held_columns
from kdmkit.estimators.table.answering.whole_rows import RowSampler
from kdmkit.estimators.table.codecs.categories import LevelsCodec
from kdmkit.estimators.table.codecs.numbers import as_numbers
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.evaluation import Evaluation, column_shares, distance_shares, reliability_bins
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.learning import TableEstimator, sample_frame
from kdmkit.estimators.table.outcomes import read_event
from kdmkit.metrics import expected_calibration_error
from kdmkit.metrics.synthetic_rows import (
    boosting_score,
    c2st,
    column_similarity,
    copied,
    level_auc,
    nearest_distances,
    pair_similarity,
    share_nearer,
)

# Rows of each part at most: in all, with distances of all pairs, with log p, and with questions.
_MOST_ROWS, _MOST_DISTANCES, _MOST_SCORED, _MOST_ASKED = 40_000, 16_000, 10_000, 1000
_FEWEST_ROWS, _COVERAGE = 10, 0.9
# Levels of a column whose probabilities are judged.
_MOST_LEVELS = 100


@dataclass(eq=False, repr=False, kw_only=True)
class SyntheticRows(TableEstimator):
    """New rows of a table; `KDMTable` adds the questions."""

    @torch.no_grad()
    def sample(
        self,
        n_samples: int = 1,
        given: Any = None,
        random_state: Any = None,
        *,
        hold: Sequence[str] | None = None,
        complete: bool = False,
        frame: Literal["pandas", "polars", "arrow"] | None = None,
        first_key: int = 0,
    ) -> Any:
        """New rows as a frame like the one that the table was fitted to; cells are missing as often as there.

        Identifiers are new keys in the form of those of the data, the same ones in every call.

        Args:
            n_samples: the number of rows; with a frame of conditions, for each of its rows.
            given: evidence that holds for all rows, as in `query`; or a frame (or a `pathlib.Path`) of
                conditions: each of its rows is completed. Its cells are repeated as they are, columns that it
                lacks are unknown, and empty cells are missing if the table takes them for outcomes.
            random_state: None: other rows in every call.
            hold: columns of `given` that count, if it is a row or a frame: `sample(100, row, hold=["cut"])`
                draws rows like this one.
            complete: whether all cells have values, those that missing cells would have by other columns.
            frame: the library of the frame; None: that of the fit, and pandas for files if it is installed.
            first_key: the number of the first new key: of the rows drawn before, for keys that go on.
        """
        n = check_count("n_samples", n_samples)
        first_key = check_count("first_key", first_key, least=0)
        engine = self._engine()
        given = held_columns(given, hold)
        if isinstance(given, RawFrame):
            sampler = GivenRowSampler(engine, given, self.missing, complete=complete)
            return sampler.frame(n, self._generator(random_state), frame, first_key)
        condition = read_event(engine.schema, given)
        rows = RowSampler(engine, condition, complete=complete)
        drawn = rows.frame(n, self._generator(random_state), frame, first_key)
        engine.support.warn(condition)
        return drawn

    def evaluate(
        self,
        data: Any,
        holdout: Any = None,
        *,
        synthetic: Any = None,
        targets: Sequence[str] | None = None,
        random_state: Any = 0,
    ) -> Evaluation:
        """A report on synthetic rows: likeness, use, calibration, privacy and rules.

        Larger parts are uniform samples: 40,000 rows of each, 16,000 for distances, 10,000 for log p and
        1,000 for questions.

        Args:
            data: the rows of the fit: a frame, or a path.
            holdout: other rows of the same source, without which the closeness to the rows of the fit, their
                log p and predictions cannot be judged.
            synthetic: rows to judge, of this or any model; None draws as many as `data` has.
            targets: columns that boosted trees predict; None: those of the fit.
            random_state: of draws and samples.
        """
        return _Measuring(self, data, holdout, synthetic, random_state).report(targets)


class _Measuring:
    """The parts of one report.

    Args:
        table: the fitted table.
        data, holdout, synthetic, random_state: as in `SyntheticRows.evaluate`.
    """

    def __init__(self, table: Any, data: Any, holdout: Any, synthetic: Any, random_state: Any) -> None:
        self.table, self.schema = table, table._engine().schema
        self.rng = np.random.default_rng(random_state if isinstance(random_state, int) else None)
        self.seconds: dict[str, float] = {}
        with self._timed("draws"):
            parts = {"training": self._read("data", data)}
            if holdout is not None:
                parts["holdout"] = self._read("holdout", holdout)
            n_rows = {name: part.n_total or part.n_rows for name, part in parts.items()}
            if synthetic is None:
                drawn = table.sample(min(n_rows["training"], _MOST_ROWS), random_state=random_state)
                parts["synthetic"] = self._read("synthetic", drawn)
                n_rows["synthetic"] = parts["synthetic"].n_rows
            else:
                parts["synthetic"] = self._read("synthetic", synthetic)
                n_rows["synthetic"] = parts["synthetic"].n_total or parts["synthetic"].n_rows
        self.n_rows, self.frames = n_rows, parts
        self.cells = {name: self.schema.read(part).columns for name, part in parts.items()}
        self.rows = {name: self._comparable(cells) for name, cells in self.cells.items()}
        self.used: dict[str, int] = {}
        self.figures: dict[str, Any] = {}

    def _read(self, argument: str, data: Any) -> RawFrame:
        frame = sample_frame(argument, data, _MOST_ROWS, int(self.rng.integers(1 << 31)))
        names = [name for name in frame.columns if name in self.schema.columns]
        if not any(self.schema.columns[name].variables for name in names):
            raise ValueError(bad_argument(argument, "rows with columns of the table", list(frame.columns)))
        if frame.n_rows < _FEWEST_ROWS:
            raise ValueError(bad_argument(argument, f"at least {_FEWEST_ROWS} rows", frame.n_rows))
        return frame

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def _comparable(self, cells: dict[str, RawColumn]) -> dict[str, np.ndarray]:
        """Columns of the model as numbers and texts; rare levels are one text, as in draws."""
        return {
            name: _comparable(column, cells[name])
            for name, column in self.schema.modelled.items()
            if name in cells
        }

    def _some(self, name: str, most: int) -> np.ndarray:
        """The places of a uniform sample of a part."""
        n = self.frames[name].n_rows
        return np.sort(self.rng.permutation(n)[:most])

    def report(self, targets: Sequence[str] | None) -> Evaluation:
        targets = (
            self.table.targets_ if targets is None else [targets] if isinstance(targets, str) else targets
        )
        names = [self.schema.modelled_column("targets", target).name for target in targets]
        parts: dict[str, Any] = {}
        for part, measure in (
            ("columns", self._columns),
            ("pairs", self._pairs),
            ("c2st", self._c2st),
            ("prediction", lambda: self._prediction(names)),
            ("intervals", self._intervals),
            ("calibration", self._calibration),
            ("privacy", self._privacy),
            ("rules", self._rules),
        ):
            with self._timed(part):
                parts[part] = measure()
        return Evaluation(
            n_rows=self.n_rows, used_rows=self.used, figures=self.figures, seconds=self.seconds, **parts
        )

    # ---- likeness

    def _columns(self) -> dict[str, dict[str, float]]:
        real, synthetic = self.rows["training"], self.rows["synthetic"]
        alike = column_similarity(real, synthetic)
        dates = {
            name: () if column.codec.numeric else column.examples
            for name, column in self.schema.modelled.items()
        }
        self.figures["columns"] = {
            name: column_shares(real[name], synthetic[name], dates[name]) for name in alike
        }
        return {
            name: {
                "similarity": similarity,
                "missing_training": float(self.cells["training"][name].missing.mean()),
                "missing_synthetic": float(self.cells["synthetic"][name].missing.mean()),
            }
            for name, similarity in alike.items()
        }

    def _pairs(self) -> dict[tuple[str, str], float]:
        return pair_similarity(self.rows["training"], self.rows["synthetic"])

    def _c2st(self) -> dict[str, float]:
        real, synthetic = self.rows["training"], self.rows["synthetic"]
        n = min(self.frames["training"].n_rows, self.frames["synthetic"].n_rows)
        self.used["c2st"] = n
        pick = {name: self._some(name, n) for name in ("training", "synthetic")}
        tests = {"training": c2st(_take(real, pick["training"]), _take(synthetic, pick["synthetic"]))}
        if "holdout" in self.rows:
            few = min(n, self.frames["holdout"].n_rows)
            self.used["c2st_holdout"] = few
            some = {name: _take(self.rows[name], self._some(name, few)) for name in self.rows}
            tests["holdout"] = c2st(some["holdout"], some["synthetic"])
            tests["as_many_training"] = c2st(some["training"], some["synthetic"])
            tests["real"] = c2st(some["holdout"], some["training"])
        return tests

    def _prediction(self, targets: Sequence[str]) -> dict[str, dict[str, Any]]:
        if "holdout" not in self.rows:
            return {}
        scores: dict[str, dict[str, Any]] = {}
        for target in targets:
            is_level = self.rows["training"][target].dtype == object
            scores[target] = {"measure": "AUC" if is_level else "R²"}
            for part, name in (("synthetic", "synthetic"), ("training", "real")):
                scores[target][name] = boosting_score(self.rows[part], self.rows["holdout"], target)
        return scores

    # ---- what the model knows of a row

    def _asked(self) -> tuple[RawFrame, dict[str, np.ndarray]]:
        part = "holdout" if "holdout" in self.frames else "training"
        places = self._some(part, _MOST_ASKED)
        self.used["questions"] = len(places)
        return self.frames[part].take(places), _take(self.rows[part], places)

    def _intervals(self) -> dict[str, dict[str, float]]:
        frame, rows = self._asked()
        results = {}
        for name, column in self.schema.roots.items():
            if not column.codec.numeric or name not in rows:
                continue
            there = np.flatnonzero(~np.isnan(rows[name]))
            if not len(there):
                continue
            true, some = rows[name][there], frame.take(there)
            low, high = np.asarray(self.table.predict_interval(some, name, _COVERAGE), np.float64).T
            slack = 1e-6 * np.abs(true)  # ends of intervals are computed in single precision
            inside = (low <= true + slack) & (true - slack <= high)
            results[name] = {
                "coverage": float(inside.mean()),
                "claimed": float(self.table.interval_probability(some, name, _COVERAGE).mean()),
                "width": float((high - low).mean() / (np.std(true) or 1.0)),
            }
        return results

    def _calibration(self) -> dict[str, dict[str, float]]:
        frame, rows = self._asked()
        results, tops, rights = {}, [], []
        for name, column in self.schema.roots.items():
            levels = column.codec.levels
            if (
                column.codec.numeric
                or levels is None
                or not 2 <= len(levels) <= _MOST_LEVELS
                or name not in rows
            ):
                continue
            cells = self.schema.read(frame).columns[name]
            encoded = column.codec.encode(cells)
            there = np.flatnonzero(encoded.observed.numpy())
            if not len(there):
                continue
            labels = encoded.parts[0].numpy()[there]
            probs = np.asarray(self.table.predict_proba(frame.take(there), name), np.float64)
            top, right = probs.max(1), probs.argmax(1) == labels
            tops.append(top)
            rights.append(right)
            results[name] = {
                "accuracy": float(right.mean()),
                "confidence": float(top.mean()),
                "error": float(expected_calibration_error(probs / probs.sum(1, keepdims=True), labels)),
            }
        if tops:
            self.figures["reliability"] = reliability_bins(np.concatenate(tops), np.concatenate(rights))
        return results

    # ---- privacy and rules

    def _privacy(self) -> dict[str, float]:
        training, synthetic = self.rows["training"], self.rows["synthetic"]
        results = {"copies": float(copied(synthetic, training).mean())}
        rare = [
            column.codec.rare[codes[codes >= 0]].sum()
            for name, column in self.schema.modelled.items()
            if isinstance(column.codec, LevelsCodec) and name in synthetic and column.codec.rare.any()
            for codes in [column.codec.outcomes_of(self.cells["synthetic"][name].values).astype(int)]
        ]
        results["rare_cells"] = float(sum(rare))
        if "holdout" not in self.rows:
            return results
        holdout = self.rows["holdout"]
        results["holdout_copies"] = float(copied(holdout, training).mean())
        n = min(self.frames["training"].n_rows, self.frames["holdout"].n_rows, _MOST_DISTANCES)
        self.used["distances"] = n
        seen, unseen, drawn = (
            _take(self.rows[name], self._some(name, most))
            for name, most in (("training", n), ("holdout", n), ("synthetic", _MOST_DISTANCES))
        )
        to_seen, to_unseen = nearest_distances(drawn, seen, unseen)
        (between,) = nearest_distances(unseen, seen)
        results["dcr_share"] = share_nearer(to_seen, to_unseen)
        results["distance_synthetic"] = float(np.median(to_seen))
        results["distance_holdout"] = float(np.median(between))
        self.figures["distances"] = distance_shares(to_seen, between)
        results["membership_auc"] = self._membership()
        return results

    def _membership(self) -> float:
        parts = {name: self._some(name, _MOST_SCORED) for name in ("training", "holdout")}
        self.used["log p"] = min(map(len, parts.values()))
        scores = [self.table.score_samples(self.frames[name].take(places)) for name, places in parts.items()]
        is_member = np.repeat([True, False], [len(part) for part in scores])
        ranks = np.unique(np.concatenate(scores), return_inverse=True)[1].astype(
            np.float64
        )  # −∞ is the least
        return level_auc(is_member, ranks[:, None], [True])

    def _rules(self) -> dict[str, dict[str, float]]:
        rules: dict[str, dict[str, float]] = {}
        any_broken = np.zeros(self.frames["synthetic"].n_rows, dtype=bool)
        for part, cells in self.cells.items():
            for rule, broken in self.schema.rules.broken(self.schema, cells).items():
                rules.setdefault(rule, {})[part] = float(broken.mean())
                if part == "synthetic":
                    any_broken |= broken
        self.figures["broken"] = float(any_broken.mean())
        return {rule: shares for rule, shares in rules.items() if "synthetic" in shares}


def _comparable(column: Column, cells: RawColumn) -> np.ndarray:
    """The cells of a column as numbers with NaN, or as texts with None; rare levels are one text."""
    codec = column.codec
    if codec.numeric:
        return as_numbers(cells)
    if codec.levels is None:
        return np.where(cells.missing, np.nan, codec.outcomes_of(cells.values).astype(np.float64))
    codes = codec.encode(cells)
    levels = np.array([str(level) for level in codec.levels], dtype=object)
    if isinstance(codec, LevelsCodec) and codec.rare.any():
        levels = codec.pooled(levels)
    texts = np.where(codes.observed.numpy(), levels[codes.parts[0].numpy()], cells.values.astype(str))
    texts = texts.astype(object)
    texts[cells.missing] = None
    return texts


def _take(rows: dict[str, np.ndarray], places: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[places] for name, column in rows.items()}
