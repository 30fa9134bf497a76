"""Rules between columns: what is found of a person's, what draws break, and what rules do to scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from kdmkit import KDMTable
from kdmkit.answers import FormulaRule, FunctionRule, OrderRule, Rule
from kdmlab.common import (
    Claim,
    Part,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.known_rules import ALSO_TRUE, TABLES, KnownTable

_DRAWS, _ROWS, _FOLDS = 100_000, 2000, 3
_TABLES = {table.name: table for table in TABLES}
# Fits of which only the rules count.
_TINY: dict[str, Any] = {"n_components": 2, "max_epochs": 1, "random_state": 0}
_SMALL: dict[str, Any] = {"n_components": 16, "max_epochs": 3, "random_state": 0}


# ---- which rules follow from others


class Closure:
    """What follows from some rules about the rows of a table.

    Args:
        rules: of one table.
        frame: its rows.
    """

    def __init__(self, rules: Iterable[Rule], frame: pd.DataFrame) -> None:
        self.rules, self.frame = list(rules), frame
        self.formulas = {r.target: r for r in self.rules if isinstance(r, FormulaRule)}

    def implies(self, rule: Rule) -> bool:
        """Whether a rule is one of them or follows from them: by transitivity, or by arithmetic."""
        if isinstance(rule, FunctionRule):
            pairs = {(r.source, r.target) for r in self.rules if isinstance(r, FunctionRule)}
            return _reaches(pairs, rule.source, rule.target) or self._repeats(rule)
        pairs = {(r.low, r.high) for r in self.rules if isinstance(r, OrderRule)}
        if isinstance(rule, OrderRule) and _reaches(pairs, rule.low, rule.high):
            return True
        return self._follows_by_arithmetic(rule)

    def _repeats(self, rule: FunctionRule) -> bool:
        """Whether a formula computes a column from the other alone, as constants do."""
        formula = self.formulas.get(rule.target)
        return formula is not None and set(formula.expression.names) <= {rule.source}

    def _follows_by_arithmetic(self, rule: Any) -> bool:
        """Whether rows keep a rule whose cells come from different rows, but for what formulas compute."""
        if not set(rule.columns) & set(self.formulas):
            return False
        rng = np.random.default_rng(0)
        rows = self.frame.dropna(subset=[n for r in [rule, *self.formulas.values()] for n in r.columns])
        numbers: dict[str, Any] = {}

        def number(name: str) -> Any:
            if name not in numbers:
                formula = self.formulas.get(name)
                if formula is None:
                    numbers[name] = rng.permutation(rows[name].to_numpy(float))
                else:
                    for other in formula.expression.names:
                        number(other)
                    numbers[name] = np.broadcast_to(formula.expression.value(numbers), len(rows))
            return numbers[name]

        for name in rule.columns:
            number(name)
        if isinstance(rule, OrderRule):
            return bool((numbers[rule.low] <= numbers[rule.high] * (1 + 1e-9)).all())
        value = rule.expression.value(numbers)
        return bool(np.allclose(value, numbers[rule.target], rtol=1e-6))


def _reaches(pairs: set[tuple[str, str]], start: str, end: str) -> bool:
    seen, ahead = set(), [start]
    while ahead:
        here = ahead.pop()
        if here == end:
            return True
        if here not in seen:
            seen.add(here)
            ahead += [b for a, b in pairs if a == here]
    return False


# ---- measures


def _fit(frame: pd.DataFrame, **options: Any) -> KDMTable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KDMTable(**options).fit(frame)


def measure_search(table: KnownTable, data_dir: Path) -> dict[str, Any]:
    """The rules found in all rows, those of the list, and those of one half that the other breaks."""
    frame = table.load(data_dir)
    listed = list(_fit(frame, rules=list(table.rules), **_TINY).rules_)
    rules = list(_fit(frame, **_TINY).rules_)
    fitted, person = Closure(rules, frame), Closure(listed, frame)
    rows = np.random.default_rng(0).permutation(len(frame))
    half, rest = frame.iloc[rows[: len(rows) // 2]], frame.iloc[rows[len(rows) // 2 :]]
    by_half = _fit(half, **_TINY)
    columns = by_half.schema_.read(rest).columns
    return {
        "rows": len(frame),
        "columns": frame.shape[1],
        "found": {str(rule): [rule.n_rows, rule.exceptions] for rule in rules},
        "missed": [str(rule) for rule in listed if not fitted.implies(rule)],
        "exceptions_of_list": {str(rule): rule.exceptions for rule in listed if rule.exceptions},
        "beyond": [str(rule) for rule in rules if not person.implies(rule)],
        "broken_by_other_half": {
            text: int(broken.sum())
            for text, broken in by_half.rules_.broken(by_half.schema_, columns).items()
            if broken.any()
        },
        "rules_of_half": len(by_half.rules_),
    }


def measure_draws(table: KnownTable, data_dir: Path) -> dict[str, Any]:
    """How many of 10⁵ draws break a rule: one that was found, or one that was given."""
    frame = table.load(data_dir)
    model = _fit(frame, rules=["auto", *table.rules], **_SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = model.sample(_DRAWS, random_state=0)
    cells = model.schema_.read(drawn).columns
    broken = model.rules_.broken(model.schema_, cells)
    free = _fit(frame, rules=False, **_SMALL).sample(_DRAWS // 10, random_state=0)
    without = model.rules_.broken(model.schema_, model.schema_.read(free).columns)
    return {
        "draws": _DRAWS,
        "rules": len(model.rules_),
        "broken": int(np.logical_or.reduce(list(broken.values())).sum()),
        "broken_without_rules": float(np.logical_or.reduce(list(without.values())).mean()),
    }


def measure_quality(table: KnownTable, data_dir: Path, with_rules: bool) -> dict[str, Any]:
    """log p of held-out rows, and C2ST of draws with them, of a model with rules or without."""
    frame = table.load(data_dir)
    rows = np.random.default_rng(0).permutation(len(frame))
    n = min(_ROWS, len(frame) // 2)
    train, test = (frame.iloc[part].reset_index(drop=True) for part in (rows[:n], rows[n : 2 * n]))
    model = _fit(train, rules=with_rules, broken_rules="rare", random_state=0)
    rules = model.rules_ if with_rules else _fit(train, **_TINY).rules_
    computed = [r.target for r in rules if isinstance(r, FormulaRule) and r.expression.names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = model.score_samples(test)
        others = model.score_samples(test.drop(columns=computed))
        drawn = model.sample(len(test), random_state=0)
    broken = model.rules_.broken(model.schema_, model.schema_.read(test).columns).values()
    n_broken = int(np.logical_or.reduce([np.zeros(len(test), bool), *broken]).sum())
    return {
        "train": n,
        "test": len(test),
        "log_p": float(scores.mean()),
        "log_p_other_columns": float(others.mean()),
        "computed_columns": len(computed),
        "broken_test_rows": n_broken,
        "c2st": c2st(test, drawn),
    }


def c2st(real: pd.DataFrame, drawn: pd.DataFrame) -> float:
    """1 − (2·max(AUC, ½) − 1) of histogram boosting, by cross-validation; 1: they cannot be told apart."""
    names = [name for name in real if name in drawn]  # others are left out of the model
    both = pd.concat([real[names], drawn[names]], ignore_index=True)
    features = {}
    for name, column in both.items():
        if pd.api.types.is_datetime64_any_dtype(column):
            column = column.astype("int64")
        elif not pd.api.types.is_numeric_dtype(column):
            column = pd.factorize(column)[0]
        features[name] = np.asarray(column, dtype=float)
    y = np.repeat([1, 0], [len(real), len(drawn)])
    order = np.random.default_rng(0).permutation(len(y))
    x = np.stack(list(features.values()), 1)[order]
    classifier = HistGradientBoostingClassifier(random_state=0)
    p = cross_val_predict(classifier, x, y[order], cv=_FOLDS, method="predict_proba")[:, 1]
    return 2 - 2 * max(float(roc_auc_score(y[order], p)), 0.5)


# ---- the experiment


def run(
    folder: Path,
    data_dir: Path,
    *,
    part: Part = "development",
    only: Sequence[str] = (),
    measures: Sequence[str] = (),
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `rules-<part>.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of `uci/adult.data.gz`.
        part: tables that the search was developed on, or those that are measured once.
        only: names of tables; empty: all.
        measures: "search", "draws", "quality"; empty: all.
    """
    wanted = []
    for table in TABLES:
        if table.measured_once != (part == "test") or (only and table.name not in only):
            continue
        key = {"table": table.name}
        wanted.append(Task({**key, "what": "search"}, partial(measure_search, table, data_dir)))
        wanted.append(Task({**key, "what": "draws"}, partial(measure_draws, table, data_dir)))
        wanted += [
            Task({**key, "what": "quality", "rules": on}, partial(measure_quality, table, data_dir, on))
            for on in (True, False)
        ]
    wanted = [task for task in wanted if not measures or task.key["what"] in measures]
    run_tasks(wanted, folder / f"rules-{part}.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder, part=part)


def summarize(folder: Path, *, part: Part = "development") -> Report:
    """Writes `rules-<part>.md` from the lines that there are."""
    rows = newest(read_rows(folder / f"rules-{part}.jsonl"), ("table", "what", "rules"))
    return write_report(report(rows, part), folder / f"rules-{part}.md")


_HEADER = [
    *("table", "rows", "a person's rules", "found of them", "others found", "false", "draws that break one"),
    *("the same without rules", "log p on", "off", "computed columns", "without these, on", "off"),
    *("C2ST on", "off"),
]


def report(rows: Sequence[Row], part: Part) -> Report:
    """The rules, draws and scores of every table."""
    table, n_listed, n_missed = [], 0, 0
    every: dict[str, list[float]] = {name: [] for name in ("false", "broken", "log p", "others", "c2st")}
    lists = []
    for name, listed in _TABLES.items():
        search = select(rows, table=name, what="search")
        if not search:
            continue
        one = search[0]
        false = [rule for rule in one["beyond"] if rule not in ALSO_TRUE.get(name, ())]
        n_listed, n_missed = n_listed + len(listed.rules), n_missed + len(one["missed"])
        every["false"].append(float(len(false)))
        n_found = len(listed.rules) - len(one["missed"])
        cells = [name, f"{one['rows']:,}", str(len(listed.rules)), str(n_found), str(len(one["beyond"]))]
        cells += [str(len(false)), *_draw_cells(select(rows, table=name, what="draws"), every)]
        cells += _quality_cells(rows, name, every)
        table.append(cells)
        lists.append(_listed(name, one, false))
    claims = [
        Claim(
            "share of a person's rules that is found",
            [1 - n_missed / n_listed] if n_listed else [],
            least=0.95,
        ),
        Claim("most false rules of a table", [max(every["false"], default=0.0)], most=1),
        Claim("draws that break a rule", [sum(every["broken"])], most=0),
        Claim("mean gain of log p by rules", every["log p"], least=0),
        Claim("the same without computed columns", every["others"], least=0),
        Claim("mean gain of C2ST by rules", every["c2st"], least=0),
    ]
    notes = (
        claims_table(claims, ".4g"),
        *lists,
        "A rule of the list counts as found if it follows from found ones. False rules are those that "
        "neither follow from the list nor hold by the meaning of the columns (`ALSO_TRUE` in "
        f"`known_rules.py`, judged after the search had run). Draws: {_DRAWS:,} of a model of all rows with "
        f"found and listed rules, 16 components, 3 epochs; without rules {_DRAWS // 10:,}. log p and C2ST: "
        f"default fits of at most {_ROWS:,} rows, as many held out; in log p a computed cell has probability "
        "1 where it had a density, so tables with computed columns compare in the other columns; a row that "
        f"breaks a rule is rare. C2ST by histogram boosting, {_FOLDS} folds, one draw.",
        provenance(rows),
        f"Written by `kdmlab reproduce rules --data-dir DIR --part {part}` from the lines in "
        f"`rules-{part}.jsonl`.",
    )
    return Report(f"Rules between columns, {part} tables", _HEADER, table, notes)


def _draw_cells(lines: Sequence[Row], every: Mapping[str, list[float]]) -> list[str]:
    if not lines:
        return ["", ""]
    every["broken"].append(float(lines[0]["broken"]))
    return [f"{lines[0]['broken']} of {lines[0]['draws']:,}", f"{lines[0]['broken_without_rules']:.1%}"]


def _quality_cells(rows: Sequence[Row], name: str, every: Mapping[str, list[float]]) -> list[str]:
    on, off = (select(rows, table=name, what="quality", rules=with_rules) for with_rules in (True, False))
    if not on or not off:
        return [""] * 7
    measures = {"log p": "log_p", "others": "log_p_other_columns", "c2st": "c2st"}
    pairs = {label: (on[0][key], off[0][key]) for label, key in measures.items()}
    for label, (with_rules, without) in pairs.items():
        every[label].append(with_rules - without)
    return [
        *(f"{value:.3f}" for value in pairs["log p"]),
        str(on[0]["computed_columns"]),
        *(f"{value:.3f}" for value in (*pairs["others"], *pairs["c2st"])),
    ]


def _listed(name: str, one: Row, false: Sequence[str]) -> str:
    """The rules of a table in words, with their support."""
    every = "; ".join(f"`{text}` ({n:,} rows)" for text, (n, _) in one["found"].items()) or "none"
    parts = [f"**{name}**: {every}."]
    if one["missed"]:
        parts.append("Missed: " + ", ".join(f"`{text}`" for text in one["missed"]) + ".")
    if false:
        parts.append("False: " + ", ".join(f"`{text}`" for text in false) + ".")
    if one["broken_by_other_half"]:
        broken = ", ".join(f"`{text}` ({n})" for text, n in one["broken_by_other_half"].items())
        parts.append(f"Found in one half of the rows and broken by rows of the other: {broken}.")
    return " ".join(parts)
