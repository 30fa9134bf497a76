"""The rules of a table: those that the user gives, and those that its rows keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.rule_search import (
    View,
    choose_sources,
    derived_column,
    exceptions,
    find_functions,
    nearest_pairs,
    views_of,
)
from kdmkit.estimators.table.rules import FunctionRule, Rules, read_rule
from kdmkit.estimators.table.schema import Schema

#: Among texts of rules: those that the rows keep.
AUTO = "auto"
# A rule that fewer of the rows keep is an error.
_LEAST_KEPT = 0.1


def with_rules(schema: Schema, frame: RawFrame, wanted: Any, broken_rules: str) -> Schema:
    """The schema with rules between its columns; columns that are functions of others become derived.

    Args:
        frame: the rows of the fit.
        wanted: True: those that the rows keep; False: none; or texts, `"auto"` for those of the rows.
    """
    texts = _texts(wanted)
    if not texts:
        return schema
    raw = schema.read(frame)
    views = views_of(schema.modelled, raw.columns)
    if schema.missing == "unknown":
        views = {name: view for name, view in views.items() if not view.column.missing}
    given = [
        read_rule(text, schema.columns, n_rows=0, exceptions=0, is_given=True)
        for text in texts
        if text != AUTO
    ]
    functions = [_checked_function(rule, schema, views) for rule in given if isinstance(rule, FunctionRule)]
    pairs = [(rule.source, rule.target) for rule in functions]
    found = [pair for pair in find_functions(views) if pair not in pairs] if AUTO in texts else []
    sources = choose_sources([*pairs, *found], views)
    columns = dict(schema.columns)
    for target, source in sources.items():
        columns[target] = derived_column(views[target], views[source], schema.missing == "outcome")
    nearest = [_function(views, *pair, is_given=False) for pair in nearest_pairs(found, views)]
    made = schema.with_columns(list(columns.values()))
    made.rules, made.broken_rules = Rules([*functions, *nearest]), broken_rules
    return made


def _texts(wanted: Any) -> list[Any]:
    if isinstance(wanted, bool | np.bool_):
        return [AUTO] if wanted else []
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise TypeError(
            bad_argument("rules", 'True, False or a list such as ["auto", "zip -> city"]', repr(wanted))
        )
    return list(wanted)


def _checked_function(rule: FunctionRule, schema: Schema, views: dict[str, View]) -> FunctionRule:
    """A function that the user gave, with its exceptions; raises unless its columns can be part of one."""
    place = f"rules: {str(rule)!r}"
    if rule.source == rule.target:
        raise ValueError(bad_argument(place, "two columns", repr(rule.source)))
    for name in rule.columns:
        if name not in views:
            column = schema.columns[name]
            wanted = "columns of levels or numbers, without unknown cells"
            raise ValueError(bad_argument(place, wanted, f"{name!r} ({column.reason})"))
    made = _function(views, rule.source, rule.target, is_given=True)
    kept = 1 - made.exceptions / max(made.n_rows, 1)
    if kept < _LEAST_KEPT:
        raise ValueError(
            bad_argument(place, f"a rule that at least {_LEAST_KEPT:.0%} of the rows keep", f"{kept:.1%}")
        )
    return made


def _function(views: dict[str, View], source: str, target: str, *, is_given: bool) -> FunctionRule:
    fine, coarse = views[source], views[target]
    n = int((~np.isnan(fine.outcomes) & ~np.isnan(coarse.outcomes)).sum())
    return FunctionRule(n, exceptions(fine.codes, coarse.codes), is_given, source, target)
