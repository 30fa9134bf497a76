"""The list of questions about Adult. Every library is asked all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmlab.peers.model import COVERAGE, Box, Event, Peer, Rows, holds

_RICH: Event = ({"income": ">50K"},)
_MAN: Box = {"education": "Bachelors", "sex": "Male", "age": 40.0}
_THIRTIES: Box = {"age": (30, 39)}


@dataclass(frozen=True)
class Question:
    """A question, how a model is asked, and the same number among rows.

    Args:
        text: the question.
        ask: asks a model; raises `NotOffered`, or what the library raises.
        among: the number among rows, None where rows do not tell.
    """

    text: str
    ask: Callable[[Peer], Any]
    among: Callable[[Rows], float | None]


def _probability(text: str, event: Event, given: Event = ({},)) -> Question:
    def share(rows: Rows) -> float:
        return float(holds(event, rows)[holds(given, rows)].mean())

    return Question(text, lambda peer: float(peer.probability(event, given)), share)


def _draws(text: str, given: Box) -> Question:
    """The share of draws that satisfy the condition; less than all is no answer."""

    def kept(peer: Peer) -> float:
        drawn = peer.draw(100, given)
        share = float(holds([given], drawn).mean())
        if share < 1 or len(next(iter(drawn.values()))) < 100:
            raise ValueError(f"{share:.0%} of the draws satisfy the condition")
        return share

    return Question(text, kept, lambda rows: 1.0)


def _interval(peer: Peer) -> list[float]:
    return list(peer.interval("age", {"occupation": "Sales", "sex": "Female"}))


def _marginal(peer: Peer) -> float:
    """log P of three cells of a row."""
    return float(np.log(peer.mass({"age": 40.0, "sex": "Male", "income": ">50K"})))


def _filled(peer: Peer) -> str:
    """The occupation that is filled in, where two cells of four rows are missing."""
    rows: Rows = {name: column[:4].copy() for name, column in peer.rows.items()}
    rows["occupation"][:] = None
    rows["age"] = np.array([np.nan] * 4)
    filled = peer.impute(rows)
    if any(value is None for value in filled["occupation"]) or np.isnan(filled["age"].astype(float)).any():
        raise ValueError("cells are still missing")
    return str(filled["occupation"][0])


def _unknown(rows: Rows) -> None:
    return None


QUESTIONS: dict[str, Question] = {
    "level given cells": _probability("P(income > 50K given Bachelors, Male, 40 years)", _RICH, (_MAN,)),
    "event of two columns": _probability(
        "P(income > 50K and Female)", ({"income": ">50K", "sex": "Female"},)
    ),
    "range of a number": _probability("P(30 ≤ age < 40 given Female)", (_THIRTIES,), ({"sex": "Female"},)),
    "given a range": _probability("P(income > 50K given 30 ≤ age < 40)", _RICH, (_THIRTIES,)),
    "given a set of levels": _probability(
        "P(income > 50K given Bachelors or Masters)", _RICH, ({"education": ["Bachelors", "Masters"]},)
    ),
    "given one of two columns": _probability(
        "P(income > 50K given Doctorate or Exec-managerial)",
        _RICH,
        ({"education": "Doctorate"}, {"occupation": "Exec-managerial"}),
    ),
    "a column above another": Question(
        "P(hours per week > age)",
        lambda peer: float(peer.compare("hours_per_week", "age")),
        lambda rows: float((rows["hours_per_week"] > rows["age"]).mean()),
    ),
    "interval of a number": Question(
        f"{COVERAGE:.0%} interval of the age given Sales, Female", _interval, _unknown
    ),
    "log p of some cells": Question("log P(40 years, Male, income > 50K)", _marginal, _unknown),
    "draws given cells": _draws("rows given Masters, Female", {"education": "Masters", "sex": "Female"}),
    "draws given a range": _draws("rows given 30 ≤ age < 40", _THIRTIES),
    "missing cells filled": Question("rows without occupation and age", _filled, _unknown),
    "likeliest values together": Question(
        "all other columns given Masters, Female",
        lambda peer: str(peer.likeliest({"education": "Masters", "sex": "Female"}).get("occupation")),
        _unknown,
    ),
    "information of two columns": Question(
        "mutual information of occupation and sex",
        lambda peer: float(peer.information("occupation", "sex")),
        lambda rows: _information(rows["occupation"], rows["sex"]),
    ),
}


def _information(a: Any, b: Any) -> float:
    """The mutual information of two columns of levels, by their shares."""
    codes = [np.unique(column.astype(str), return_inverse=True)[1] for column in (a, b)]
    table = np.zeros([int(code.max()) + 1 for code in codes])
    np.add.at(table, tuple(codes), 1 / len(a))
    outer = table.sum(1, keepdims=True) * table.sum(0, keepdims=True)
    seen = table > 0
    return float((table[seen] * np.log(table[seen] / outer[seen])).sum())
