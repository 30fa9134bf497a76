"""Tables of log-probabilities of many columns of levels in few operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.kernels import Levels


class LevelStack(nn.Module):
    """Columns of levels, those of like numbers of levels in one tensor.

    Args:
        kernels: by column; their smoothing is not trained.
    """

    def __init__(self, kernels: Mapping[str, Levels]) -> None:
        super().__init__()
        groups: dict[tuple[int, bool], list[str]] = {}
        for name, kernel in kernels.items():
            smoothed = bool(kernel.smoothing > 0)
            groups.setdefault((max(1, kernel.n - 1).bit_length(), smoothed), []).append(name)
        self.groups = [_LevelGroup(names, [kernels[name] for name in names]) for names in groups.values()]
        self.parts = nn.ModuleList(self.groups)

    def tables(self, components: Mapping[str, Tensor]) -> list[Float[Tensor, "..."]]:
        """log p(level | component) of every group; levels that a column lacks have 0."""
        return [group.table(components) for group in self.groups]


class _LevelGroup(nn.Module):
    places: Tensor
    is_unused: Tensor
    smoothing: Tensor
    spread: Tensor

    def __init__(self, names: Sequence[str], kernels: Sequence[Levels]) -> None:
        super().__init__()
        self.names = tuple(names)
        sizes = torch.tensor([kernel.n for kernel in kernels]).unsqueeze(1)
        self.n = int(sizes.max())
        level = torch.arange(self.n).unsqueeze(0)
        self.register_buffer("is_unused", (level >= sizes).unsqueeze(-1), persistent=False)
        first = sizes.cumsum(0) - sizes
        places = torch.where(level < sizes, first + level, 0).flatten()
        self.register_buffer("places", places, persistent=False)
        share = torch.tensor([[[float(kernel.smoothing)]] for kernel in kernels], dtype=torch.float64)
        self.register_buffer("smoothing", share, persistent=False)
        self.register_buffer("spread", share / sizes.unsqueeze(-1), persistent=False)
        self.is_smoothed = bool((share > 0).all())

    def table(self, components: Mapping[str, Tensor]) -> Float[Tensor, "v n k"]:
        every = torch.cat([components[name] for name in self.names], 1).mT
        logits = every.index_select(0, self.places).reshape(len(self.names), self.n, -1)
        logits = logits.masked_fill(self.is_unused, -math.inf)
        if not self.is_smoothed:
            return logits.log_softmax(1).masked_fill(self.is_unused, 0.0)
        free = logits.softmax(1)
        probs = torch.addcmul(self.spread.to(free), free, 1 - self.smoothing.to(free))
        return probs.log().masked_fill(self.is_unused, 0.0)
