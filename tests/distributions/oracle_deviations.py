"""How far answers of joints and trees are from sums over cells and states in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

import kdmkit as kdm
from distributions.event_oracle import (
    Model,
    Said,
    Variable,
    compare,
    is_missing,
    random_event,
    random_joint,
    random_tree,
)

#: Deviations may be this large in double precision.
TOLERANCE = 1e-7


class Deviation(NamedTuple):
    """How far an answer is from the oracle's.

    Attributes:
        what: the kind of answer.
        size: relative to 1 + the size of the answer, for logarithms, means and gradients.
        where: what was asked.
    """

    what: str
    size: float
    where: tuple[object, ...]

    @property
    def limit(self) -> float:
        return TOLERANCE


def model_of(seed: int) -> tuple[np.random.Generator, Model]:
    rng = np.random.default_rng(seed)
    return rng, random_tree(rng) if seed % 2 else random_joint(rng)


def deviations(seed: int) -> Iterator[Deviation]:
    """The deviations of events, posteriors, rows and marginals of one model."""
    rng, model = model_of(seed)
    for _ in range(4):
        said = random_event(rng, model.variables)
        where = (seed, str(said.event))
        order, shares = model.shares(said)
        total = float(shares.sum())
        log_p = model.rho.log_prob(said.event).item()
        yield Deviation("P(event)", abs(np.exp(log_p) - (total if order == 0 else 0.0)), where)
        if order == 0 and total > 1e-290:
            yield Deviation("log P(event)", _relative(log_p, np.log(total)), where)
        if total < 1e-12:
            continue
        for target in model.variables:
            yield from of_posterior(rng, model, said, target, order, shares)
    yield from of_points(rng, model)
    yield from of_marginals(rng, model)


def _relative(got: float, wanted: float) -> float:
    return float(abs(got - wanted) / (1 + abs(wanted)))


def of_posterior(
    rng: np.random.Generator, model: Model, said: Said, target: str, order: int, shares: np.ndarray
) -> Iterator[Deviation]:
    where = (str(said.event), target)
    rho = model.rho.infer(said.event, target=target)
    total = shares.sum()
    yield Deviation("log evidence", _relative(rho.log_evidence.item(), np.log(total)), where)
    if target not in said.cuts:
        weights = np.bincount(model.places[target], shares, len(rho.weights)) / total
        yield Deviation("weights", float(np.abs(rho.weights.numpy() - weights).max()), where)
    variable = model.variables[target]
    if variable.kind in ("codes", "labels"):
        for code in variable.values:
            both = model.shares(said & compare(target, "=", code))
            wanted = both[1].sum() / total if both[0] == order else 0.0
            yield Deviation("P(code) given the event", abs(rho.probs[code].item() - wanted), (*where, code))
        return
    for value in rng.choice(variable.values, 2):
        both = model.shares(said & compare(target, "<=", float(value)))
        wanted = both[1].sum() / total if both[0] == order else 0.0
        got = rho.log_mass(kdm.Interval(None, float(value))).exp().item()
        yield Deviation("P(x <= value) given the event", abs(got - wanted), (*where, value, got, wanted))
        if variable.kind in ("line", "grid") and order == 0:
            cdf = rho.cdf(variable.event([float(value)])[0]).item()
            yield Deviation("cdf", abs(cdf - wanted), (*where, value, cdf, wanted))
    present = said & ~is_missing(target) if variable.has_missing else said
    if order == 0 and variable.kind != "circle" and _p(model, present) > 1e-6:
        wanted = model.mean(present, target)
        if np.isfinite(wanted):
            yield Deviation("mean", _relative(rho.mean.item(), wanted), (*where, wanted))


def _p(model: Model, said: Said) -> float:
    order, shares = model.shares(said)
    return 0.0 if order else float(shares.sum())


def of_marginals(rng: np.random.Generator, model: Model) -> Iterator[Deviation]:
    names = list(model.variables)
    for name in names:
        said = random_event(rng, {name: model.variables[name]})
        order, shares = model.shares(said)
        region = getattr(said.event, "region", None)
        if len(said.cuts[name]) == 1 and order == 0 and region is not None:
            p = model.rho.marginal(name).log_mass(region).exp().item()
            yield Deviation("marginal", float(abs(p - shares.sum())), (str(said.event),))
    if len(names) > 2:
        some = names[1:]
        said = random_event(rng, {name: model.variables[name] for name in some})
        order, shares = model.shares(said)
        p = model.rho.marginal(*some).log_prob(said.event).exp().item()
        yield Deviation("marginal", abs(p - (shares.sum() if order == 0 else 0.0)), (str(said.event),))


def of_points(rng: np.random.Generator, model: Model) -> Iterator[Deviation]:
    """Single values as evidence, some of them unobserved, and the density of whole rows."""
    evidence: dict[str, torch.Tensor] = {}
    rows: list[Said | None] = [None, None]
    observed = {}
    for name, variable in model.variables.items():
        values = [
            v for v in variable.values if variable.kind not in ("grid", "atoms") or _is_outcome(variable, v)
        ]
        chosen = [values[i] for i in rng.integers(len(values), size=2)]
        evidence[name], observed[name] = variable.event(chosen), torch.tensor(rng.random(2) < 0.8)
        for row in range(2):
            if observed[name][row]:
                said, before = compare(name, "=", chosen[row]), rows[row]
                rows[row] = said if before is None else before & said
    got = model.rho.log_prob(observed=observed, **evidence)
    for row, said in enumerate(rows):
        density = 1.0 if said is None else model.shares(said)[1].sum()
        if density > 1e-290:
            yield Deviation("log density of a row", _relative(got[row].item(), np.log(density)), (row, said))
        else:
            yield Deviation("log density of a row", 0.0 if got[row].item() < -600 else np.inf, (row, said))
    for target in list(model.variables)[:2]:
        given = {name: value for name, value in evidence.items() if name != target}
        if not given:
            continue
        masks = {name: observed[name] for name in given}
        rho = model.rho.infer(target=target, observed=masks, **given)
        for row in range(2):
            some = [n for n in given if observed[n][row]]
            if not some:
                continue
            said = compare(some[0], "=", given[some[0]][row].item())
            for name in some[1:]:
                said = said & compare(name, "=", given[name][row].item())
            shares = model.shares(said)[1]
            if shares.sum() <= 1e-290:
                continue
            where = (str(said.event), target)
            weights = np.bincount(model.places[target], shares, rho.weights.shape[-1]) / shares.sum()
            yield Deviation("weights", float(np.abs(rho.weights[row].numpy() - weights).max()), where)
            of_row = rho.log_evidence[row].item()
            yield Deviation("log evidence", _relative(of_row, np.log(shares.sum())), where)


def _is_outcome(variable: Variable, value: float) -> bool:
    """Whether a value lies on the grid: another one stands for its neighbour as evidence, not in an event."""
    kernel = variable.kernel
    return bool(kernel.nearest_atom(torch.tensor([value]).double())[0] == value) or not kernel.only_atoms


def of_gradients(rng: np.random.Generator, model: Model, said: Said) -> Iterator[Deviation]:
    """Gradients by components, beside differences of the oracle's log-probabilities."""
    components = {n: v.components.clone() for n, v in model.variables.items()}
    moved = [name for name in said.cuts if components[name].is_floating_point()]
    for name in moved:
        components[name].requires_grad_()
    if not moved:
        return
    log_p = model.make(components).log_prob(said.event)
    if not log_p.requires_grad:  # the event says nothing
        return
    log_p.backward()
    for name in moved:
        variable = model.variables[name]
        plain, gradient = variable.components, components[name].grad
        i = int(rng.integers(plain.numel()))

        def log_prob(
            step: float, variable: Variable = variable, plain: torch.Tensor = plain, i: int = i
        ) -> float:
            near = plain.clone()
            near.view(-1)[i] += step
            variable.components = near
            return float(np.log(model.shares(said)[1].sum()))

        h = 1e-3
        wanted = (8 * (log_prob(h) - log_prob(-h)) - (log_prob(2 * h) - log_prob(-2 * h))) / (12 * h)
        variable.components = plain
        got = 0.0 if gradient is None else gradient.reshape(-1)[i].item()
        yield Deviation("gradient", _relative(got, wanted), (str(said.event), name, got, wanted))


def gradient_deviations(seed: int) -> Iterator[Deviation]:
    """The deviations of the gradients of three events of one model."""
    rng, model = model_of(seed)
    for _ in range(3):
        said = random_event(rng, model.variables)
        order, shares = model.shares(said)
        if order == 0 and 1e-4 < shares.sum() < 1 - 1e-9:
            yield from of_gradients(rng, model, said)
