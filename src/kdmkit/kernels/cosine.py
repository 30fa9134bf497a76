"""The cosine kernel: discrete distributions as amplitudes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import (
    as_tensor,
    bad_argument,
    check_event,
    check_finite,
    check_floating,
    check_label,
    is_integer,
)
from kdmkit._core.tensors import broadcast
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.masses import first_occurrences, log_sum
from kdmkit.kernels.regions import OneOf, Region
from kdmkit.ops import Amplitudes, Lookup, Score, Term
from kdmkit.ops.terms.amplitudes import log_probs, log_square

# A label's amplitude keeps this much probability for the others: at an exact zero there is no gradient.
LABEL_SMOOTHING = 0.01


class Cosine(Kernel):
    """k(x, c) = ⟨x, c⟩/(‖x‖·‖c‖): probabilities over an orthogonal basis of ℝⁿ.

    A float vector is an amplitude: a distribution p enters as √p. An integer is a label and stands for its
    basis vector.

    >>> Cosine().log_overlap(torch.tensor([1.0, 0.0]), torch.tensor([0.2, 0.8]).sqrt()).exp()
    tensor(0.2000)
    """

    discrete: ClassVar[bool] = True
    has_atoms: bool = True
    draws_one_hot: ClassVar[bool] = True
    unit_norm: ClassVar[bool] = True
    event_dim: int = 1

    def term(self, x: Tensor, components: Tensor) -> Term:
        if is_integer(x):
            return Amplitudes(x.unsqueeze(-1), components)
        return Score(_block, x, components)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        if is_integer(x):
            table = log_probs(components)
            lead = broadcast(x.shape, table.shape[:-1])
            index = x.long().expand(lead).unsqueeze(-1)
            return table.expand(*lead, table.shape[-1]).gather(-1, index).squeeze(-1)
        return log_square((unit(x) * unit(components)).sum(-1))

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        return unit(components).square()

    def check_region(self, argument: str, region: Region, event_shape: torch.Size) -> None:
        self._accept(argument, region, OneOf)
        assert isinstance(region, OneOf)
        if not is_integer(region.values):
            raise TypeError(bad_argument(argument, "integer labels in a set", region.values.dtype))
        check_label(argument, region.values, event_shape[-1])

    def region_term(self, region: Region, components: Tensor) -> Term:
        self._accept("region", region, OneOf)
        assert isinstance(region, OneOf)
        return Score(_set_block, region.values, log_probs(components))

    def mode(self, components: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The basis vector of the likeliest label."""
        best = components.detach().abs().argmax(-1)
        return torch.nn.functional.one_hot(best, components.shape[-1]).to(components.dtype)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        probs = self.probs(components.detach())
        code = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        one_hot = torch.nn.functional.one_hot(code.squeeze(-1), probs.shape[-1])
        return one_hot.to(components.dtype).view(components.shape)

    def as_events(self, argument: str, value: Any, event_shape: torch.Size, like: Tensor) -> Tensor:
        value = as_tensor(argument, value, like=like)
        if is_integer(value):
            return value.long()
        check_event(argument, value, event_shape)
        return value

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        if is_integer(value):
            check_label(argument, value, event_shape[-1])
            return
        check_floating(argument, value)
        check_finite(argument, value)
        if bool((value.detach() == 0).all(-1).any()):
            raise ValueError(
                bad_argument(argument, "amplitudes with at least one nonzero entry", "a zero vector")
            )

    def event_rank(self, value: Tensor) -> int:
        return 0 if is_integer(value) else 1

    def initial_components(self, values: Tensor, event_shape: torch.Size) -> Float[Tensor, "m n"]:
        return smooth_amplitudes(values, event_shape[-1])

    def config(self) -> dict[str, Any]:
        return {"kernel": "Cosine"}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Cosine:
        return cls()


def smooth_amplitudes(value: Tensor, n: int) -> Float[Tensor, "m n"]:
    """√((1 − ε)·p + ε/n) for a label's one-hot p, or for the squares p of an amplitude.

    >>> smooth_amplitudes(torch.tensor([1]), 2).square()
    tensor([[0.0050, 0.9950]], dtype=torch.float64)
    """
    if is_integer(value):
        probs = torch.nn.functional.one_hot(value.long(), n).double()
    else:
        probs = value.square() / value.square().sum(-1, keepdim=True)
    return ((1 - LABEL_SMOOTHING) * probs + LABEL_SMOOTHING / n).sqrt()


def unit(x: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead n"]:
    """x/‖x‖, 0 with no gradient where x is 0. Scaled by its largest entry first, so nothing overflows."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    scaled = x / torch.where(largest > 0, largest, 1.0)
    square = scaled.square().sum(-1, keepdim=True)
    return scaled / torch.where(square > 0, square, 1.0).sqrt()


def _set_block(values: Tensor, table: Tensor, parameters: object) -> Tensor:
    ordered, new = first_occurrences(values)

    def part(i: int) -> Tensor:
        column = slice(i, i + 1)
        scores = Lookup(ordered[..., column], table).matrix()
        return torch.where(new[..., column], scores, -math.inf)

    return log_sum(part, ordered.shape[-1])


def _block(x: Tensor, components: Tensor, parameters: object) -> Tensor:
    return log_square(torch.matmul(unit(x), unit(components).mT))
