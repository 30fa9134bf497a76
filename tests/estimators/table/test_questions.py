"""What questions mean: the mass of what is given is the share of such rows among draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.table.frames_of_all_kinds import mixed_frame
from kdmkit.distributions.events import as_event
from kdmkit.estimators.table import Schema
from kdmkit.estimators.table.answering.engine import TableEngine
from kdmkit.estimators.table.outcomes import ColumnOutcomes

N_DRAWS = 20_000


class Table(NamedTuple):
    schema: Schema
    joint: kdm.JointKDM
    drawn: Any


@pytest.fixture(scope="module")
def table() -> Table:
    """A joint KDM over the columns of a frame, and rows drawn from it in the user's units."""
    frame = mixed_frame()
    schema = Schema.from_frame(frame)
    rows = schema.encode(frame, dtype=torch.float64)
    variables = schema.variables(12)
    components = {v.name: v.kernel.components_from(rows.columns[v.name][:12]) for v in variables}
    joint = kdm.JointKDM(components, None, {v.name: v.kernel for v in variables})
    values = joint.sample((N_DRAWS,), generator=torch.Generator().manual_seed(0))
    return Table(schema, joint, schema.decode(values))


def probability(table: Table, given: dict[str, Any]) -> float:
    """The mass of all boxes of a question."""
    return TableEngine(table.schema, table.joint).event(as_event(given), as_event(None))[0]


def minutes(times: Any) -> Any:
    return times.map(lambda time: 60 * time.hour + time.minute)


QUESTIONS: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
    ({"positive": (2, 5)}, lambda f: f.positive.between(2, 5)),
    ({"positive": (None, 5)}, lambda f: f.positive <= 5),
    ({"income": 0}, lambda f: f.income == 0),
    ({"income": (0, 10.5)}, lambda f: f.income <= 10.5),
    ({"income": (0.01, None)}, lambda f: f.income > 0),
    ({"age": (30, 40)}, lambda f: f.age.between(30, 40)),
    ({"age": (29.5, 40.9)}, lambda f: f.age.between(30, 40)),
    ({"age": [30, 31, 50, 50]}, lambda f: f.age.isin([30, 31, 50])),
    ({"age": 33}, lambda f: f.age == 33),
    ({"children": (1, 3)}, lambda f: f.children.between(1, 3)),
    ({"children": {0, 4}}, lambda f: f.children.isin([0, 4])),
    ({"city": ["Bonn", "Ulm"]}, lambda f: f.city.isin(["Bonn", "Ulm"])),
    ({"member": True}, lambda f: f.member),
    ({"member": (None, False)}, lambda f: ~f.member),
    ({"day": ("2023-02-03", "2023-04-11")}, lambda f: f.day.between("2023-02-03", "2023-04-11")),
    ({"day": ("2023-03", None)}, lambda f: f.day >= "2023-03-01"),
    ({"visit": "2024"}, lambda f: f.visit.dt.year == 2024),
    (
        {"visit": ("2023-06-03 11:30", "2024-04-11 02:15")},
        lambda f: f.visit.between("2023-06-03 11:30", "2024-04-11 02:15"),
    ),
    (
        {"visit": ["2023-05", "2023", "2025-02-01"]},
        lambda f: f.visit.dt.year.eq(2023) | f.visit.dt.date.astype(str).eq("2025-02-01"),
    ),
    ({"month": ("2012-03", "2015-07-20")}, lambda f: f.month.between("2012-03-01", "2015-07-20")),
    ({"month": ("2012-03-02", "2013-12-31")}, lambda f: f.month.between("2012-04-01", "2013-12-31")),
    ({"clock": ("08:00", "17:30")}, lambda f: minutes(f.clock).between(480, 1050)),
    ({"clock": ("22:00", "05:30")}, lambda f: ~minutes(f.clock).between(331, 1319)),
    ({"score": (90, 100)}, lambda f: f.score.between(90, 100)),
    ({"large": (1.6e9, 1.6e9 + 4e5)}, lambda f: f.large.between(1.6e9, 1.6e9 + 4e5)),
    ({"tiny": (0, 1)}, lambda f: f.tiny >= 0),
    (
        {"city": "Köln", "age": (None, 50), "positive": (1, None), "score": None},
        lambda f: (f.city == "Köln") & (f.age <= 50) & (f.positive >= 1),
    ),
    (
        {"visit": ("2024-01-03 11:30", None), "day": ("2023-02-03", "2023-04-11"), "children": [1, 2]},
        lambda f: (
            (f.visit >= "2024-01-03 11:30")
            & f.day.between("2023-02-03", "2023-04-11")
            & f.children.isin([1, 2])
        ),
    ),
]


@pytest.mark.parametrize(("given", "holds"), QUESTIONS)
def test_masses_are_shares_of_draws(table: Table, given: dict[str, Any], holds: Callable[[Any], Any]) -> None:
    p, share = probability(table, given), float(holds(table.drawn).mean())
    assert share == pytest.approx(p, abs=4.5 * math.sqrt(max(p * (1 - p), 1 / N_DRAWS) / N_DRAWS))


def test_draws_have_the_dtypes_of_the_frame(table: Table) -> None:
    frame = mixed_frame()
    assert [str(dtype) for dtype in table.drawn.dtypes] == [str(dtype) for dtype in frame.dtypes]
    assert table.drawn["income"].min() >= 0
    assert table.drawn["score"].max() <= 100
    np.testing.assert_allclose(table.drawn["income"] * 100, np.round(table.drawn["income"] * 100), atol=1e-6)


def test_sets_of_numbers_with_densities_are_points(table: Table) -> None:
    """They have no probability, but as evidence each of them counts by its density."""
    assert probability(table, {"positive": [2.0, 1.0]}) == 0
    engine = TableEngine(table.schema, table.joint)
    _, log_evidence = engine.query(engine.column("target", "age"), as_event({"positive": [2.0, 1.0]}))
    posterior, _ = engine.query(engine.column("target", "positive"), as_event({}))
    assert log_evidence == pytest.approx(np.log(posterior.density([1.0, 2.0]).sum()), abs=1e-6)


def test_unknown_columns_say_nothing(table: Table) -> None:
    assert probability(table, {"positive": None, "visit": None, "age": (None, None)}) == 1
    assert probability(table, {"positive": float("nan")}) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"age": (40.2, 40.8)},
        {"age": -3},
        {"age": 40.5},
        {"children": 7},
        {"children": (6, 9)},
        {"age": [float("nan")]},
    ],
)
def test_values_that_a_column_cannot_have_have_no_probability(table: Table, given: dict[str, Any]) -> None:
    assert probability(table, given) == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"citi": "Bonn"}, r"expected a column of the model, got 'citi' \(did you mean 'city'\?\)"),
        (
            {"city": "bon"},
            r"column 'city': expected one of Bonn, Köln, Ulm \(did you mean 'Bonn'\?\), got 'bon'",
        ),
        ({"city": []}, "one or more outcomes"),
        ({"city": ("Bonn", "Ulm")}, "column 'city': expected a level or a set of levels"),
        ({"age": "old"}, "column 'age': expected a number, got 'old'"),
        ({"age": (50, 40)}, "low ≤ high"),
        ({"day": "soon"}, "column 'day': expected a date such as '2024-05-31'"),
        ({"day": ("2023-05-01", "2023-02-01")}, "low ≤ high"),
        ({"clock": "25:00"}, "a time of day such as '18:30'"),
        (
            {"positive": list(range(1, 200)), "tiny": list(range(200))},
            "at most 10000 .*, got 39800",
        ),
    ],
)
def test_bad_questions(table: Table, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        probability(table, given)


def test_questions_about_columns_that_are_left_out() -> None:
    schema = Schema.from_frame({"id": np.arange(30), "x": np.arange(30) * 0.37})
    with pytest.raises(ValueError, match="which is left out"):
        as_event({"id": 3}).boxes(ColumnOutcomes(schema))
    assert as_event({"id": None}).boxes(ColumnOutcomes(schema)) == [{}]
