"""Exact draws on a circle."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Tables of probabilities hold at most this many numbers at a time.
_TABLE = 1 << 22


def draw_von_mises(
    kappa: Float[Tensor, "*shape"], generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Angles with the density e^(κ cos θ)/(2π·I₀(κ)), by rejection (Best and Fisher, 1979)."""
    flat = kappa.reshape(-1)
    drawn, left = torch.zeros_like(flat), torch.arange(flat.numel(), device=flat.device)
    while left.numel():
        k = flat[left]
        angle, accepted = _propose(k, generator)
        drawn[left[accepted]] = angle[accepted]
        left = left[~accepted]
    return drawn.reshape(kappa.shape)


def _propose(kappa: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    uniform = torch.rand((3, *kappa.shape), dtype=kappa.dtype, device=kappa.device, generator=generator)
    tau = 1 + (1 + 4 * kappa.square()).sqrt()
    # (τ − √(2τ))/(2κ) without the difference, which is 0 for small κ.
    rho = 2 * kappa / (tau + (2 * tau).sqrt())
    r = (1 + rho.square()) / (2 * rho)
    cosine = (math.pi * uniform[0]).cos()
    turned = ((1 + r * cosine) / (r + cosine)).clamp(-1, 1)
    c = kappa * (r - turned)
    accepted = (c * (2 - c) > uniform[1]) | ((c / uniform[1]).log() + 1 >= c)
    return torch.where(uniform[2] < 0.5, -1.0, 1.0) * turned.acos(), accepted


def draw_whole(
    centre: Float[Tensor, "*shape"],
    kappa: Float[Tensor, "*shape"],
    period: int,
    generator: torch.Generator | None,
) -> Int[Tensor, "*shape"]:
    """Numbers i in 0 … period − 1 with probabilities in proportion to e^(κ cos(2π(i − c)/period))."""
    numbers = torch.arange(period, dtype=centre.dtype, device=centre.device)
    drawn = []
    parts = (tensor.reshape(-1, 1).split(max(1, _TABLE // period)) for tensor in (centre, kappa))
    for c, k in zip(*parts, strict=True):
        scores = -2 * k * ((numbers - c) * (math.pi / period)).sin().square()
        drawn.append(torch.multinomial(torch.softmax(scores, -1), 1, generator=generator))
    return torch.cat([part.reshape(-1) for part in drawn]).reshape(centre.shape)
