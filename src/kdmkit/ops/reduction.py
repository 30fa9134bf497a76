"""The arguments of a reduction as one object."""

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
