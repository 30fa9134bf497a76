"""The rules of a table: those that the user gives, and those that its rows keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.numbers import NumberCodec, as_numbers
from kdmkit.estimators.table.expressions import Constant, half_step
from kdmkit.estimators.table.formula_search import find_formulas, find_orders
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.row_rules import plan
from kdmkit.estimators.table.rule_search import (
    NumberView,
    View,
    choose_sources,
    derived_column,
    exceptions,
    find_functions,
    nearest_pairs,
    views_of,
)
from kdmkit.estimators.table.rules import (
    FormulaRule,
    FunctionRule,
    OrderRule,
    Rule,
    Rules,
    comparable,
    read_rule,
)
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
    others = [_checked(rule, schema, raw.columns) for rule in given if not isinstance(rule, FunctionRule)]
    pairs = _closed([(rule.source, rule.target) for rule in functions])
    formulas: list[Rule] = []
    searched: list[tuple[str, str]] = []
    if AUTO in texts:
        formulas = _searched_formulas(schema, raw.columns, {target for _, target in pairs}, others)
        computed = [rule for rule in (*others, *formulas) if isinstance(rule, FormulaRule)]
        searched = [
            pair for pair in find_functions(views) if pair not in pairs and not _follows(pair, computed)
        ]
        # A number beside texts is there where their column says so: it keeps its variables.
        searched = [pair for pair in searched if pair[1] not in schema.texts.values()]
    sources = choose_sources([*pairs, *searched], views)
    columns = dict(schema.columns)
    for target, source in sources.items():
        columns[target] = derived_column(views[target], views[source], schema.missing == "outcome")
    # A column that is a function of two columns has the variables of one of them; the other is no rule.
    nearest = [
        _function(views, *pair, is_given=False)
        for pair in nearest_pairs(searched, views)
        if len({sources.get(name, name) for name in pair}) == 1
    ]
    made = schema.with_columns(list(columns.values()))
    orders = _searched_orders(schema, raw.columns, [*others, *formulas], sources) if AUTO in texts else []
    made.rules, made.broken_rules = Rules([*functions, *others, *nearest, *formulas, *orders]), broken_rules
    _check_together(made, [*functions, *others], raw.columns)
    return made


# ---- orders and formulas


def _number_views(schema: Schema, cells: Mapping[str, RawColumn]) -> list[NumberView]:
    return [
        NumberView(name, as_numbers(cells[name]), half_step(column))
        for name, column in schema.modelled.items()
        if isinstance(column.codec, NumberCodec)
        and column.kind != "boolean"
        and not (schema.missing == "unknown" and column.missing)
    ]


def _searched_formulas(
    schema: Schema, cells: Mapping[str, RawColumn], targets: Collection[str], given: Sequence[Rule]
) -> list[Rule]:
    """Constants, and formulas that all rows keep, of columns about which no rule is given."""
    rules: list[Rule] = []
    for name, column in schema.columns.items():
        if column.kind == "constant" and column.storage.base in ("integer", "float") and not column.missing:
            rules.append(FormulaRule(0, 0, False, name, Constant(float(column.codec.constant))))
    taken = {*targets, *(name for rule in given if isinstance(rule, FormulaRule) for name in rule.columns)}
    for name, expression in find_formulas(_number_views(schema, cells)).items():
        # A multiple of one column is a function of it.
        if name not in taken and len(expression.names) > 1:
            rules.append(FormulaRule(0, 0, False, name, expression))
    return [_counted(rule, schema, cells) for rule in rules]


def _follows(pair: tuple[str, str], formulas: Sequence[FormulaRule]) -> bool:
    """Whether a function is left to a formula: it would compute one of its columns."""
    fine, coarse = pair
    return any(coarse == rule.target or (fine == rule.target and coarse in rule.columns) for rule in formulas)


def _searched_orders(
    schema: Schema, cells: Mapping[str, RawColumn], formulas: Sequence[Rule], sources: Mapping[str, str]
) -> list[Rule]:
    """Orders that all rows keep; columns of dates are compared among each other."""
    views = _number_views(schema, cells)
    pairs = find_orders(views)
    for kind in ("date", "time"):
        columns = [name for name, column in schema.modelled.items() if column.kind == kind]
        timed = [NumberView(name, comparable(schema, name, cells[name]), 0.0) for name in columns]
        for view in timed:
            view.numbers[cells[view.name].missing] = np.nan
        pairs += find_orders(timed)
    by_name = {view.name: view for view in views}
    rules: list[Rule] = []
    for low, high in pairs:
        roots = {sources.get(name, name) for name in (low, high)}
        if len(roots) == 2 and not any(_follows_from(low, high, rule, by_name) for rule in formulas):
            rules.append(_counted(OrderRule(0, 0, False, low, high), schema, cells))
    return rules


def _follows_from(low: str, high: str, rule: Rule, views: Mapping[str, NumberView]) -> bool:
    """Whether a formula implies an order, as that of a part and a sum: it holds for parts of other rows."""
    if not isinstance(rule, FormulaRule) or not {low, high} <= {*rule.columns} & {*views}:
        return False
    rng = np.random.default_rng(0)
    numbers = {name: rng.permutation(views[name].numbers) for name in rule.expression.names}
    numbers[rule.target] = rule.expression.value(numbers)
    below, above = numbers[low], numbers[high]
    return not bool((below > above + 1e-9 * np.abs(above)).any())


def _counted(rule: Any, schema: Schema, cells: Mapping[str, RawColumn]) -> Any:
    """A rule with its rows and exceptions."""
    there = np.logical_and.reduce([~cells[name].missing for name in rule.columns])
    broken = rule.broken(schema, cells)
    return replace(rule, n_rows=int(there.sum()), exceptions=int(broken.sum()))


def _checked(rule: Rule, schema: Schema, cells: Mapping[str, RawColumn]) -> Rule:
    """An order or a formula that the user gave, with its exceptions; raises unless columns can keep it."""
    place = f"rules: {str(rule)!r}"
    columns = [schema.columns[name] for name in rule.columns]
    for column in columns:
        is_number = isinstance(column.codec, NumberCodec) or (
            column.kind == "constant" and column.storage.base in ("integer", "float")
        )
        got = f"{column.name!r} ({column.reason})"
        if isinstance(rule, FormulaRule) and not is_number:
            raise ValueError(bad_argument(place, "columns of numbers", got))
        if isinstance(rule, OrderRule) and (not column.variables or column.order_kind is None):
            wanted = "columns of numbers, dates, times or ordered levels"
            raise ValueError(bad_argument(place, wanted, got))
    if isinstance(rule, OrderRule) and columns[0].order_kind != columns[1].order_kind:
        got = " and ".join(f"{column.name!r} ({column.kind})" for column in columns)
        raise ValueError(bad_argument(place, "two columns of one kind", got))
    counted: Rule = _counted(rule, schema, cells)
    _check_share(place, counted)
    return counted


def _check_share(place: str, rule: Rule) -> None:
    kept = 1 - rule.exceptions / max(rule.n_rows, 1)
    if kept < _LEAST_KEPT:
        wanted = f"a rule that at least {_LEAST_KEPT:.0%} of the rows keep"
        raise ValueError(bad_argument(place, wanted, f"{kept:.1%}"))


def _check_together(schema: Schema, given: Sequence[Rule], cells: Mapping[str, RawColumn]) -> None:
    """Raises if rules that the user gave contradict each other, or compute columns from themselves."""
    for rule in given:
        if isinstance(rule, OrderRule) and (path := _path(rule.high, rule.low, given)):
            got = ", ".join(map(repr, map(str, [rule, *path])))
            raise ValueError(bad_argument("rules", "rules that do not contradict each other", got))
    texts = {str(rule) for rule in given}
    circular = [str(rule) for rule in plan(schema, schema.rules)[1] if str(rule) in texts]
    if circular:
        wanted = "formulas of which each computes another column, none from itself"
        raise ValueError(bad_argument("rules", wanted, f"{circular[0]!r}, which is circular"))
    kept = ~np.logical_or.reduce([rule.broken(schema, cells) for rule in given] or [np.zeros(1, bool)])
    if not kept.any():
        got = ", ".join(map(repr, map(str, given)))
        raise ValueError(bad_argument("rules", "rules that a row can keep together", got))


def _path(start: str, end: str, rules: Sequence[Rule], seen: tuple[str, ...] = ()) -> list[OrderRule]:
    """Orders by which one column is at most another one."""
    for rule in rules:
        if isinstance(rule, OrderRule) and rule.low == start and rule.high not in seen:
            rest = [] if rule.high == end else _path(rule.high, end, rules, (*seen, start))
            if rule.high == end or rest:
                return [rule, *rest]
    return []


def _closed(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Functions, and those that follow from two of them."""
    every = dict.fromkeys(pairs)
    while more := {(a, d) for a, b in every for c, d in every if b == c and a != d} - every.keys():
        every |= dict.fromkeys(sorted(more))
    return list(every)


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
    if rule.target in schema.texts.values():
        raise ValueError(bad_argument(place, "a column of the frame after the arrow", repr(rule.target)))
    for name in rule.columns:
        if name not in views:
            column = schema.columns[name]
            wanted = "columns of levels or numbers, without unknown cells"
            raise ValueError(bad_argument(place, wanted, f"{name!r} ({column.reason})"))
    made = _function(views, rule.source, rule.target, is_given=True)
    _check_share(place, made)
    return made


def _function(views: dict[str, View], source: str, target: str, *, is_given: bool) -> FunctionRule:
    fine, coarse = views[source], views[target]
    n = int((~np.isnan(fine.outcomes) & ~np.isnan(coarse.outcomes)).sum())
    return FunctionRule(n, exceptions(fine.codes, coarse.codes), is_given, source, target)
