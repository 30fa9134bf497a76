"""Merging the reductions of two disjoint sets of components."""

import torch
from jaxtyping import Float
from torch import Tensor

Reduced = tuple[Float[Tensor, "*#batch v"], Float[Tensor, "*#batch"]]


def combine(first: Reduced, second: Reduced) -> Reduced:
    """The result of `attend` on the union of two shards of components.

    With averages a, b and logsumexps s, t: `t' = logaddexp(s, t)`, `a' = a·exp(s − t') + b·exp(t − t')`.
    Where both shards are −∞ the averages are 0.

    Args:
        first, second: what `attend` returned for each shard: averages `(*batch, v)`, logsumexps `(*batch,)`.

    Returns:
        The same two tensors, for all components together.

    >>> a = (torch.tensor([[0.0]]), torch.tensor([0.0]))
    >>> b = (torch.tensor([[3.0]]), torch.tensor([0.0]))
    >>> combine(a, b)
    (tensor([[1.5000]]), tensor([0.6931]))
    """
    (a, s), (b, t) = first, second
    top = torch.maximum(s, t).detach()
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    left, right = (s - top).exp(), (t - top).exp()
    total = left + right
    alive = total > 0
    safe = torch.where(alive, total, torch.ones_like(total))
    left_weight = (left / safe).to(a.dtype).unsqueeze(-1)
    right_weight = (right / safe).to(a.dtype).unsqueeze(-1)
    lse = torch.where(alive, safe.log() + top, torch.full_like(top, -torch.inf))
    return a * left_weight + b * right_weight, lse
