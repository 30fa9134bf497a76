"""Events as evidence of joint distributions: their probabilities, posteriors given them, draws inside.

An event is a union of disjoint boxes. Single values of a density have no mass, but can be evidence: a box
with them is evidence of a *density*. Of several boxes those with the fewest densities count, as in the limit
of small cells about the values; the others have no probability beside them, whatever the units.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions.arguments import check_names
from kdmkit.distributions.component_scores import relative_scores
from kdmkit.distributions.event_text import Key
from kdmkit.distributions.events import Box, Event, Outcomes
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.weights import Given
from kdmkit.kernels import Kernel, Region
from kdmkit.kernels.regions import OneOf

if TYPE_CHECKING:
    from kdmkit.distributions.joint import NamedVariables


#: log p(case | component) by variable, as the sum of two parts: `(l, *batch, m)` and `(l, *batch)`.
CaseScores = dict[str, tuple[Tensor, Tensor]]

#: Scores of regions of variables: of those that come back, they are computed once.
ScoreCache = dict[Any, tuple[Tensor, Tensor]]

# Cases that are answered together, of which a few may have their scores in a cache; its size.
_TOGETHER, _FEW, _CACHED = 4096, 8, 256
# Combinations of single values of densities that are answered: 10,000 take a second.
_MOST_CASES = 10_000


@dataclass(frozen=True)
class Case:
    """One box of an event as evidence.

    Args:
        regions: by variable.
        points: variables whose region is a single value with a density.
        box: the place of the box.
    """

    regions: Box
    points: frozenset[str]
    box: int

    @property
    def signature(self) -> tuple[Any, ...]:
        """Cases with equal signatures are answered together."""
        return tuple(sorted(self.regions)), self.points


def cases_of(joint: NamedVariables, boxes: Sequence[Box]) -> list[Case]:
    """Boxes as evidence: each value with a density is a case of its own, beside the masses of its region."""
    cases: list[Case] = []
    for place, box in enumerate(boxes):
        parts = [_mass_and_points(joint.kernels[name], region) for name, region in box.items()]
        n_cases = math.prod(map(len, parts))
        if n_cases > _MOST_CASES:
            wanted = f"at most {_MOST_CASES} combinations of single values"
            raise ValueError(bad_argument("event", wanted, n_cases))
        for chosen in itertools.product(*parts):
            regions, points = {}, []
            for name, (region, is_point) in zip(box, chosen, strict=True):
                regions[name] = region
                points += [name] if is_point else []
            cases.append(Case(regions, frozenset(points), place))
    return cases


def _mass_and_points(kernel: Kernel, region: Region) -> list[tuple[Region, bool]]:
    """The part of a region that may have a mass, and single values that have densities."""
    points = kernel.null_points(region)
    if not points:
        return [(region, False)]
    rest = region & ~OneOf(points)
    masses = [(rest, False)] if rest.spans or (rest.has_missing and kernel.has_missing) else []
    return [*masses, *[(OneOf([point]), True) for point in points]]


class Answered(NamedTuple):
    """Cases with equal signatures, and what is known about them.

    Attributes:
        scores: log p(case | component) by variable.
        log_evidence: of every case.
        log_weights: of the components of a target given each case.
    """

    cases: list[Case]
    scores: CaseScores
    log_evidence: Float[Tensor, " l"]
    log_weights: Float[Tensor, "l m"] | None


class EventEvidence(Outcomes):
    """An event as evidence of a joint distribution without a batch.

    Args:
        joint: the distribution.
        event: an event, or its boxes.
        cache: scores of regions, without gradients, for all events of this distribution.
    """

    def __init__(
        self, joint: NamedVariables, event: Event | Sequence[Box], cache: ScoreCache | None = None
    ) -> None:
        self.joint, self._cache = joint, cache
        self.boxes = event.boxes(self) if isinstance(event, Event) else list(event)
        self.cases = cases_of(joint, self.boxes)
        self._kept_scores: dict[int, CaseScores] = {}
        self._kept_answers: dict[str | None, list[Answered]] = {}

    def read(self, key: Key, region: Region) -> tuple[Key, Region]:
        if not isinstance(key, str):
            wanted = "conditions on variables (tables know dates and pairs)"
            raise TypeError(bad_argument("event", wanted, key))
        check_names("event", [key], self.joint.kernels)
        return key, self.trimmed(key, region)  # before regions meet: a circle's are put into one turn

    def trimmed(self, key: Key, region: Region) -> Region:
        return self.joint.kernels[str(key)].trimmed(region, self.joint.event_shapes[str(key)])

    # ---- probabilities

    def log_prob(self) -> Float[Tensor, "*batch"]:
        """log P(event): single values of densities have no probability."""
        like = next(iter(self.joint.components.values()))
        if {} in self.boxes:
            return torch.zeros(self.joint.batch_shape, dtype=torch.float64, device=like.device)
        if 0 not in self._groups:
            return torch.full(self.joint.batch_shape, -math.inf, dtype=torch.float64, device=like.device)
        return safe_logsumexp(self.log_masses().movedim(0, -1)).clamp_max(0.0)

    def log_masses(self) -> Float[Tensor, "l *batch"]:
        """log P of every box, in their order; single values of densities have no probability."""
        like = next(iter(self.joint.components.values()))
        shape = (len(self.boxes), *self.joint.batch_shape)
        masses = torch.full(shape, -math.inf, dtype=torch.float64, device=like.device)
        for cases in self._groups.get(0, ()):
            places = [case.box for case in cases]
            masses[places] = self.joint._log_mass(self._scores(cases)).double() if cases[0].regions else 0.0
        return masses

    @property
    def ask(self) -> Callable[..., Any] | None:
        """The distribution of a variable (`target=`) given the event and more, if it is one case."""
        if len(self.cases) != 1:
            return None
        (case,) = self.cases
        points = {name: self._points(name, [case.regions[name]])[0] for name in case.points}
        return partial(self.joint.infer, **{**case.regions, **points})

    @cached_property
    def _groups(self) -> dict[int, list[list[Case]]]:
        """Cases that are answered together, by the number of densities, ascending."""
        groups: dict[Any, list[Case]] = {}
        for case in self.cases:
            groups.setdefault(case.signature, []).append(case)
        by_rank: dict[int, list[list[Case]]] = {}
        for cases in groups.values():
            parts = [cases[i : i + _TOGETHER] for i in range(0, len(cases), _TOGETHER)]
            by_rank.setdefault(len(cases[0].points), []).extend(parts)
        return dict(sorted(by_rank.items()))

    def _scores(self, cases: Sequence[Case]) -> CaseScores:
        """log p(case | component) by variable, of cases among `_groups`: computed once."""
        if id(cases) in self._kept_scores:
            return self._kept_scores[id(cases)]
        first = cases[0]
        scores = self._kept_scores[id(cases)] = {}
        for name in first.regions:
            regions = tuple(case.regions[name] for case in cases)
            scores[name] = self._cached_scores(name, regions, name in first.points)
        return scores

    def _cached_scores(self, name: str, regions: tuple[Region, ...], is_point: bool) -> tuple[Tensor, Tensor]:
        if self._cache is None or len(regions) > _FEW:
            return self._scores_of(name, regions, is_point)
        key = name, regions, is_point
        if key not in self._cache:
            if len(self._cache) >= _CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = self._scores_of(name, regions, is_point)
        return self._cache[key]

    def _scores_of(self, name: str, regions: Sequence[Region], is_point: bool) -> tuple[Tensor, Tensor]:
        """log p(region | component) of a variable, as `relative_scores`."""
        joint = self.joint
        kernel, components = joint.kernels[name], joint.components[name]
        event, device = joint.event_shapes[name], components.device
        value = self._points(name, regions) if is_point else kernel.packed(name, regions, event, device)
        value = value.reshape(len(regions), *(1,) * len(joint.batch_shape), *value.shape[1:])
        return relative_scores([Entry(kernel, value, components, "density", None, not is_point)])

    def _points(self, name: str, regions: Sequence[Region]) -> Float[Tensor, "l 1"]:
        """The single values that regions are."""
        kernel, like = self.joint.kernels[name], self.joint.components[name]
        return like.new_tensor([kernel.null_points(region) for region in regions])

    # ---- posteriors

    def answers(self, target: str | None = None) -> list[Answered]:
        """The cases that count, in groups; none if the event is impossible. Computed once.

        Args:
            target: a variable whose weights are wanted.
        """
        if target not in self._kept_answers:
            self._kept_answers[target] = self._answers(target)
        return self._kept_answers[target]

    def _answers(self, target: str | None) -> list[Answered]:
        for groups in self._groups.values():
            answers = []
            for cases in groups:
                scores, weights = self._scores(cases), None
                if target is None:
                    log_evidence = self.joint._log_mass(scores)
                else:
                    weights, log_evidence = self.joint._weights_given(target, scores)
                answers.append(Answered(cases, scores, log_evidence.double(), weights))
            if any(bool(answer.log_evidence.isfinite().any()) for answer in answers):
                return answers
        return []

    def infer(self, targets: Sequence[str]) -> Any:
        """The distribution of some variables given the event, with `log_evidence`."""
        if self.joint.batch_shape:
            raise ValueError(
                bad_argument("event", "a distribution without a batch", tuple(self.joint.batch_shape))
            )
        if {} in self.boxes:
            return self._prior(targets, 0.0)
        answers = self.answers(targets[0] if len(targets) == 1 else None)
        if not answers:
            if any(set(targets) & set(case.regions) for case in self.cases) or not self.cases:
                raise ValueError(bad_argument("event", "one that can happen", "probability 0"))
            return self._prior(targets, -math.inf)
        return self._several(targets, answers) if len(targets) > 1 else self._one(targets[0], answers)

    def _prior(self, targets: Sequence[str], log_evidence: float) -> Any:
        prior: Any = self.joint._over(targets, None)
        return prior._with_evidence_of(torch.tensor(log_evidence, dtype=torch.float64))

    def _one(self, target: str, answers: Sequence[Answered]) -> KDM:
        log_evidence = torch.cat([answer.log_evidence for answer in answers])
        weights = [answer.log_weights for answer in answers if answer.log_weights is not None]
        total = safe_logsumexp(log_evidence)
        shares = torch.cat([part.double() for part in weights]) + (log_evidence - total).unsqueeze(-1)
        kernel, components = self.joint.kernels[target], self.joint.components[target]
        regions = [case.regions.get(target) for answer in answers for case in answer.cases]
        if regions.count(None) < len(regions):
            kernel, components = _inside(kernel, components, regions, shares)
        mixed = shares.squeeze(0) if len(shares) == 1 else safe_logsumexp(shares.mT)
        given = Given(mixed.to(weights[0]), total)
        return KDM._made(components, given, kernel, self.joint._validate_args)

    def _several(self, targets: Sequence[str], answers: Sequence[Answered]) -> Any:
        cases = [case for answer in answers for case in answer.cases]
        restricted = {name for case in cases for name in case.regions} & set(targets)
        if restricted and len(cases) > 1:
            wanted = "one target, or several without conditions of their own in an event of several boxes"
            raise ValueError(bad_argument("target", wanted, list(targets)))
        rho = self.joint._mixture_given(targets, answers)
        return _restrict(rho, cases[0]) if restricted else rho

    # ---- draws

    def sample(
        self, n: int, generator: torch.Generator | None, names: Sequence[str] | None = None
    ) -> dict[str, Tensor]:
        """n draws of some variables, of all by default, from the distribution given the event."""
        variables = self.joint.variables if names is None else tuple(names)
        if {} in self.boxes:
            prior = self.joint.marginal(*variables).sample((n,), generator=generator)
            return {variables[0]: prior} if isinstance(prior, Tensor) else prior
        answers = self.answers()
        if not answers:
            raise ValueError(bad_argument("given", "an event that can happen", "probability 0"))
        cases = [case for answer in answers for case in answer.cases]
        share = torch.softmax(torch.cat([answer.log_evidence for answer in answers]), -1)
        index = torch.multinomial(share, n, replacement=True, generator=generator)
        counts = torch.bincount(index, minlength=len(share)).tolist()
        drawn = [
            self._draw(case, count, generator, variables)
            for case, count in zip(cases, counts, strict=True)
            if count
        ]
        order = torch.randperm(n, generator=generator, device=share.device)
        return {name: torch.cat([part[name] for part in drawn])[order] for name in variables}

    def _draw(
        self, case: Case, n: int, generator: torch.Generator | None, variables: Sequence[str]
    ) -> dict[str, Tensor]:
        """Draws of variables from one case: their kernels are restricted to its regions."""
        rho = EventEvidence(self.joint, [case.regions]).infer(variables)
        drawn: Any = rho.sample((n,), generator=generator)
        return {variables[0]: drawn} if len(variables) == 1 else drawn


def _restrict(rho: Any, case: Case) -> Any:
    """A distribution of several variables with its kernels inside the regions of a case."""
    for name in case.regions.keys() & rho.kernels.keys():
        inside = restriction(rho.kernels[name], case.regions[name], rho.components[name])
        rho.kernels[name], rho.components[name] = inside
    return rho


def restriction(kernel: Kernel, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
    """The kernel and the components of the densities inside a region, or of masses at its values."""
    points = kernel.null_points(region)
    return kernel.at_points(points, components) if points else kernel.restricted(region, components)


def _inside(
    kernel: Kernel, components: Tensor, regions: Sequence[Region | None], shares: Float[Tensor, "l m"]
) -> tuple[Kernel, Tensor]:
    """The mixture of restrictions of a kernel, each with a log-share of every component."""
    places: dict[Any, list[int]] = {}
    for i, region in enumerate(regions):
        places.setdefault(region, []).append(i)
    parts = [
        (kernel, components) if region is None else restriction(kernel, region, components)
        for region in places
    ]
    if len(parts) == 1:
        return parts[0]
    mixed = torch.stack([safe_logsumexp(shares[index].mT) for index in places.values()], -1)
    return kernel.mixed(mixed, parts)
