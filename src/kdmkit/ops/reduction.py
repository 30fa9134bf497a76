"""A reduction: its arguments as one object, and the merging of two results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_floating, check_instance
from kdmkit.ops.blocks import Block
from kdmkit.ops.terms import Term, common_dtype, total_shape

#: Averages of the values (None without values) and logsumexps.
Result = tuple[Tensor | None, Tensor]
#: The result of `attend`.
Reduced = tuple[Float[Tensor, "*#batch v"], Float[Tensor, "*#batch"]]


@dataclass(frozen=True)
class Reduction:
    """logsumexp_j(s_ij) and Σ_j softmax_j(s_ij)·values_j with s_ij = log_weights_j + Σ_terms scores_ij.

    Args:
        terms: at least one; their scores add.
        log_weights: of shape `(m,)`, or `(*lead, 1, m)` per batch, or `(*lead, n, m)` per query.
        values: of shape `(*lead, m, v)`, or None if only the logsumexp is wanted.
        block: queries and components per block; None lets the implementation choose.
    """

    terms: Sequence[Term]
    log_weights: Float[Tensor, "*weights m"]
    values: Float[Tensor, "*#lead m v"] | None = None
    block: Block | None = None

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        """The leading dimensions, the number of queries and the number of components."""
        return total_shape(self.terms)

    @property
    def device_type(self) -> str:
        return self.terms[0].tensors[0].device.type

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the results: the inputs' common floating dtype, at least float32."""
        dtype = common_dtype([self.log_weights] if self.values is None else [self.log_weights, self.values])
        for term in self.terms:
            dtype = torch.promote_types(dtype, term.dtype)
        return dtype

    def check(self) -> None:
        """Raises if the sizes of the arguments do not match."""
        if not self.terms:
            raise ValueError(bad_argument("terms", "at least one", "none"))
        for term in self.terms:
            check_instance("terms", term, Term, "terms such as RBF(0.3).term(x, components)")
        check_instance("log_weights", self.log_weights, Tensor, "a tensor")
        check_floating("log_weights", self.log_weights)
        (_, n, m), weights, values = self.shape, self.log_weights.shape, self.values
        if m == 0:
            raise ValueError(bad_argument("terms", "at least one component", 0))
        if weights[-1:] != (m,) or (len(weights) > 1 and weights[-2] not in (1, n)):
            wanted = f"shape ({m},) or (..., 1 or {n}, {m})"
            raise ValueError(bad_argument("log_weights", wanted, tuple(weights)))
        if values is not None and (values.ndim < 2 or values.shape[-2] != m):
            raise ValueError(bad_argument("values", f"shape (..., {m}, v)", tuple(values.shape)))
        if self.block is not None and min(self.block) < 1:
            raise ValueError(bad_argument("block", "two positive numbers", self.block))


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
