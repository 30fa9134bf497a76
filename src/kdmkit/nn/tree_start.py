"""Where the learning of a tree starts: rows of the data become components, neighbours agree on the row."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit.nn.variable import Variable

# The share of a starting component's mass that all values of the column have, where the kernel can give it.
_BACKGROUND = 0.3
# p(z_v = i | z_parent = i) at the start is about s/(s + 1.6): neighbours mostly come from the same row.
_AGREEMENT = 30.0


def choose_rows(
    n: int, k: int, weights: Float[Tensor, " n"] | None, generator: torch.Generator | None
) -> Int[Tensor, " k"]:
    """k rows at random, different ones where there are enough; heavy rows are chosen more often."""
    device = "cpu" if generator is None else generator.device
    chance = torch.ones(n, dtype=torch.float64) if weights is None else weights.double().cpu()
    enough = int((chance > 0).sum()) >= k
    # Gumbel's trick instead of `multinomial`, which takes 2^24 rows at most.
    if enough:
        noise = torch.rand(n, dtype=torch.float64, device=device, generator=generator).cpu()
        keys = torch.where(chance > 0, noise.log() / chance, -math.inf)
        return keys.topk(k).indices
    draws = torch.rand(k, dtype=torch.float64, device=device, generator=generator).cpu()
    total = chance.cumsum(0)
    return torch.searchsorted(total, draws * total[-1], right=True).clamp_max(n - 1)


def start_components(
    variable: Variable,
    value: Tensor,
    observed: Bool[Tensor, " n"] | None,
    rows: Int[Tensor, " k"],
) -> Tensor | None:
    """Components at the values of the chosen rows; None where the column has no value at all.

    A missing value is replaced by the value of another row, the next one that has it.
    """
    known = torch.arange(len(value)) if observed is None else observed.nonzero().squeeze(-1)
    if not len(known):
        return None
    place = torch.searchsorted(known, rows)
    chosen = value[known[place % len(known)]]
    seen = value if observed is None else value[known]
    return variable.kernel.smoothed_components(chosen, seen, variable.shape, _BACKGROUND)


def start_edges(n_edges: int, k: int, generator: torch.Generator | None) -> Float[Tensor, "n_edges k k"]:
    """Logits of p(z_v | z_parent): large on the diagonal, standard normal noise everywhere."""
    device = "cpu" if generator is None else generator.device
    noise = torch.randn(n_edges, k, k, device=device, generator=generator)
    noise.diagonal(dim1=-2, dim2=-1).add_(math.log(_AGREEMENT * k))
    return noise
