"""Probabilities of events from the parameters of joints and trees, in numpy and scipy alone.

Kernels are read from their descriptions (`config`), components from their tensors. The outcomes of every
variable are cut into cells: single values, and the gaps between them. A boolean expression is true or false
in a whole cell, so the probability of an event is a sum over cells of all variables and over all states of
the model.
"""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import special
from torch.distributions import AffineTransform, ComposeTransform, ExpTransform, SigmoidTransform

import kdmkit as kdm
from kdmkit.distributions.events import Event

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(40)
# Ends of a quadrature's panels, in bandwidths from every centre.
_PANELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 8])
SIGNS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass
class Cells:
    """Cells of the outcomes of one variable.

    Attributes:
        values: a value in every cell; NaN is missing.
        masses: under every component, `(m, cells)`; of single values of densities their densities.
        orders: 1 for single values of densities, otherwise 0.
        moments: ∫ x dF over every cell, `(m, cells)`; NaN if it is not known.
    """

    values: np.ndarray
    masses: np.ndarray
    orders: np.ndarray
    moments: np.ndarray


# ---- kernels, read from their parameters


class Law(ABC):
    """The distribution of one variable under each of m components."""

    @abstractmethod
    def cells(self, cuts: Sequence[float]) -> Cells: ...


class Bump(ABC):
    """A symmetric density about every centre."""

    def __init__(self, centre: np.ndarray, scale: np.ndarray) -> None:
        self.centre, self.scale = centre, np.broadcast_to(scale, centre.shape)

    def log_mass(self, low: float, high: float) -> np.ndarray:
        """log P(low ≤ x ≤ high), from the tail in which both ends lie."""
        a, b = (low - self.centre) / self.scale, (high - self.centre) / self.scale
        flip = a > 0
        a, b = np.where(flip, -b, a), np.where(flip, -a, b)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            upper, lower = self.log_below(b), self.log_below(a)
            gap = np.where(np.isneginf(lower), -np.inf, lower - upper)
            return np.where(np.isneginf(upper), -np.inf, upper + np.log(-np.expm1(gap)))

    @abstractmethod
    def log_below(self, u: np.ndarray) -> np.ndarray:
        """The logarithm of the distribution function in units of the scale."""

    @abstractmethod
    def height(self, u: np.ndarray) -> np.ndarray:
        """The density in units of the scale."""

    def density(self, z: np.ndarray) -> np.ndarray:
        """`(m, n)`."""
        u = (z[None] - self.centre[:, None]) / self.scale[:, None]
        return self.height(u) / self.scale[:, None]


class Normal(Bump):
    def log_below(self, u: np.ndarray) -> np.ndarray:
        return special.log_ndtr(u * np.sqrt(2))

    def height(self, u: np.ndarray) -> np.ndarray:
        return np.exp(-(u**2)) / np.sqrt(np.pi)


class Biweight(Bump):
    """The square of Epanechnikov's kernel: (1 + u)/2 has the law Beta(3, 3)."""

    def log_below(self, u: np.ndarray) -> np.ndarray:
        return np.log(special.betainc(3, 3, np.clip((1 + u) / 2, 0, 1)))

    def height(self, u: np.ndarray) -> np.ndarray:
        return 15 / 16 * np.clip(1 - u**2, 0, None) ** 2


class SixthTricube(Bump):
    """The square of the tricube kernel: |u|³ has the law Beta(1/3, 7)."""

    def log_below(self, u: np.ndarray) -> np.ndarray:
        cube = np.clip(np.abs(u), 0, 1) ** 3
        tail = 0.5 * special.betaincc(1 / 3, 7, cube)
        return np.log(np.where(u < 0, tail, 1 - tail))

    def height(self, u: np.ndarray) -> np.ndarray:
        return np.clip(1 - np.abs(u) ** 3, 0, None) ** 6 * 3 / (2 * special.beta(1 / 3, 7))


class Map:
    """One step of a change of variable: increasing, or decreasing for an affine step."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = {name: np.asarray(value) for name, value in config.items()}
        self.kind, self.inverse = config["kind"], config["inverse"]

    def apply(self, x: np.ndarray, *, back: bool) -> np.ndarray:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            if self.kind == "affine":
                loc, scale = self.config["loc"], self.config["scale"]
                return (x - loc) / scale if back != self.inverse else loc + scale * x
            if self.kind == "exp":
                return np.log(np.maximum(x, 0)) if back != self.inverse else np.exp(x)
            if self.kind == "sigmoid":
                return special.logit(np.clip(x, 0, 1)) if back != self.inverse else special.expit(x)
            knots = [self.config["values"], self.config["scores"]]
            return _lines(x, *(knots[::-1] if back != self.inverse else knots))

    def slope(self, x: np.ndarray) -> np.ndarray:
        """|dz/dx| at x."""
        z = self.apply(x, back=False)
        if self.kind == "affine":
            scale = np.abs(self.config["scale"])
            return np.full_like(x, 1 / scale if self.inverse else scale)
        if self.kind == "exp":
            return 1 / x if self.inverse else z
        if self.kind == "sigmoid":
            return 1 / (x * (1 - x)) if self.inverse else z * (1 - z)
        step = np.diff(self.config["scores"]) / np.diff(self.config["values"])
        return step[_places(x, self.config["values"])]


def _places(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    return np.searchsorted(knots[1:-1], x, side="right")


def _lines(x: np.ndarray, knots: np.ndarray, heights: np.ndarray) -> np.ndarray:
    i = _places(x, knots)
    slope = np.diff(heights) / np.diff(knots)
    return heights[i] + (x - knots[i]) * slope[i]


class Line(Law):
    """A density on the line: a bump between two bounds, of a function of x."""

    def __init__(self, bump: Bump, low: float, high: float, maps: Sequence[Map]) -> None:
        self.bump, self.low, self.high, self.maps = bump, low, high, maps
        self.log_whole = bump.log_mass(low, high)

    def z(self, x: np.ndarray) -> np.ndarray:
        for step in self.maps:
            x = step.apply(x, back=False)
        return x

    def x(self, z: np.ndarray) -> np.ndarray:
        for step in reversed(self.maps):
            z = step.apply(z, back=True)
        return z

    def log_mass(self, low: float, high: float) -> np.ndarray:
        ends = np.clip(np.sort(self.z(np.array([low, high]))), self.low, self.high)
        if not ends[0] < ends[1]:
            return np.full(len(self.bump.centre), -np.inf)
        return self.bump.log_mass(*ends) - self.log_whole

    def density(self, x: float) -> np.ndarray:
        slope, z = 1.0, np.array([x])
        domain = self.x(np.array([-np.inf, np.inf]))
        if not domain.min() < x < domain.max():
            return np.zeros(len(self.bump.centre))
        for step in self.maps:
            slope, z = slope * step.slope(z), step.apply(z, back=False)
        inside = (z >= self.low) & (z <= self.high)
        return (np.where(inside, self.bump.density(z) * slope, 0) * np.exp(-self.log_whole)[:, None])[:, 0]

    @property
    def reach(self) -> tuple[float, float]:
        """Ends in z beyond which nothing of any component lies."""
        far = 14 * self.bump.scale
        first, last = (self.bump.centre - far).min(), (self.bump.centre + far).max()
        if first > self.high or last < self.low:
            return max(self.low, -1e3), min(self.high, 1e3)
        return max(self.low, first), min(self.high, last)

    def moment(self, low: float, high: float) -> np.ndarray:
        """∫ x dF between two numbers, by quadrature between bends of the map and of the components."""
        first, last = np.clip(np.sort(self.z(np.array([low, high]))), *self.reach)
        bends = [self.bump.centre + sign * k * self.bump.scale for sign in (-1, 1) for k in _PANELS]
        kinks = np.array([])
        for step in self.maps:
            kinks = step.apply(kinks, back=False)
            if step.kind == "quantile_normal":
                kinks = np.append(kinks, step.config["values" if step.inverse else "scores"])
        edges = np.unique(np.clip(np.concatenate([[first, last], *bends, kinks]), first, last))
        z = 0.5 * (edges[:-1] + edges[1:])[:, None] + 0.5 * np.diff(edges)[:, None] * _NODES
        mass = self.bump.density(z.ravel()) * np.exp(-self.log_whole)[:, None]
        weights = (0.5 * np.diff(edges)[:, None] * _NODE_WEIGHTS).ravel()
        return (mass * self.x(z.ravel())) @ weights

    def cells(self, cuts: Sequence[float]) -> Cells:
        ends = [-np.inf, *sorted(set(cuts)), np.inf]
        values, masses, orders, moments = [], [], [], []
        for low, high in itertools.pairwise(ends):
            values.append(_between(low, high))
            masses.append(np.exp(self.log_mass(low, high)))
            orders.append(0)
            moments.append(self.moment(low, high))
            if np.isfinite(high):
                values.append(high)
                masses.append(self.density(high))
                orders.append(1)
                moments.append(masses[-1] * high)
        return Cells(np.array(values), np.array(masses).T, np.array(orders), np.array(moments).T)


def _between(low: float, high: float) -> float:
    """A number strictly between two."""
    if np.isinf(low) or np.isinf(high):
        end = next((end for end in (low, high) if np.isfinite(end)), 0.0)
        return end + (1 if np.isinf(high) else -1) * (1 + abs(end))
    return 0.5 * (low + high)


class Grid(Law):
    """A line rounded to a grid."""

    def __init__(self, line: Line, step: float, origin: float) -> None:
        self.line, self.step, self.origin = line, step, origin

    def cells(self, cuts: Sequence[float]) -> Cells:
        ends = np.unique(cuts)
        position = (ends - self.origin) / self.step
        exact = np.isclose(position, np.round(position), rtol=0, atol=1e-9)
        # The groups of points between neighbouring cuts, and the points at cuts.
        first = np.where(exact, np.round(position), np.ceil(position))
        groups, last = [], -np.inf
        for place, is_point in zip(first, exact, strict=True):
            groups.append((last, place - 1))
            groups += [(place, place)] if is_point else []
            last = place + is_point
        groups.append((last, np.inf))
        values, masses, moments = [], [], []
        for low, high in groups:
            if low > high:
                continue
            at = self.origin + self.step * np.array([low, high])
            values.append(at[np.isfinite(at)].mean() if np.isfinite(at).any() else self.origin)
            masses.append(np.exp(self.line.log_mass(at[0] - self.step / 2, at[1] + self.step / 2)))
            moments.append(self._moment(*at))
        orders = np.zeros(len(values), int)
        return Cells(np.array(values), np.array(masses).T, orders, np.array(moments).T)

    def _moment(self, low: float, high: float) -> np.ndarray:
        if low == high:
            return low * np.exp(self.line.log_mass(low - self.step / 2, high + self.step / 2))
        ends = np.sort(self.line.x(np.array(self.line.reach)))
        low, high = max(low, ends[0] - self.step), min(high, ends[1] + self.step)
        first, last = np.ceil((low - self.origin) / self.step), np.floor((high - self.origin) / self.step)
        if last - first > 3000:
            return np.full(len(self.line.bump.centre), np.nan)
        points = self.origin + self.step * np.arange(first, last + 1)
        halves = [(x - self.step / 2, x + self.step / 2) for x in points]
        return sum(
            (np.exp(self.line.log_mass(*ends)) * x for ends, x in zip(halves, points, strict=True)),
            np.zeros(len(self.line.bump.centre)),
        )


class WithAtoms(Law):
    """A line or a grid with atoms, of which NaN may be one."""

    def __init__(self, rest: Law, atoms: Sequence[float], logits: np.ndarray) -> None:
        self.rest, self.atoms, self.probs = rest, np.array(atoms), special.softmax(logits, -1)

    def cells(self, cuts: Sequence[float]) -> Cells:
        cells = self.rest.cells([*cuts, *self.atoms[~np.isnan(self.atoms)]])
        values, orders = cells.values, cells.orders.copy()
        masses, moments = self.probs[:, :1] * cells.masses, self.probs[:, :1] * cells.moments
        for place, atom in enumerate(self.atoms, start=1):
            share = self.probs[:, place]
            if np.isnan(atom):
                values, orders = np.append(values, np.nan), np.append(orders, 0)
                masses, moments = (
                    np.column_stack([part, extra]) for part, extra in ((masses, share), (moments, 0 * share))
                )
                continue
            (i,) = np.flatnonzero(values == atom)
            if orders[i]:
                masses[:, i], moments[:, i], orders[i] = 0.0, 0.0, 0
            masses[:, i] += share
            moments[:, i] += share * atom
        return Cells(values, masses, orders, moments)


class Codes(Law):
    """Levels, categories, or labels."""

    def __init__(self, probs: np.ndarray) -> None:
        self.probs = probs

    def cells(self, cuts: Sequence[float]) -> Cells:
        values = np.arange(self.probs.shape[1])
        return Cells(values, self.probs, np.zeros(len(values), int), self.probs * np.nan)


class Circle(Law):
    """A density on a circle, or masses of whole numbers on it."""

    def __init__(self, centre: np.ndarray, kappa: np.ndarray, period: float, *, whole: bool) -> None:
        self.centre, self.kappa = centre, np.broadcast_to(kappa, centre.shape)
        self.period, self.whole = period, whole

    def density(self, x: np.ndarray) -> np.ndarray:
        def height(at: np.ndarray) -> np.ndarray:
            angle = (at[None] - self.centre[:, None]) * (2 * np.pi / self.period)
            return np.exp(self.kappa[:, None] * (np.cos(angle) - 1))

        if self.whole:
            return height(x) / height(np.arange(self.period)).sum(-1, keepdims=True)
        return height(x) / (special.i0e(self.kappa)[:, None] * self.period)

    def cells(self, cuts: Sequence[float]) -> Cells:
        if self.whole:
            values = np.arange(self.period)
            masses = self.density(values)
            return Cells(values, masses, np.zeros(len(values), int), masses * np.nan)
        ends = [0.0, *sorted(set(cuts) - {0.0}), self.period]
        values, masses, orders = [], [], []
        for low, high in itertools.pairwise(ends):
            edges = np.linspace(low, high, 9)
            x = 0.5 * (edges[:-1] + edges[1:])[:, None] + 0.5 * np.diff(edges)[:, None] * _NODES
            values.append(0.5 * (low + high))
            masses.append(self.density(x.ravel()) @ (0.5 * np.diff(edges)[:, None] * _NODE_WEIGHTS).ravel())
            orders.append(0)
            if high < self.period:
                values.append(high)
                masses.append(self.density(np.array([high]))[:, 0])
                orders.append(1)
        table = np.array(masses).T
        return Cells(np.array(values), table, np.array(orders), table * np.nan)


def read(config: dict[str, Any], components: np.ndarray) -> Law:
    """The distribution that a kernel's description and its components stand for."""
    match config["kernel"]:
        case "Levels":
            s, n = config["smoothing"], config["n"]
            return Codes((1 - s) * special.softmax(components, -1) + s / n)
        case "Categorical":
            s, n = config["smoothing"], config["n"]
            return Codes(np.where(components[:, None] == np.arange(n), 1.0, s) / (1 + (n - 1) * s))
        case "Cosine":
            return Codes(np.abs(components) ** 2 / (np.abs(components) ** 2).sum(-1, keepdims=True))
        case "Periodic":
            sigma = np.asarray(config["sigma"]).reshape(-1)
            kappa = (config["period"] / sigma) ** 2 / (2 * np.pi**2)
            return Circle(components[:, 0], kappa, config["period"], whole=config["whole"])
        case "Inflated":
            n = len(config["atoms"]) + 1
            atoms = [np.nan if atom is None else atom for atom in config["atoms"]]
            return WithAtoms(read(config["inner"], components[:, n:]), atoms, components[:, :n])
        case "Rounded":
            line = read(config["inner"], components)
            assert isinstance(line, Line)
            return Grid(line, config["step"], config["origin"])
        case "Transformed":
            line = read(config["inner"], components)
            assert isinstance(line, Line)
            return Line(line.bump, line.low, line.high, [Map(step) for step in config["transform"]])
        case "Truncated":
            line = read(config["inner"], components)
            assert isinstance(line, Line)
            low, high = (
                np.inf * sign if end is None else end
                for sign, end in ((-1, config["low"]), (1, config["high"]))
            )
            return Line(line.bump, low, high, ())
    kind, name = {"RBF": (Normal, "sigma"), "Epanechnikov": (Biweight, "h"), "Tricube": (SixthTricube, "h")}[
        config["kernel"]
    ]
    scale = np.asarray(config[name], dtype=float).reshape(-1)
    return Line(kind(components[:, 0], scale), -np.inf, np.inf, ())


# ---- random variables


@dataclass
class Variable:
    """A kernel and components for the library, their meaning for the oracle, and values to compare with."""

    kernel: kdm.Kernel
    components: torch.Tensor
    values: Sequence[Any]
    kind: str

    @property
    def law(self) -> Law:
        components = self.components.detach()
        wide = components.cdouble() if components.is_complex() else components.double()
        return read(
            self.kernel.config(),
            wide.numpy() if components.is_floating_point() or components.is_complex() else components.numpy(),
        )

    @property
    def has_missing(self) -> bool:
        return isinstance(self.kernel, kdm.Inflated) and bool(self.kernel.atoms.isnan().any())

    def event(self, values: Sequence[Any]) -> torch.Tensor:
        """Values as evidence."""
        if self.kind in ("codes", "labels"):
            return torch.tensor(values)
        return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)

    def cells(self, cuts: Sequence[float]) -> Cells:
        return self.law.cells(cuts)


def _line(rng: np.random.Generator, m: int) -> Variable:
    """A density on the line, perhaps between bounds, of x or of a function of it."""
    centre, scale = rng.normal(0, 1, m), rng.uniform(0.3, 1.5, (m, 1) if rng.random() < 0.7 else ())
    low, high = (-0.75, None) if rng.random() < 0.3 else (None, None)
    if rng.random() < 0.3:
        high = 1.25
    centre = np.clip(centre, -np.inf if low is None else low, np.inf if high is None else high)
    sigma = torch.tensor(scale, dtype=torch.float64)
    bump = [kdm.RBF, kdm.RBF, kdm.Epanechnikov, kdm.Tricube][rng.integers(4)]
    kernel: Any = bump(sigma)
    if low is not None or high is not None:
        kernel = kdm.Truncated(kernel, low, high)
    # None is a bound: rounding decides what lies there.
    values = np.round(np.append(rng.normal(0, 1, 5), [-0.76, -0.74, 1.24, 1.26, -9, 9]), 3)
    values = values[~np.isin(values, [-0.75, 1.25])]
    change = _change(rng)
    if change is not None:
        kernel = kdm.Transformed(kernel, change)
        values = change.inv(torch.tensor(values)).numpy()
    return Variable(kernel, torch.tensor(centre).unsqueeze(-1), np.unique(values).tolist(), "line")


def _change(rng: np.random.Generator) -> Any:
    pick = rng.integers(6)
    if pick == 0:
        return ExpTransform().inv
    if pick == 1:
        return SigmoidTransform().inv
    if pick == 2:
        return AffineTransform(float(rng.normal()), float(rng.choice([-2.0, 0.5])))
    if pick == 3:
        knots = np.cumsum(rng.uniform(0.1, 1, (2, 6)), -1) - 2
        return kdm.kernels.QuantileNormal(*knots)
    if pick == 4:
        knots = np.cumsum(rng.uniform(0.1, 1, (2, 5)), -1) - 2
        return ComposeTransform([ExpTransform().inv, kdm.kernels.QuantileNormal(*knots)])
    return None


def _grid(rng: np.random.Generator, line: Variable) -> Variable:
    step, origin = float(rng.choice([0.25, 0.5, 1.0])), float(rng.choice([0.0, 0.125]))
    kernel = kdm.Rounded(line.kernel, step, origin=origin)
    on_grid = origin + step * rng.integers(-3, 8, 5)
    values = [*on_grid.tolist(), *line.values[1:4], float(on_grid[0]) + 0.3 * step]
    return Variable(kernel, line.components, values, "grid")


def _with_atoms(rng: np.random.Generator, rest: Variable) -> Variable:
    atoms = [[0.0, 2.0], [1.0], [0.0, np.nan], [0.5, np.nan]][rng.integers(4)]
    if isinstance(rest.kernel, kdm.Rounded):
        atoms = [
            rest.kernel.origin + rest.kernel.step * round(atom) if atom == atom else atom for atom in atoms
        ]
    logits = torch.tensor(rng.normal(0, 1, (len(rest.components), 1 + len(atoms))))
    values = [*rest.values, *(atom for atom in atoms if atom == atom)]
    return Variable(
        kdm.Inflated(rest.kernel, atoms), torch.cat([logits, rest.components], -1), values, "atoms"
    )


def _codes(rng: np.random.Generator, m: int) -> Variable:
    n, s = int(rng.integers(2, 6)), float(rng.uniform(0.01, 0.3))
    pick = rng.integers(3)
    if pick == 0:
        kernel: kdm.Kernel = kdm.Levels(n, s)
        components = torch.tensor(rng.normal(0, 2, (m, n)))
    elif pick == 1:
        kernel, components = kdm.Categorical(n, s).double(), torch.tensor(rng.integers(0, n, m))
    else:
        kernel, components = kdm.Cosine(), torch.tensor(rng.normal(0, 1, (m, n)))
    return Variable(kernel, components, list(range(n)), "labels" if pick == 2 else "codes")


def _circle(rng: np.random.Generator, m: int) -> Variable:
    whole = bool(rng.random() < 0.5)
    period = 7.0 if whole else float(rng.choice([1.0, 24.0]))
    kappa = torch.tensor(rng.uniform(0.2, 8, (m, 1)))
    kernel = kdm.Periodic(kappa, period, whole=whole)
    values = rng.uniform(0.01, 0.99, 5) * period
    values = np.floor(values).tolist() if whole else values.round(3).tolist()
    return Variable(kernel, torch.tensor(rng.uniform(0, period, (m, 1))), values, "circle")


def random_variable(rng: np.random.Generator, m: int) -> Variable:
    """A variable of any kind."""
    pick = rng.integers(8)
    if pick == 5:
        return _circle(rng, m)
    if pick > 5:
        return _codes(rng, m)
    line = _line(rng, m)
    rest = line if pick < 2 or rng.random() < 0.5 else _grid(rng, line)
    return rest if pick < 3 else _with_atoms(rng, rest)


#: Whether an event holds in every cell of one variable, or of several by broadcasting.
Truth = Callable[[dict[str, np.ndarray]], np.ndarray]


@dataclass
class Said:
    """An event, and its truth by cells."""

    event: Event
    truth: Truth
    cuts: dict[str, list[float]] = field(default_factory=dict)

    def joined(self, other: Said, event: Event, function: Callable[..., np.ndarray]) -> Said:
        names = {*self.cuts, *other.cuts}
        cuts = {name: [*self.cuts.get(name, []), *other.cuts.get(name, [])] for name in names}
        return Said(event, lambda v: function(self.truth(v), other.truth(v)), cuts)

    def __and__(self, other: Said) -> Said:
        return self.joined(other, self.event & other.event, np.logical_and)

    def __or__(self, other: Said) -> Said:
        return self.joined(other, self.event | other.event, np.logical_or)

    def __invert__(self) -> Said:
        return Said(~self.event, lambda v: ~self.truth(v), self.cuts)


def compare(name: str, sign: str, value: Any) -> Said:
    """variable < value, and its kind."""
    event = SIGNS[sign](kdm.col(name), value)
    return Said(event, lambda v: SIGNS[sign](v[name], value), {name: [value]})


def is_missing(name: str) -> Said:
    return Said(kdm.col(name).is_missing(), lambda v: np.isnan(v[name]), {name: []})


def random_condition(rng: np.random.Generator, name: str, variable: Variable) -> Said:
    """A comparison, a range, a set, or that the value is missing."""
    values = variable.values
    if variable.has_missing and rng.random() < 0.2:
        return is_missing(name)
    some = sorted(rng.choice(values, min(3, len(values)), replace=False).tolist())
    pick = rng.random()
    if pick < 0.5 or some[0] == some[-1]:
        return compare(name, str(rng.choice(list(SIGNS))), some[0])
    if pick < 0.8:
        closed = str(rng.choice(["both", "left", "right", "neither"]))
        over, under = (
            (">=" if closed in ("both", "left") else ">"),
            ("<=" if closed in ("both", "right") else "<"),
        )
        both = compare(name, over, some[0]) & compare(name, under, some[-1])
        return Said(kdm.col(name).between(some[0], some[-1], closed), both.truth, both.cuts)  # type: ignore[arg-type]
    one, other = compare(name, "=", some[0]), compare(name, "=", some[-1])
    either = one | other
    return Said(kdm.col(name).isin([some[0], some[-1]]), either.truth, either.cuts)


def random_event(rng: np.random.Generator, variables: dict[str, Variable], depth: int = 2) -> Said:
    """A boolean expression of conditions."""
    pick = rng.random()
    if depth == 0 or pick < 0.35:
        name = str(rng.choice(list(variables)))
        return random_condition(rng, name, variables[name])
    if pick < 0.5:
        return ~random_event(rng, variables, depth - 1)
    one, other = random_event(rng, variables, depth - 1), random_event(rng, variables, depth - 1)
    return one & other if pick < 0.75 else one | other


@dataclass
class Model:
    """A joint or a tree, as the library has it and as a table of states.

    Attributes:
        make: the joint or the tree with other components.
        weights: of all states together.
        places: by variable, its component in every state.
    """

    make: Callable[[dict[str, torch.Tensor]], Any]
    variables: dict[str, Variable]
    weights: np.ndarray
    places: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        self.rho = self.make({name: one.components for name, one in self.variables.items()})

    def shares(self, said: Said) -> tuple[int, np.ndarray]:
        """How many densities are in the event, and its probability or density together with every state."""
        cells = {
            name: one.cells(said.cuts.get(name, []))
            for name, one in self.variables.items()
            if name in said.cuts
        }
        names = list(cells)
        grids = np.meshgrid(*(cells[name].values for name in names), indexing="ij")
        holds = np.broadcast_to(said.truth(dict(zip(names, grids, strict=True))), grids[0].shape)
        orders = sum(np.meshgrid(*(cells[name].orders for name in names), indexing="ij"))
        for order in range(int(orders.max()) + 1):
            here = (holds & (orders == order)).astype(float)
            total = self._contracted(here, [cells[name].masses[self.places[name]] for name in names])
            if (self.weights * total).sum() > 0:
                return order, self.weights * total
        return 99, np.zeros(len(self.weights))

    @staticmethod
    def _contracted(here: np.ndarray, masses: Sequence[np.ndarray]) -> np.ndarray:
        total = np.broadcast_to(here, (len(masses[0]), *here.shape))
        for table in reversed(masses):
            total = np.einsum("s...c,sc->s...", total, table)
        return total

    def mean(self, said: Said, target: str) -> float:
        """E[target | event] of an event with a probability."""
        cuts = {**said.cuts, target: said.cuts.get(target, [])}
        cells = {name: self.variables[name].cells(cuts[name]) for name in cuts}
        names = list(cells)
        grids = np.meshgrid(*(cells[name].values for name in names), indexing="ij")
        orders = sum(np.meshgrid(*(cells[name].orders for name in names), indexing="ij"))
        holds = np.broadcast_to(said.truth(dict(zip(names, grids, strict=True))), grids[0].shape) & (
            orders == 0
        )
        tables = [cells[n].moments if n == target else cells[n].masses for n in names]
        first = self._contracted(
            holds.astype(float), [t[self.places[n]] for n, t in zip(names, tables, strict=True)]
        )
        return float((self.weights * first).sum() / self.shares(said)[1].sum())


def random_joint(rng: np.random.Generator) -> Model:
    m = int(rng.integers(2, 7))
    variables = {name: random_variable(rng, m) for name in "xyz"[: rng.integers(1, 4)]}
    weights = rng.dirichlet(np.ones(m))

    def make(components: dict[str, torch.Tensor]) -> kdm.JointKDM:
        return kdm.JointKDM(components, torch.tensor(weights), {n: v.kernel for n, v in variables.items()})

    return Model(make, variables, weights, {name: np.arange(m) for name in variables})


def random_tree(rng: np.random.Generator) -> Model:
    names = "xyzt"[: rng.integers(2, 5)]
    sizes = {name: int(rng.integers(2, 5)) for name in names}
    variables = {name: random_variable(rng, m) for name, m in sizes.items()}
    parents: dict[str, str | None] = {
        n: str(rng.choice(list(names[:i]))) if i else None for i, n in enumerate(names)
    }
    root = rng.dirichlet(np.ones(sizes[names[0]]))
    edges = {n: rng.dirichlet(np.ones(sizes[n]), sizes[p]) for n, p in parents.items() if p is not None}

    def make(components: dict[str, torch.Tensor]) -> kdm.TreeKDM:
        kernels = {n: v.kernel for n, v in variables.items()}
        tables = {n: torch.tensor(table) for n, table in edges.items()}
        return kdm.TreeKDM(components, kernels, parents, torch.tensor(root), tables)

    states = np.array(list(itertools.product(*(range(sizes[n]) for n in names))))
    places = {name: states[:, i] for i, name in enumerate(names)}
    weights = root[places[names[0]]]
    for name, table in edges.items():
        weights = weights * table[places[parents[name]], places[name]]  # type: ignore[index]
    return Model(make, variables, weights, places)
