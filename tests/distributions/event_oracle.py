"""Probabilities of events from the parameters of joints and trees, in numpy and scipy alone.

The outcomes of every variable are cut into cells: single values, and the gaps between them. A boolean
expression is true or false in a whole cell, so the probability of an event is a sum over cells of all
variables and over all states of the model.
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
from torch.distributions import ExpTransform

import kdmkit as kdm
from kdmkit.distributions.events import Event

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(80)
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
        values: a value in every cell.
        masses: under every component, `(m, cells)`; of single values of densities their densities.
        orders: 1 for single values of densities, otherwise 0.
        moments: ∫ x dF over every cell, `(m, cells)`; NaN if it is not known.
    """

    values: np.ndarray
    masses: np.ndarray
    orders: np.ndarray
    moments: np.ndarray


class Variable(ABC):
    """A variable: its kernel and components for the library, its cells for the oracle."""

    kernel: kdm.Kernel
    components: torch.Tensor
    #: Values to compare with.
    values: Sequence[Any]

    @abstractmethod
    def cells(self, cuts: Sequence[float]) -> Cells: ...


def _biweight_cdf(u: np.ndarray) -> np.ndarray:
    """∫ (15/16)·(1 − t²)² dt from −1: the square of Epanechnikov's kernel."""
    return 0.5 + 15 / 16 * (u - 2 / 3 * u**3 + u**5 / 5)


class Line(Variable):
    """A density on the line, perhaps truncated, of x or of log x."""

    def __init__(self, rng: np.random.Generator, m: int, kind: str, *, low: float, is_log: bool) -> None:
        self.kind, self.low, self.is_log = kind, low, is_log
        self.centre, self.scale = rng.normal(0, 1, m), rng.uniform(0.5, 1.5, m)
        self.centre = np.maximum(self.centre, low)
        sigma = torch.tensor(self.scale).unsqueeze(-1)
        kernel: Any = kdm.RBF(sigma) if kind == "rbf" else kdm.Epanechnikov(sigma)
        if np.isfinite(low):
            kernel = kdm.Truncated(kernel, low, None)
        self.kernel = kdm.Transformed(kernel, ExpTransform().inv) if is_log else kernel
        self.components = torch.tensor(self.centre).unsqueeze(-1)
        values = np.round(np.append(rng.normal(0, 1, 4), [low + 0.5, -9, 9]), 2)
        values = values[np.isfinite(values)]
        self.values = np.exp(values).tolist() if is_log else values.tolist()

    def _unit(self, z: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return function((np.asarray(z)[None] - self.centre[:, None]) / self.scale[:, None])

    def _upto(self, z: np.ndarray) -> np.ndarray:
        """The distribution function of the inner kernel without bounds."""
        if self.kind == "rbf":
            return self._unit(z, lambda u: special.ndtr(u * np.sqrt(2)))
        return self._unit(z, lambda u: _biweight_cdf(np.clip(u, -1, 1)))

    def _inner_density(self, z: np.ndarray) -> np.ndarray:
        if self.kind == "rbf":
            height = self._unit(z, lambda u: np.exp(-(u**2)) / np.sqrt(np.pi))
        else:
            height = self._unit(z, lambda u: 15 / 16 * np.clip(1 - u**2, 0, None) ** 2)
        return np.where(np.asarray(z) >= self.low, height / self.scale[:, None], 0) / self._total

    @property
    def _total(self) -> np.ndarray:
        return (
            1 - self._upto(np.array([self.low])) if np.isfinite(self.low) else np.ones((len(self.centre), 1))
        )

    def _latent(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(x, 0)) if self.is_log else np.asarray(x)

    def cdf(self, x: np.ndarray) -> np.ndarray:
        below = self._upto(self._latent(x))
        if np.isfinite(self.low):
            start = self._upto(np.array([self.low]))
            below = np.clip(below - start, 0, None)
        return below / self._total

    def density(self, x: np.ndarray) -> np.ndarray:
        inner = self._inner_density(self._latent(x))
        return inner / x if self.is_log else inner

    def _moment(self, low: float, high: float) -> np.ndarray:
        """∫ x dF between two numbers, by quadrature between the ends of the components' supports."""
        first, last = (float(end) for end in self._latent(np.array([low, high])))
        first, last = max(first, self.low, -12.0), min(last, 14.0)
        edges = np.unique(
            np.clip([first, *(self.centre - self.scale), *(self.centre + self.scale), last], first, last)
        )
        total = np.zeros(len(self.centre))
        for a, b in itertools.pairwise(edges) if first < last else ():
            z = 0.5 * (a + b) + 0.5 * (b - a) * _NODES
            x = np.exp(z) if self.is_log else z
            total += 0.5 * (b - a) * (self._inner_density(z) * x) @ _NODE_WEIGHTS
        return total

    def cells(self, cuts: Sequence[float]) -> Cells:
        ends = [-np.inf, *sorted(set(cuts)), np.inf]
        values, masses, orders, moments = [], [], [], []
        for low, high in itertools.pairwise(ends):
            inner = 0.5 * (max(low, ends[1] - 2) + min(high, ends[-2] + 2)) if len(ends) > 2 else 0.5
            values.append(inner)
            masses.append((self.cdf(np.array([high])) - self.cdf(np.array([low])))[:, 0])
            orders.append(0)
            moments.append(self._moment(low, high))
            if np.isfinite(high):
                values.append(high)
                is_inside = high > 0 or not self.is_log
                masses.append(
                    self.density(np.array([high]))[:, 0] if is_inside else np.zeros(len(self.centre))
                )
                orders.append(1)
                moments.append(masses[-1] * high)
        return Cells(np.array(values), np.array(masses).T, np.array(orders), np.array(moments).T)


class Grid(Variable):
    """A line rounded to a grid."""

    def __init__(self, rng: np.random.Generator, m: int, line: Line) -> None:
        self.line, self.step = line, float(rng.choice([0.5, 1.0]))
        self.kernel, self.components = kdm.Rounded(line.kernel, self.step), line.components
        self.values = (self.step * rng.integers(-3, 4, 5)).tolist()

    def cells(self, cuts: Sequence[float]) -> Cells:
        points = self.step * np.arange(-60, 200_000 if self.line.is_log else 60)
        table = self.line.cdf(points + self.step / 2) - self.line.cdf(points - self.step / 2)
        # Points between the same cuts are one cell.
        ends = np.unique(cuts)
        place = np.searchsorted(ends, points, "left") + np.searchsorted(ends, points, "right")
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        masses, moments = (np.add.reduceat(part, starts, 1) for part in (table, table * points))
        return Cells(points[starts], masses, np.zeros(len(starts), int), moments)


class WithAtoms(Variable):
    """A line or a grid with atoms."""

    def __init__(self, rng: np.random.Generator, m: int, rest: Line | Grid) -> None:
        self.rest = rest
        self.atoms = [0.0, 2.0] if rng.random() < 0.5 else [1.0]
        self.kernel = kdm.Inflated(rest.kernel, self.atoms)
        logits = rng.normal(0, 1, (m, 1 + len(self.atoms)))
        self.components = torch.cat([torch.tensor(logits), rest.components], -1)
        self.probs = special.softmax(logits, -1)
        self.values = [*rest.values, *self.atoms]

    def cells(self, cuts: Sequence[float]) -> Cells:
        cells = self.rest.cells([*cuts, *self.atoms])
        is_atom = [np.flatnonzero(cells.values == atom) for atom in self.atoms]
        masses, moments, orders = (
            self.probs[:, :1] * cells.masses,
            self.probs[:, :1] * cells.moments,
            cells.orders.copy(),
        )
        for place, index in enumerate(is_atom):
            i = index[orders[index] == 1][0] if (orders[index] == 1).any() else index[0]
            if orders[i]:
                masses[:, i], moments[:, i], orders[i] = 0.0, 0.0, 0
            masses[:, i] += self.probs[:, 1 + place]
            moments[:, i] += self.probs[:, 1 + place] * self.atoms[place]
        return Cells(cells.values, masses, orders, moments)


class Codes(Variable):
    """Levels, or categories."""

    def __init__(self, rng: np.random.Generator, m: int, *, levels: bool) -> None:
        n, s = int(rng.integers(2, 6)), float(rng.uniform(0.01, 0.3))
        if levels:
            logits = rng.normal(0, 2, (m, n))
            self.kernel, self.components = kdm.Levels(n, s), torch.tensor(logits)
            self.probs = (1 - s) * special.softmax(logits, -1) + s / n
        else:
            codes = rng.integers(0, n, m)
            self.kernel, self.components = kdm.Categorical(n, s).double(), torch.tensor(codes)
            self.probs = np.where(codes[:, None] == np.arange(n), 1.0, s) / (1 + (n - 1) * s)
        self.values = list(range(n))

    def cells(self, cuts: Sequence[float]) -> Cells:
        values = np.array(self.values)
        return Cells(values, self.probs, np.zeros(len(values), int), self.probs * np.nan)


class Circle(Variable):
    """A density on a circle, or masses of whole numbers on it."""

    def __init__(self, rng: np.random.Generator, m: int, *, whole: bool) -> None:
        self.period, self.whole = 7.0 if whole else float(rng.choice([1.0, 24.0])), whole
        self.centre, self.kappa = rng.uniform(0, self.period, m), rng.uniform(0.2, 8, m)
        self.kernel = kdm.Periodic(torch.tensor(self.kappa).unsqueeze(-1), self.period, whole=whole)
        self.components = torch.tensor(self.centre).unsqueeze(-1)
        values = rng.uniform(0.01, 0.99, 5) * self.period
        self.values = np.floor(values).tolist() if whole else values.round(3).tolist()

    def _density(self, x: np.ndarray) -> np.ndarray:
        angle = (x[None] - self.centre[:, None]) * (2 * np.pi / self.period)
        height = np.exp(self.kappa[:, None] * (np.cos(angle) - 1))
        if self.whole:
            every = np.arange(self.period)
            angles = (every[None] - self.centre[:, None]) * (2 * np.pi / self.period)
            return height / np.exp(self.kappa[:, None] * (np.cos(angles) - 1)).sum(-1, keepdims=True)
        return height / (special.i0e(self.kappa)[:, None] * self.period)

    def cells(self, cuts: Sequence[float]) -> Cells:
        if self.whole:
            values = np.arange(self.period)
            masses = self._density(values)
            return Cells(values, masses, np.zeros(len(values), int), masses * np.nan)
        ends = [0.0, *sorted(set(cuts)), self.period]
        values, masses, orders = [], [], []
        for low, high in itertools.pairwise(ends):
            x = 0.5 * (low + high) + 0.5 * (high - low) * _NODES
            values.append(0.5 * (low + high))
            masses.append(0.5 * (high - low) * self._density(x) @ _NODE_WEIGHTS)
            orders.append(0)
            if high < self.period:
                values.append(high)
                masses.append(self._density(np.array([high]))[:, 0])
                orders.append(1)
        table = np.array(masses).T
        return Cells(np.array(values), table, np.array(orders), table * np.nan)


def random_variable(rng: np.random.Generator, m: int) -> Variable:
    """A variable of any kind."""
    low = float(rng.choice([-np.inf, -0.75]))
    line = Line(
        rng, m, str(rng.choice(["rbf", "rbf", "epanechnikov"])), low=low, is_log=bool(rng.random() < 0.3)
    )
    pick = rng.integers(8)
    if pick < 2:
        return line
    if pick == 2:
        return Grid(rng, m, line)
    if pick < 5:
        return WithAtoms(rng, m, Grid(rng, m, line) if rng.random() < 0.4 else line)
    if pick == 5:
        return Circle(rng, m, whole=bool(rng.random() < 0.5))
    return Codes(rng, m, levels=bool(rng.random() < 0.5))


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


def random_condition(rng: np.random.Generator, name: str, values: Sequence[Any]) -> Said:
    """A comparison, a range or a set."""
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
        return random_condition(rng, name, variables[name].values)
    if pick < 0.5:
        return ~random_event(rng, variables, depth - 1)
    one, other = random_event(rng, variables, depth - 1), random_event(rng, variables, depth - 1)
    return one & other if pick < 0.75 else one | other


@dataclass
class Model:
    """A joint or a tree, as the library has it and as a table of states.

    Attributes:
        weights: of all states together.
        places: by variable, its component in every state.
    """

    rho: Any
    variables: dict[str, Variable]
    weights: np.ndarray
    places: dict[str, np.ndarray]

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
    rho = kdm.JointKDM(
        {n: v.components for n, v in variables.items()},
        torch.tensor(weights),
        {n: v.kernel for n, v in variables.items()},
    )
    return Model(rho, variables, weights, {name: np.arange(m) for name in variables})


def random_tree(rng: np.random.Generator) -> Model:
    names = "xyzt"[: rng.integers(2, 5)]
    sizes = {name: int(rng.integers(2, 5)) for name in names}
    variables = {name: random_variable(rng, m) for name, m in sizes.items()}
    parents: dict[str, str | None] = {
        n: str(rng.choice(list(names[:i]))) if i else None for i, n in enumerate(names)
    }
    root = rng.dirichlet(np.ones(sizes[names[0]]))
    edges = {n: rng.dirichlet(np.ones(sizes[n]), sizes[p]) for n, p in parents.items() if p is not None}
    rho = kdm.TreeKDM(
        {n: v.components for n, v in variables.items()},
        {n: v.kernel for n, v in variables.items()},
        parents,
        torch.tensor(root),
        {n: torch.tensor(table) for n, table in edges.items()},
    )
    states = np.array(list(itertools.product(*(range(sizes[n]) for n in names))))
    places = {name: states[:, i] for i, name in enumerate(names)}
    weights = root[places[names[0]]]
    for name, table in edges.items():
        weights = weights * table[places[parents[name]], places[name]]  # type: ignore[index]
    return Model(rho, variables, weights, places)
