"""Averages over all rows but one, and overlaps with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.kernels import Kernel
from kdmkit.ops import attend, combine, log_mix

T = TypeVar("T")


def log_overlap_with_others(
    kernel: Kernel,
    x: Float[Tensor, "n d"],
    log_weights: Float[Tensor, " n"],
    rows: Int[Tensor, " q"],
) -> Float[Tensor, " q"]:
    """log Σ_{j≠i} w_j·k²(x_i, x_j) of some rows i.

    Args:
        kernel: k.
        x, log_weights: of all rows.
        rows: indices of the rows to leave out one at a time, each once.
    """

    def reduce(components: Tensor, weights: Tensor) -> Tensor:
        return log_mix(kernel.term(x[rows], x[components]), weights)

    return _in_two_parts(reduce, torch.logaddexp, log_weights, rows)


def average_over_others(
    kernel: Kernel,
    x: Float[Tensor, "n d"],
    log_weights: Float[Tensor, " n"],
    values: Float[Tensor, "n v"],
    rows: Int[Tensor, " q"],
) -> tuple[Float[Tensor, "q v"], Float[Tensor, " q"]]:
    """Σ_{j≠i} w_j·k²(x_i, x_j)·v_j / Σ_{j≠i} w_j·k²(x_i, x_j) of some rows i, and its log-denominator."""

    def reduce(components: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return attend(kernel.term(x[rows], x[components]), weights, values[components])

    return _in_two_parts(reduce, combine, log_weights, rows)


def _in_two_parts(
    reduce: Callable[[Tensor, Tensor], T],
    merge: Callable[[T, T], T],
    log_weights: Float[Tensor, " n"],
    rows: Int[Tensor, " q"],
) -> T:
    """One reduction over all rows outside `rows`, and one over `rows` without the diagonal.

    Merging the two avoids a subtraction, which would lose digits.
    """
    diagonal = log_weights.new_full((len(rows),), -torch.inf)
    inside = reduce(rows, log_weights[rows].repeat(len(rows), 1).diagonal_scatter(diagonal))
    others = torch.ones_like(log_weights, dtype=torch.bool)
    others[rows] = False
    outside = torch.nonzero(others).squeeze(-1)
    return merge(inside, reduce(outside, log_weights[outside])) if len(outside) else inside
