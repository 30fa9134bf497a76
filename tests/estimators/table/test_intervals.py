"""Intervals of a stated probability where single values have probabilities of their own."""

import math
from typing import Any

import pytest
import torch

import kdmkit as kdm
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.table.answering.posterior import LevelSteps, nearest_interval


def ends_of(rho: Any, coverage: float, rank: int = 0) -> torch.Tensor:
    tails = torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2], dtype=torch.float64)
    return nearest_interval(rho, coverage, rho.reach(tails.reshape(2, *[1] * rank)))[0]


def mixture(kernel: kdm.Kernel, components: Any) -> Univariate:
    c = torch.tensor(components, dtype=torch.float64)
    return Univariate(kernel, c, torch.full((len(c),), -math.log(len(c)), dtype=torch.float64))


def mass(rho: Univariate, low: torch.Tensor, high: torch.Tensor) -> float:
    return float(rho.cdf(high) - rho.cdf(rho.beside(low, up=False)))


@pytest.mark.parametrize(
    ("probs", "ends"),
    [
        ([0.95, 0.03, 0.02], (0, 0)),  # nothing smaller holds the frequent level
        ([0.85, 0.1, 0.05], (0, 1)),  # as near as 0 alone: at least the coverage
        ([0.3, 0.68, 0.02], (0, 1)),
        ([0.05, 0.55, 0.4], (1, 2)),
        ([0.04, 0.02, 0.84, 0.04, 0.06], (1, 3)),
        ([0.82, 0.18], (0, 0)),  # 82 % is nearer than all
    ],
)
def test_levels(probs: list[float], ends: tuple[int, int]) -> None:
    assert tuple(ends_of(LevelSteps(torch.tensor(probs).double()), 0.9).tolist()) == ends


def test_levels_are_on_average_nearer_than_the_central_interval() -> None:
    probs = torch.distributions.Dirichlet(torch.full((9,), 0.7).double()).sample((500,))
    rho = LevelSteps(probs)
    low, high = ends_of(rho, 0.9, rank=1)
    central = rho.reach(torch.tensor([[0.05], [0.95]]).double()).x
    codes = torch.arange(9)

    def masses(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        inside = (codes >= low.unsqueeze(-1)) & (codes <= high.unsqueeze(-1))
        return (probs * inside).sum(-1)

    found, at_least = masses(low, high), masses(*central)
    assert bool(((found - 0.9).abs() <= (at_least - 0.9).abs() + 1e-5).all())
    assert abs(float(found.mean()) - 0.9) < 0.03 < float(at_least.mean()) - 0.9


def test_densities_have_the_central_interval() -> None:
    rho = mixture(kdm.RBF.from_std(1.0), [[0.0]])
    assert ends_of(rho, 0.9).tolist() == pytest.approx([-1.6449, 1.6449], abs=1e-4)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.85])
def test_a_density_beside_zeros_is_held_to_the_coverage(share: float) -> None:
    """All that the zeros leave to the density is cut off at its end."""
    logits = [math.log(1 - share), math.log(share)]
    positive = kdm.Transformed.log(kdm.RBF.from_std(0.5))
    rho = mixture(kdm.Inflated(positive, [0.0]), [[*logits, 1.0]])
    low, high = ends_of(rho, 0.9)
    assert mass(rho, low, high) == pytest.approx(0.9, abs=1e-6)
    assert (float(low) == 0) == (share > 0.05)


def test_frequent_zeros_are_the_whole_interval() -> None:
    rho = mixture(kdm.Inflated(kdm.RBF.from_std(1.0), [0.0]), [[math.log(0.08), math.log(0.92), 5.0]])
    assert ends_of(rho, 0.9).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("std", [0.3, 0.8, 2.0, 7.0])
def test_whole_numbers_have_the_nearest_mass(std: float) -> None:
    rho = mixture(kdm.Rounded(kdm.RBF.from_std(std), 1.0), [[0.3]])
    low, high = ends_of(rho, 0.9)
    found = abs(mass(rho, low, high) - 0.9)
    for a in (-1, 0, 1):
        for b in (-1, 0, 1):
            if a and b:  # both ends have moved: the interval is elsewhere or of another kind
                continue
            if low + a <= high + b:
                assert found <= abs(mass(rho, low + a, high + b) - 0.9) + 2e-6


def test_answers_hold_their_coverage(table: kdm.KDMTable, unchecked: None) -> None:
    """Fees are zeros and a density, weights a density, items few whole numbers."""
    for name, off in (("fee", 1e-4), ("weight", 1e-4), ("items", 0.1)):
        answer = table.query(name, {"fragile": True})
        low, high = answer.interval(0.9)
        at_least = answer.probability((answer.quantile(0.05), answer.quantile(0.95)))
        assert abs(answer.probability((low, high)) - 0.9) <= min(off, at_least - 0.9 + 1e-5)
    assert table.query("fee").interval(0.5) == (0.0, 0.0)


def test_what_intervals_hold_is_told(table: kdm.KDMTable, unchecked: None) -> None:
    rows = {"items": [0, 6, 3], "fragile": [True, False, None], "size": ["small", "huge", None]}
    for name in ("fee", "weight", "items", "size"):
        rest = {other: cells for other, cells in rows.items() if other != name}
        told = table.interval_probability(rest, name, coverage=0.8) if name != "size" else None
        for i in range(3):
            answer = table.query(name, {other: cells[i] for other, cells in rest.items()})
            if told is None:
                assert "probability inside" not in answer.summary()
                continue
            assert told[i] == pytest.approx(answer.probability(answer.interval(0.8)), abs=2e-5)
            inside = answer.summary().get("probability inside")
            assert (inside is None) == (name == "weight")
            assert inside is None or inside == pytest.approx(
                answer.probability(answer.interval(0.9)), abs=2e-5
            )
    assert table.interval_probability({"fragile": []}, "items").shape == (0,)
    with pytest.raises(TypeError, match="intervals of 'sent': expected a column of numbers"):
        table.interval_probability(rows, "sent")


def test_rows_and_questions_have_the_same_intervals(table: kdm.KDMTable, unchecked: None) -> None:
    rows = {"items": [0, 6], "fragile": [True, False]}
    for name in ("fee", "weight"):
        for i, ends in enumerate(table.predict_interval(rows, name, coverage=0.9)):
            given = {other: cells[i] for other, cells in rows.items()}
            assert table.query(name, given).interval(0.9) == pytest.approx(tuple(ends), rel=1e-5)
