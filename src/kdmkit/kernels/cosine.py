"""The kernel on amplitudes: the squared cosine is the Born rule's probability."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_finite, check_floating, check_label, is_integer, warn_user
from kdmkit._core.tensors import at_least_float32
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.categorical import Coded, read_codes
from kdmkit.kernels.feature_map import FeatureMap
from kdmkit.ops import Score, Term
from kdmkit.ops.terms import Amplitudes
from kdmkit.ops.terms.discrete import log_probs, log_square

# The probability that a label's starting component leaves to all labels: a zero would have no gradient.
LABEL_SMOOTHING = 0.01
_SOFT_LABELS = (
    "these look like probabilities p and are taken as amplitudes, whose squares are the probabilities; "
    "p.sqrt() is the amplitude of p, and KDM.from_probs(p) the distribution p, for infer and for losses"
)


class Cosine(Coded, FeatureMap):
    """k(x, c) = ⟨x, c⟩/(‖x‖·‖c‖): probabilities over an orthogonal basis of ℝⁿ, or of ℂⁿ.

    A float vector is an amplitude: a distribution p enters as √p, and checked values that look like p itself
    give a warning. An integer is a label and stands for its basis vector. With complex amplitudes the
    probability of x is |⟨x, c⟩|²/(‖x‖²·‖c‖²), the Born rule.

    >>> Cosine().log_overlap(torch.tensor([1.0, 0.0]), torch.tensor([0.2, 0.8]).sqrt()).exp()
    tensor(0.2000)
    """

    draws_one_hot: ClassVar[bool] = True
    unit_norm: ClassVar[bool] = True
    takes_complex: ClassVar[bool] = True

    def term(self, x: Tensor, components: Tensor) -> Term:
        if is_integer(x):
            return Amplitudes(x.unsqueeze(-1), magnitudes(components))
        if x.is_complex() or components.is_complex():
            return Score(_complex_block, _real_parts(x), _real_parts(components))
        return Score(_amplitude_block, x, components)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        if is_integer(x):
            return read_codes(self.log_table(components), x)
        return log_square((unit(x).conj() * unit(components)).sum(-1).abs())

    def inner_products(self, x: Tensor, components: Tensor) -> Inexact[Tensor, "*batch n m"]:
        dtype = torch.result_type(x, components)
        return torch.matmul(unit(x).conj().to(dtype), unit(components).mT.to(dtype))

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        return unit(magnitudes(components)).square()

    def n_codes(self, event_shape: torch.Size) -> int:
        return event_shape[-1]

    def log_table(self, components: Tensor) -> Float[Tensor, "*batch m n"]:
        return log_probs(magnitudes(components))

    def from_log_table(self, table: Float[Tensor, "m n"]) -> tuple[Kernel, Tensor]:
        return self, (0.5 * table).exp()

    def mode(self, components: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        """The basis vector of the likeliest label."""
        best = components.detach().abs().argmax(-1)
        return nn.functional.one_hot(best, components.shape[-1]).to(components.dtype)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        probs = self.probs(components.detach())
        code = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        one_hot = nn.functional.one_hot(code.squeeze(-1), probs.shape[-1])
        return one_hot.to(components.dtype).view(components.shape)

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        if is_integer(value):
            check_label(argument, value, event_shape[-1])
            return
        value = magnitudes(value.detach())
        check_floating(argument, value)
        check_finite(argument, value)
        if not value.numel():
            return
        low, high = value.abs().amax(-1).aminmax()
        if low == 0:
            raise ValueError(
                bad_argument(argument, "amplitudes with at least one nonzero entry", "a zero vector")
            )
        # One-hot vectors need no second look.
        if low < 1 and high <= 1 and are_soft_labels(value):
            warn_user(f"{argument}: {_SOFT_LABELS}")

    def event_rank(self, value: Tensor) -> int:
        return 1 if value.is_floating_point() or value.is_complex() else 0

    def initial_components(self, values: Tensor, event_shape: torch.Size) -> Float[Tensor, "m n"]:
        return smooth_amplitudes(values, event_shape[-1])

    def config(self) -> dict[str, Any]:
        return {"kernel": "Cosine"}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Cosine:
        return cls()


def are_soft_labels(value: Float[Tensor, "*lead n"]) -> bool:
    """Whether all rows are probabilities, and not all of them amplitudes of length 1 as well.

    >>> are_soft_labels(torch.tensor([0.7, 0.3])), are_soft_labels(torch.tensor([0.7, 0.3]).sqrt())
    (True, False)
    """
    tolerance = max(1e-6, 4 * torch.finfo(value.dtype).eps)
    value = at_least_float32(value)
    if bool(((value.sum(-1) - 1).abs() > tolerance).any()) or bool((value < 0).any()):
        return False
    return bool(((value.square().sum(-1) - 1).abs() > tolerance).any())


def smooth_amplitudes(value: Tensor, n: int) -> Float[Tensor, "m n"]:
    """√((1 − ε)·p + ε/n) for a label's one-hot p, or for the squares p of an amplitude.

    >>> smooth_amplitudes(torch.tensor([1]), 2).square()
    tensor([[0.0050, 0.9950]], dtype=torch.float64)
    """
    if is_integer(value):
        probs = nn.functional.one_hot(value.long(), n).double()
    else:
        probs = value.square() / value.square().sum(-1, keepdim=True)
    return ((1 - LABEL_SMOOTHING) * probs + LABEL_SMOOTHING / n).sqrt()


def magnitudes(x: Inexact[Tensor, "*lead n"]) -> Float[Tensor, "*lead n"]:
    """|x| of complex amplitudes; real ones are returned as they are."""
    return x.abs() if x.is_complex() else x


def unit(x: Inexact[Tensor, "*lead n"]) -> Inexact[Tensor, "*lead n"]:
    """x/‖x‖, 0 with no gradient if x is 0. Scaled by its largest entry first, so nothing overflows."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    scaled = x / torch.where(largest > 0, largest, 1.0)
    square = (scaled.abs() if x.is_complex() else scaled).square().sum(-1, keepdim=True)
    return scaled / torch.where(square > 0, square, 1.0).sqrt()


def _amplitude_block(x: Tensor, components: Tensor, parameters: object) -> Tensor:
    return log_square(torch.matmul(unit(x), unit(components).mT))


def _real_parts(x: Inexact[Tensor, "*lead n"]) -> Float[Tensor, "*lead twice"]:
    """Real parts, then imaginary parts."""
    x = x if x.is_complex() else torch.complex(x, torch.zeros_like(x))
    return torch.cat([x.real, x.imag], -1)


def _complex_block(x: Tensor, components: Tensor, parameters: object) -> Tensor:
    """log|⟨x, c⟩|² of vectors as `_real_parts` writes them, whose lengths are those of the complex ones."""
    a, b = unit(x), unit(components)
    real, imaginary = b.chunk(2, -1)
    turned = torch.cat([imaginary, -real], -1)
    return log_square(torch.hypot(torch.matmul(a, b.mT), torch.matmul(a, turned.mT)))
