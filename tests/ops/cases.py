"""Random reductions: every kind of term, with every combination of shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kdmkit._core.logspace import safe_log
from kdmkit.ops import ComponentDistance, Lookup, Score, SquaredDistance, Term, attend, log_mix
from kdmkit.ops.terms import Masked

BACKENDS = ("torch", "chunked")
CODES = 3  # the width of lookup tables


@dataclass
class Draw:
    """A source of tensors of one shape family."""

    n: int
    m: int
    d: int
    lead: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*self._lead(), *shape, generator=self.generator, dtype=torch.float64).to(
            self.dtype
        )

    def positive(self, *shape: int) -> Tensor:
        return 0.5 + torch.rand(*self._lead(), *shape, generator=self.generator).to(self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, (*self._lead(), *shape), generator=self.generator)

    def _lead(self) -> tuple[int, ...]:
        """The leading dimensions, some missing in front and some 1: they broadcast."""
        start = int(torch.randint(len(self.lead) + 1, (), generator=self.generator))
        keep = torch.rand(len(self.lead), generator=self.generator) < 0.5
        return tuple(size if k else 1 for size, k in zip(self.lead, keep.tolist(), strict=True))[start:]


def _squared_scalar(draw: Draw) -> Term:
    return SquaredDistance(draw.normal(draw.n, draw.d), draw.normal(draw.m, draw.d), draw.positive(1, 1))


def _squared_ard(draw: Draw) -> Term:
    return SquaredDistance(draw.normal(draw.n, draw.d), draw.normal(draw.m, draw.d), draw.positive(1, draw.d))


def _squared_metric(draw: Draw) -> Term:
    factor = draw.normal(draw.d, draw.d)
    return SquaredDistance(draw.normal(draw.n, draw.d), draw.normal(draw.m, draw.d), factor, metric=True)


def _per_component(draw: Draw) -> Term:
    return ComponentDistance(
        draw.normal(draw.n, draw.d), draw.normal(draw.m, draw.d), draw.positive(draw.m, draw.d)
    )


def _per_component_isotropic(draw: Draw) -> Term:
    return ComponentDistance(
        draw.normal(draw.n, draw.d), draw.normal(draw.m, draw.d), draw.positive(draw.m, 1)
    )


def _lookup(draw: Draw) -> Term:
    return Lookup(draw.integers(CODES, draw.n, 1), draw.normal(draw.m, CODES))


def bump(x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """log(1 − ‖s(x − c)‖²)₊: −∞ outside a ball."""
    (scale,) = parameters
    square = (scale * (x.unsqueeze(-2) - components.unsqueeze(-3))).square().sum(-1)
    return safe_log((1 - square).clamp_min(0))


def _score(draw: Draw) -> Term:
    scale = 0.3 * (0.5 + torch.rand((), generator=draw.generator)).to(draw.dtype)
    return Score(bump, draw.normal(draw.n, draw.d), draw.normal(draw.m, draw.d), (scale,))


def _masked(draw: Draw, term: Term) -> Term:
    offset = torch.randn(draw.m, 1, generator=draw.generator, dtype=torch.float64).to(draw.dtype)
    return Masked(term, offset, draw.integers(2, draw.n, 1).bool())


TERMS: dict[str, Callable[[Draw], tuple[Term, ...]]] = {
    "squared-scalar": lambda draw: (_squared_scalar(draw),),
    "squared-ard": lambda draw: (_squared_ard(draw),),
    "squared-metric": lambda draw: (_squared_metric(draw),),
    "per-component": lambda draw: (_per_component(draw),),
    "per-component-isotropic": lambda draw: (_per_component_isotropic(draw),),
    "lookup": lambda draw: (_lookup(draw),),
    "score": lambda draw: (_score(draw),),
    "masked-squared": lambda draw: (_masked(draw, _squared_ard(draw)),),
    "masked-lookup": lambda draw: (_masked(draw, _lookup(draw)),),
    "masked-score": lambda draw: (_masked(draw, _score(draw)),),
    "sum": lambda draw: (_squared_metric(draw), _lookup(draw), _masked(draw, _squared_scalar(draw))),
    "sum-of-scores": lambda draw: (_score(draw), _per_component(draw), _masked(draw, _score(draw))),
}


@dataclass
class Case:
    """Terms, log-weights and values: the arguments of a reduction."""

    terms: tuple[Term, ...]
    log_weights: Tensor
    values: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [self.log_weights, self.values, *(t for term in self.terms for t in term.tensors)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Case":
        log_weights, values, *rest = tensors
        terms = []
        for term in self.terms:
            count = len(term.tensors)
            terms.append(term.with_tensors(rest[:count]))
            rest = rest[count:]
        return Case(tuple(terms), log_weights, values)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Case":
        return self.with_tensors([function(tensor) for tensor in self.tensors])

    def to(self, dtype: torch.dtype) -> "Case":
        return self.map(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def attend(self, backend: str, block: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        return attend(self.terms, self.log_weights, self.values, backend=backend, block=block)

    def log_mix(self, backend: str, block: tuple[int, int] | None = None) -> Tensor:
        return log_mix(self.terms, self.log_weights, backend=backend, block=block)

    def scores(self) -> Tensor:
        """The matrix of scores by the terms' definitions."""
        return sum((term.exact() for term in self.terms), self.log_weights)


def make_case(name: str, draw: Draw, *, weights: str = "shared", dead: float = 0.0, v: int = 2) -> Case:
    """A reduction over the terms called `name`.

    Args:
        name: a key of `TERMS`.
        draw: sizes, dtype and randomness.
        weights: log-weights for all queries (`"shared"`), per element of the batch, or per `"row"`.
        dead: the share of log-weights at −∞.
        v: the width of the values.
    """
    shapes = {"shared": (draw.m,), "batch": (*draw.lead, 1, draw.m), "row": (*draw.lead, draw.n, draw.m)}
    log_weights = torch.randn(shapes[weights], generator=draw.generator, dtype=torch.float64)
    gone = torch.rand(shapes[weights], generator=draw.generator) < dead
    log_weights = log_weights.masked_fill(gone, -torch.inf).to(draw.dtype)
    return Case(TERMS[name](draw), log_weights, draw.normal(draw.m, v))


def evaluate(
    case: Case, backend: str, block: tuple[int, int] | None = None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The outputs of both reductions, and the gradients of a fixed combination of them to every tensor."""
    case = case.map(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    outputs = (*case.attend(backend, block), case.log_mix(backend, block))
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs]
    leaves = [t for t in case.tensors if t.requires_grad]
    return tuple(o.detach() for o in outputs), torch.autograd.grad(outputs, leaves, upstream)


def loss(case: Case, backend: str) -> Tensor:
    """A number that depends on all of a reduction's outputs."""
    averages, lse = case.attend(backend, (2, 3))
    return averages.sin().sum() + torch.where(torch.isneginf(lse), 0.0, lse).sum()
