"""What numbers are like: levels, grids, atoms, bounds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from kdmkit.estimators.table.codecs.analysis import count, find_atoms, fit_numbers, resolution
from kdmkit.estimators.table.codecs.number_lists import CodePart, RankPart
from kdmkit.estimators.table.codecs.parts import NumberPart, part_from_config
from kdmkit.kernels import OneOf, Resolution

RNG = np.random.default_rng(0)
TENTHS = np.round(np.random.default_rng(1).gamma(3, 2, 300), 1)


@pytest.mark.parametrize(
    ("numbers", "digits", "grid"),
    [
        (RNG.normal(size=200), 15, None),
        (np.round(RNG.normal(size=200), 2), 15, Resolution(0.01, 0.0)),
        (np.round(RNG.normal(size=200), 2).astype(np.float32).astype(float), 6, Resolution(0.01, 0.0)),
        (5.0 * RNG.integers(0, 100, 200), 15, Resolution(5.0, 0.0)),
        (5.0 * RNG.integers(0, 100, 200) + 2, 15, Resolution(5.0, 2.0)),
        (0.25 * RNG.integers(0, 100, 200), 15, Resolution(0.25, 0.0)),
        (
            np.array([10.0, 30.0, 70.0]),
            15,
            Resolution(1.0, 0.0),
        ),  # by chance
        (1e9 + RNG.integers(0, 1000, 200), 15, Resolution(1.0, 0.0)),
        (TENTHS + 0.2, 15, Resolution(0.1, 0.0)),
        (np.cumsum(TENTHS), 15, Resolution(0.1, 0.0)),
        (TENTHS - 0.1 - TENTHS[::-1], 15, Resolution(0.1, 0.0)),  # 2.8e-17 is 0
        ((TENTHS.astype("f") + np.float32(0.2)).astype(float), 6, Resolution(0.1, 0.0)),
        (TENTHS / 3, 15, None),
        (np.array([0.0, 2e-16, 0.0345, 1.0]), 15, None),  # 2e-16 is no rounding error
        (np.zeros(3), 15, Resolution(1.0, 0.0)),
    ],
)
def test_resolution(numbers: np.ndarray, digits: int, grid: Resolution | None) -> None:
    assert resolution(count(numbers), digits) == grid


def test_numbers_with_rounding_errors_are_those_of_the_grid() -> None:
    codes = fit_numbers(np.repeat([0.3, 0.1 + 0.2, 0.4, 0.6, 0.1 + 0.7], 20))
    assert isinstance(codes, CodePart)
    assert codes.numbers == (0.3, 0.4, 0.6, 0.8)
    events = codes.encode(np.array([0.1 + 0.2, 0.3, 0.35]))
    assert events.values.tolist()[:2] == [0, 0]
    assert events.inside.tolist() == [True, True, False]
    numbers = TENTHS + 0.2
    part = fit_numbers(numbers)
    assert isinstance(part, NumberPart)
    back = part.decode(part.encode(numbers).values)
    assert back.tolist() == np.round(numbers, 1).tolist()


def test_atoms_stand_out() -> None:
    hours = np.concatenate([np.repeat(40.0, 500), RNG.integers(20, 61, 800).astype(float)])
    counts = count(hours)
    assert counts.numbers[find_atoms(counts, Resolution(1.0, 0.0))].tolist() == [40.0]


def test_even_numbers_have_no_atoms() -> None:
    ages = count(RNG.integers(18, 91, 30_000).astype(float))
    assert not find_atoms(ages, Resolution(1.0, 0.0)).any()
    small = count(np.round(RNG.normal(5, 1, 150), 1))  # every value has more than one per cent of so few rows
    assert not find_atoms(small, Resolution(0.1, 0.0)).any()


def test_repeated_numbers_without_a_grid_are_atoms() -> None:
    numbers = np.concatenate([RNG.normal(size=500), np.repeat(math.pi, 20), np.repeat(math.e, 3)])
    counts = count(numbers)
    assert counts.numbers[find_atoms(counts, None)].tolist() == [math.pi]


def part_of(numbers: np.ndarray) -> NumberPart:
    part = fit_numbers(numbers)
    assert isinstance(part, NumberPart)
    return part


@pytest.mark.parametrize(
    ("numbers", "bounds"),
    [
        (RNG.normal(size=500), (-math.inf, math.inf)),
        (RNG.gamma(2, 1, 500), (0.0, math.inf)),
        (-RNG.gamma(2, 1, 500), (-math.inf, 0.0)),
        (RNG.beta(2, 0.5, 500), (0.0, 1.0)),
        (np.minimum(RNG.normal(20, 30, 500), 50.0), (-math.inf, 50.0)),
        (np.maximum(RNG.normal(5, 10, 500), -4.0), (-4.0, math.inf)),
    ],
)
def test_bounds(numbers: np.ndarray, bounds: tuple[float, float]) -> None:
    part = part_of(numbers)
    assert (part.low, part.high) == bounds


def test_few_values_are_levels() -> None:
    assert isinstance(fit_numbers(np.repeat([0.2, 0.4, 1.0], 10)), CodePart)
    assert isinstance(fit_numbers(RNG.integers(0, 30, 3000).astype(float)), CodePart)
    assert isinstance(fit_numbers(RNG.integers(0, 30, 200).astype(float)), NumberPart)
    prices = RNG.choice(np.round(RNG.gamma(2, 40, 100), 2), 3000)
    assert isinstance(fit_numbers(prices), RankPart)
    assert isinstance(fit_numbers(np.tile(prices, 2)), CodePart)
    several = RNG.choice(np.round(RNG.gamma(2, 40, 200), 2), 20_000)
    assert isinstance(fit_numbers(several), RankPart)


def test_numbers_of_a_list_are_modelled_by_their_places() -> None:
    """All masses are on numbers of the list, near places are alike, and numbers come back exactly."""
    numbers = RNG.choice(np.round(np.cumsum(RNG.gamma(2, 3, 60)), 2), 2000)
    part = fit_numbers(numbers)
    assert isinstance(part, RankPart)
    n = len(part.numbers)
    events = part.encode(np.array([*part.numbers, part.numbers[0] + 0.005]))
    assert events.inside.tolist() == [True] * n + [False]
    assert np.array_equal(part.decode(events.values[:n].float()), part.numbers)
    assert np.array_equal(part.decode(torch.arange(n)), part.numbers)
    kernel = part.kernel(3)
    components = kernel.components_from(events.values[[5, 30, 55]])
    cells = [part.kernel_region(part.outcomes(OneOf([number]))) for number in part.numbers]
    masses = kernel.log_mass(cells, components).exp()
    assert torch.allclose(masses.sum(0), torch.ones(3, dtype=masses.dtype), atol=1e-5)
    assert masses[28:33, 1].sum() > 10 * masses[[0, 1, 2, -2, -1], 1].sum()


@pytest.mark.parametrize(
    "numbers",
    [
        RNG.normal(size=300),
        np.round(RNG.gamma(2, 3, 300), 1),
        1.6e9 + RNG.integers(0, 10**6, 300),
        RNG.normal(0, 1e-9, 300),
        RNG.normal(0, 1e12, 300),
        np.where(RNG.random(300) < 0.3, 0.0, np.round(RNG.gamma(2, 30, 300), 2)),
        np.array([0.0, 1.0] * 100),
        RNG.choice(np.round(RNG.gamma(2, 40, 60), 2), 3000),
    ],
)
def test_events_come_back_in_float32(numbers: np.ndarray) -> None:
    part = fit_numbers(numbers)
    again = part_from_config(json.loads(json.dumps(part.config())))
    assert again == part
    events = part.encode(numbers)
    assert events.inside.all()
    stored = events.values.float() if events.values.is_floating_point() else events.values
    back = part.decode(stored)
    step = getattr(part, "step", 0.0)
    if step or part.values is not None:
        np.testing.assert_array_equal(back, numbers)
    else:
        np.testing.assert_allclose(back, numbers, atol=1e-6 * np.ptp(numbers))


@pytest.mark.parametrize("grid", [0.0, 0.5])
def test_densities_are_in_the_users_units(grid: float) -> None:
    """∫ p(x) dx = 1, or the masses of the grid sum to 1, whatever the units of events are."""
    numbers = 5e8 + 1e7 * RNG.normal(size=400)
    numbers = np.round(numbers / 1e6) * 1e6 if grid else numbers
    part = part_of(numbers)
    kernel = part.kernel(None)
    x = np.arange(3e8, 7e8, 1e6) if part.step else np.linspace(4e8, 6e8, 20_001)
    events = part.encode(x)
    component = kernel.components_from(events.values[len(x) // 2 : len(x) // 2 + 1])
    density = kernel.log_overlap(events.values, component) + kernel.log_norm(component)
    jacobian = kernel.log_jacobian(events.values)
    density = density if jacobian is None else density + jacobian
    p = np.exp(density.numpy() + events.log_offset)
    total = p.sum() if part.masses else p.sum() * (x[1] - x[0])
    assert total == pytest.approx(1.0, abs=1e-3)


def test_draws_are_possible_numbers() -> None:
    numbers = np.minimum(np.round(RNG.gamma(2, 20, 1000), 1), 90.0)
    part = part_of(numbers)
    kernel = part.kernel(None)
    components = kernel.components_from(part.encode(numbers[:50]).values.float())
    index = torch.arange(50).repeat(100)
    drawn = part.decode(kernel.sample(components[index], index, torch.Generator().manual_seed(0)))
    assert drawn.min() >= 0
    assert drawn.max() <= 90
    np.testing.assert_allclose(drawn * 10, np.round(drawn * 10), atol=1e-9)
