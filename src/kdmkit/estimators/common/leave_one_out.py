"""Averages and overlaps of a row with all other rows."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.kernels import Kernel
from kdmkit.ops import attend, combine


def leave_one_out(
    kernel: Kernel,
    x: Float[Tensor, "n d"],
    log_weights: Float[Tensor, " n"],
    values: Float[Tensor, "n v"],
    rows: Int[Tensor, " q"],
    own: Float[Tensor, " q"] | None = None,
) -> tuple[Float[Tensor, "q v"], Float[Tensor, " q"]]:
    """Averages of `values` under w_j·k²(x_i, x_j), j ≠ i, and log Σ_{j≠i} w_j·k²(x_i, x_j), for some rows i.

    Rows outside `rows` are one reduction, those inside a small matrix with the diagonal `own`: no sum is
    corrected by a subtraction.

    Args:
        kernel: k.
        x, log_weights, values: of all rows.
        rows: the indices of the rows to leave out one at a time, each once.
        own: the log-weight that a row keeps in its own sum; None is −∞.
    """
    query, diagonal = x[rows], log_weights.new_full((len(rows),), -torch.inf) if own is None else own
    inside_weights = log_weights[rows].repeat(len(rows), 1).diagonal_scatter(diagonal.to(log_weights))
    inside = attend(kernel.term(query, query), inside_weights, values[rows])
    others = torch.ones(len(x), dtype=torch.bool)
    others[rows] = False
    if not bool(others.any()):
        return inside
    return combine(inside, attend(kernel.term(query, x[others]), log_weights[others], values[others]))
