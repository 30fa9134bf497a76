"""Where the learning of a tree starts: rows of the data become components, neighbours agree on the row."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit.nn.variable import Variable

# The share of a starting component's mass that all values of the column have, where the kernel can give it.
_BACKGROUND = 0.3
# p(z_v = i | z_parent = i) at the start is about s/(s + 1.6): neighbours mostly come from the same row.
_AGREEMENT = 30.0


def choose_rows(
    data: Mapping[str, Tensor],
    masks: Mapping[str, Bool[Tensor, " n"]],
    k: int,
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator | None,
) -> Int[Tensor, " k"]:
    """k rows at random, as different as there are; a row that occurs w times has the chance √w.

    Args:
        data: by variable, `(n, *event)` or labels `(n,)`.
        masks: by variable, False where the value is missing.
        weights: of the rows.
    """
    device = "cpu" if generator is None else generator.device
    _, group = _row_keys(data, masks).unique(return_inverse=True)
    n, groups = len(group), int(group.max()) + 1
    weights = torch.ones(n, dtype=torch.float64) if weights is None else weights.double().cpu()
    total = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, weights)
    first = torch.full((groups,), n).scatter_reduce_(0, group, torch.arange(n), "amin")
    chance = total.sqrt()
    # The largest log(u)/chance are a weighted draw without replacement.
    noise = torch.rand(groups, dtype=torch.float64, device=device, generator=generator).cpu()
    keys = torch.where(chance > 0, noise.log() / chance, -math.inf)
    chosen = keys.topk(min(k, int((chance > 0).sum()))).indices
    again = torch.randint(len(chosen), (k - len(chosen),), device=device, generator=generator).cpu()
    return first[torch.cat([chosen, chosen[again]])]


def _row_keys(data: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Int[Tensor, " n"]:
    """A number for every row, equal for equal rows: sums of products with random numbers, modulo 2^64."""
    generator = torch.Generator().manual_seed(0)
    total: Tensor | int = 0
    for name, value in data.items():
        flat = value.reshape(len(value), -1)
        numbers = flat.double().view(torch.int64) if flat.is_floating_point() else flat.long()
        if name in masks:
            numbers = torch.where(masks[name].unsqueeze(-1), numbers, -1)
        factors = torch.randint(-(2**62), 2**62, (numbers.shape[1],), generator=generator)
        # The shift brings the high bits of floating-point numbers down.
        total = total + ((numbers ^ (numbers >> 31)) * factors).sum(1)
    assert isinstance(total, Tensor)
    return total


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
