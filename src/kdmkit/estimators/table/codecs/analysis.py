"""The numbers of a column: few values or many, a grid, atoms, bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kdmkit.estimators.table.codecs.number_lists import CodePart, RankPart
from kdmkit.estimators.table.codecs.parts import NumberPart, Part
from kdmkit.kernels import QuantileNormal, Resolution

# Numbers with at most this many values, of which each has rows enough, become levels.
_FEW_VALUES = 32
_ROWS_PER_VALUE = 50
_FEWEST_VALUES = 8
_FEWEST_ROWS_PER_VALUE = 5
# Numbers from a list, such as prices: a grid of which few points are used, each by many rows.
_LIST_VALUES = 256
_LIST_ROWS_PER_VALUE = 20
_LIST_MEDIAN_ROWS = 5
_LIST_OCCUPANCY = 0.25
# Those of at most this many values, with rows enough for each on average, are levels, too: neighbours in a
# list of wages by state have nothing in common.
_LIST_LEVELS = 128
# An atom has at least this many rows and this share of them, and stands out against its neighbours.
_ATOM_ROWS = 8
_ATOM_SHARE = 0.001
_MOST_ATOMS = 100
# Cells are masses if the middle half of the numbers spans at most this many; finer ones are densities.
_MOST_CELLS = 20_000
# float32 holds whole numbers up to here.
_EXACT = float(1 << 24)
# Smaller numbers lose digits in float64.
_TINIEST = 1e-300


class Counts(NamedTuple):
    """Distinct numbers, ascending, and how many rows each has."""

    numbers: np.ndarray
    rows: np.ndarray

    @property
    def total(self) -> int:
        return int(self.rows.sum())


def count(numbers: np.ndarray) -> Counts:
    return Counts(*np.unique(numbers, return_counts=True))


def fit_numbers(numbers: np.ndarray, digits: int = 15) -> Part:
    """The part for numbers without missing ones; `digits` are those that their dtype holds.

    >>> fit_numbers(np.repeat([1.0, 2.0, 4.0], 10)).describe()
    '3 values: 1, 2, 4'
    """
    counts = without_noise(count(numbers), digits)
    grid = resolution(counts, digits)
    if takes_codes(counts):
        return code_part(counts.numbers, counts.total)
    if not is_list(counts, grid):
        return number_part(counts, grid)
    n = len(counts.numbers)
    are_levels = n <= _LIST_LEVELS and counts.total >= _ROWS_PER_VALUE * n
    return code_part(counts.numbers, counts.total) if are_levels else rank_part(counts)


def smoothing(n_levels: int, n_rows: int) -> float:
    """The share of `Levels` that is spread evenly: at least half a row for every level."""
    return min(0.05, 0.5 * n_levels / (n_rows + n_levels))


def code_part(numbers: np.ndarray, n_rows: int) -> CodePart:
    """Every number is a level."""
    return CodePart(tuple(numbers.tolist()), smoothing(len(numbers), n_rows))


# ---- few values


def takes_codes(counts: Counts) -> bool:
    """Whether the numbers are few enough to be levels, each with rows enough to learn from."""
    n = len(counts.numbers)
    least = _FEWEST_ROWS_PER_VALUE if n <= _FEWEST_VALUES else _ROWS_PER_VALUE
    return n <= _FEW_VALUES and counts.total >= least * n


def is_list(counts: Counts, grid: Resolution | None) -> bool:
    """Whether the numbers come from a list: they use few points of a grid, each in many rows."""
    n = len(counts.numbers)
    return (
        n <= _LIST_VALUES
        and counts.total >= _LIST_ROWS_PER_VALUE * n
        and float(np.median(counts.rows)) >= _LIST_MEDIAN_ROWS
        and n < _LIST_OCCUPANCY * _cells(counts, grid)
    )


def rank_part(counts: Counts) -> Part:
    """Numbers by their places in a list; levels if all rows have one number."""
    n = len(counts.numbers)
    places = Counts(np.arange(n, dtype=np.float64), counts.rows)
    part = number_part(places, Resolution(1.0, 0.0)) if (counts.rows > 0).sum() > 1 else None
    if not isinstance(part, NumberPart):
        return code_part(counts.numbers, counts.total)
    return RankPart(tuple(counts.numbers.tolist()), replace(part, low=0.0, high=n - 1.0))


def _cells(counts: Counts, grid: Resolution | None) -> float:
    """The number of points of the grid between the least and the greatest number."""
    spread = float(counts.numbers[-1] - counts.numbers[0])
    return math.inf if grid is None else spread / grid.step + 1


# ---- the grid


def resolution(counts: Counts, digits: int) -> Resolution | None:
    """The decimal grid of the numbers, None if they have as many digits as their dtype.

    A common step other than a power of ten counts only if many numbers share it: five numbers may be even by
    chance.
    """
    decimals = _decimals(counts.numbers, digits)
    if decimals is None:
        return None
    whole = np.unique(np.round(counts.numbers * 10.0**decimals))
    return _common_step(whole, decimals) if whole.any() else Resolution(1.0, 0.0)


def without_noise(counts: Counts, digits: int) -> Counts:
    """Numbers with the decimals of their grid, if they have one: 0.1 + 0.2 is 0.3.

    Args:
        digits: significant digits that the dtype holds.
    """
    decimals = _decimals(counts.numbers, digits)
    rounded = counts.numbers if decimals is None else np.round(counts.numbers, decimals) + 0.0
    if np.array_equal(rounded, counts.numbers):
        return counts
    numbers, places = np.unique(rounded, return_inverse=True)
    return Counts(numbers, np.bincount(places, counts.rows).astype(counts.rows.dtype))


def _decimals(numbers: np.ndarray, digits: int) -> int | None:
    """The least number of decimals, at most 9, with which all numbers are written but for rounding errors."""
    largest = float(np.abs(numbers).max())
    for decimals in range(0, 10):
        scaled = numbers * 10.0**decimals
        error = 4 * largest * 10.0 ** (decimals - digits)
        if error > 0.05:
            return None
        whole = np.round(scaled)
        is_near = bool((np.abs(scaled - whole) <= error + 1e-9).all())
        if is_near and _are_told_apart(numbers, whole, digits):
            return decimals
    return None


def _are_told_apart(numbers: np.ndarray, whole: np.ndarray, digits: int) -> bool:
    """Whether of different numbers with one place on a grid all but one are results of rounded arithmetic.

    Such numbers need more digits than the dtype holds: 0.30000000000000004, but not 2e-16 beside 0.
    """
    same = np.diff(whole) == 0
    if not same.any():
        return True
    shared = np.append(same, False) | np.append(False, same)
    exact = [w for w, x in zip(whole[shared], numbers[shared], strict=True) if float(f"{x:.{digits}g}") == x]
    return len(set(exact)) == len(exact)


def _common_step(whole: np.ndarray, decimals: int) -> Resolution:
    step, origin = 1, 0
    if len(whole) >= 10 and float(np.abs(whole).max()) < 2**62:
        exact = whole.astype(np.int64)
        step = int(np.gcd.reduce(np.diff(exact)))
        origin = int(exact[0]) % step
    return Resolution(step / 10.0**decimals, origin / 10.0**decimals)


# ---- atoms


def find_atoms(counts: Counts, grid: Resolution | None) -> np.ndarray:
    """Which numbers are atoms: they have more rows than twice those of their neighbours on the grid.

    Numbers without a grid have no neighbours: a number that repeats often is an atom.
    """
    least = max(_ATOM_ROWS, _ATOM_SHARE * counts.total)
    is_atom = np.zeros(len(counts.rows), bool)
    for _ in range(2):  # once more, without the atoms: of two frequent neighbours the second comes then
        beside = _rows_beside(counts, grid, is_atom)
        is_atom |= (counts.rows >= least) & (counts.rows > 2 * beside + 4 * np.sqrt(beside + 1))
    if is_atom.sum() > _MOST_ATOMS:
        threshold = np.sort(counts.rows[is_atom])[-_MOST_ATOMS]
        is_atom &= counts.rows >= threshold
    return is_atom


def _rows_beside(counts: Counts, grid: Resolution | None, skipped: np.ndarray) -> np.ndarray:
    """The larger number of rows of the two neighbours of each number on the grid; skipped ones have none."""
    beside = np.zeros(len(counts.rows))
    if grid is None:
        return beside
    place = np.round((counts.numbers - grid.origin) / grid.step)
    rows = np.where(skipped, 0, counts.rows)
    for distance in (1, 2):
        near = np.diff(place, n=1) if distance == 1 else place[2:] - place[:-2]
        adjacent = near <= 2
        lower, upper = slice(None, -distance), slice(distance, None)
        beside[lower] = np.maximum(beside[lower], np.where(adjacent, rows[upper], 0))
        beside[upper] = np.maximum(beside[upper], np.where(adjacent, rows[lower], 0))
    return beside


# ---- bounds


def find_bounds(counts: Counts, is_atom: np.ndarray) -> tuple[float, float]:
    """The least and the greatest number that the column may have, ±∞ if there is no bound.

    Bounds are 0 for numbers of one sign, 1 or 100 for shares that come near them, and a frequent value at an
    end of the data (a cap).
    """
    least, greatest = float(counts.numbers[0]), float(counts.numbers[-1])
    low, high = -math.inf, math.inf
    if least >= 0:
        low = 0.0
        high = next((top for top in (1.0, 100.0) if 0.98 * top < greatest <= top), high)
    elif greatest <= 0:
        high = 0.0
    return (least if is_atom[0] else low), (greatest if is_atom[-1] else high)


# ---- together


def number_part(counts: Counts, grid: Resolution | None, *, bounded: bool = True) -> Part:
    """Many numbers: quantile-normal, with atoms, the grid that they have and, if `bounded`, bounds."""
    is_atom = find_atoms(counts, grid)
    rest = Counts(counts.numbers[~is_atom], counts.rows[~is_atom])
    if len(rest.numbers) < 2:
        return code_part(counts.numbers, counts.total)
    low, high = find_bounds(counts, is_atom) if bounded else (-math.inf, math.inf)
    shift, scale = _units(counts, grid)
    masses = grid is not None and _middle_half(rest) <= _MOST_CELLS * grid.step
    knots = QuantileNormal.from_data(np.repeat((rest.numbers - shift) / scale, rest.rows))
    return NumberPart(
        knots=tuple(knots.values.tolist()),
        scores=tuple(knots.scores.tolist()),
        step=0.0 if grid is None else grid.step,
        origin=0.0 if grid is None else grid.origin,
        masses=masses,
        low=low,
        high=high,
        atoms=tuple(counts.numbers[is_atom].tolist()),
        shift=shift,
        scale=scale,
    )


def _middle_half(counts: Counts) -> float:
    quarters = np.searchsorted(np.cumsum(counts.rows), np.array([0.25, 0.75]) * counts.total)
    low, high = counts.numbers[np.minimum(quarters, len(counts.numbers) - 1)]
    return float(high - low) or float(counts.numbers[-1] - counts.numbers[0])


def _units(counts: Counts, grid: Resolution | None) -> tuple[float, float]:
    """Shift and scale of events, 0 and 1 unless float32 would lose digits or overflow."""
    least, greatest = float(counts.numbers[0]), float(counts.numbers[-1])
    largest, spread = max(abs(least), abs(greatest)), greatest - least
    step = max(spread * 1e-5 if grid is None else max(grid.step, spread / _EXACT), _TINIEST)
    if largest / step <= _EXACT and 1e-4 < largest < 1e8:
        return 0.0, 1.0
    shift = least if grid is None else grid.origin + grid.step * round((least - grid.origin) / grid.step)
    shift = shift if largest / step > _EXACT else 0.0
    return shift, 10.0 ** math.floor(math.log10(max(spread, _TINIEST))) if not 1e-4 < spread < 1e8 else 1.0
