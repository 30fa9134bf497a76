"""Scores of many columns on circles in one operation: the stacked form of `Periodic`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kdmkit.kernels import Periodic
from kdmkit.kernels.bandwidth import LearnedBandwidth, stack_bandwidths


class CircleStack(nn.Module):
    """Columns of numbers that go round: −2κ·sin²(π·(x − c)/period) less the log of the norm.

    Args:
        kernels: by column, with a learned bandwidth for every component.
    """

    period: Tensor

    def __init__(self, kernels: Mapping[str, Periodic]) -> None:
        super().__init__()
        self.names = tuple(kernels)
        period = torch.tensor([[kernel.period] for kernel in kernels.values()], dtype=torch.float64)
        self.register_buffer("period", period, persistent=False)

    def pack(self, name: str, values: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
        """Turns in [0, 1)."""
        return torch.remainder(values.double() / self.period[self.names.index(name)].cpu(), 1.0)

    def scores(
        self,
        components: Mapping[str, Tensor],
        bandwidths: Sequence[LearnedBandwidth],
        turns: Float[Tensor, "v n"],
        seen: Bool[Tensor, "v n"],
    ) -> Float[Tensor, "v n k"]:
        """Scores of n rows, 0 where a cell is hidden."""
        stacked = stack_bandwidths(bandwidths)
        assert stacked is not None
        sigma = stacked.value.squeeze(-1)
        period = self.period.to(sigma)
        kappa = 0.5 * (period / (math.pi * sigma)).square()
        centre = torch.stack([components[name].squeeze(-1) for name in self.names]) / period
        gap = turns.unsqueeze(-1) - centre.unsqueeze(1)
        norm = (period * torch.special.i0e(kappa)).log()
        scores = -2 * kappa.unsqueeze(1) * (math.pi * gap).sin().square() - norm.unsqueeze(1)
        return torch.where(seen.unsqueeze(-1), scores, 0.0)
