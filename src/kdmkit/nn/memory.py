"""A memory of residuals: the non-parametric KDM of training rows and their residuals."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.kernels import RBF
from kdmkit.kernels.bandwidth import FixedBandwidth
from kdmkit.ops import attend_beside, block_order
from kdmkit.ops.near_pairs import BLOCK


class ResidualMemory(nn.Module):
    """g(x) = Σ_i w_i·k²(x, x_i)·r_i / (b + Σ_i w_i·k²(x, x_i)).

    This is the mean of the joint KDM whose components are all rows with their residuals (Nadaraya–Watson),
    and one more, the background, with overlap b for every x and the residual 0: far from all rows g is 0.

    Args:
        rows, residuals: x_i and r_i, standardised.
        log_weights: log w_i.
        sigma: of the kernel.
        background: b.

    >>> memory = ResidualMemory(torch.zeros(1, 2), torch.ones(1, 1), torch.zeros(1))
    >>> memory(torch.zeros(1, 2))
    (tensor([[0.5000]]), tensor([[0.5000]]))
    """

    rows: Tensor
    residuals: Tensor
    log_weights: Tensor
    sigma: Tensor
    background: Tensor

    def __init__(
        self,
        rows: Float[Tensor, "n d"],
        residuals: Float[Tensor, "n outputs"],
        log_weights: Float[Tensor, " n"],
        sigma: float = 1.0,
        background: float = 1.0,
    ) -> None:
        super().__init__()
        self.register_buffer("rows", rows)
        self.register_buffer("residuals", residuals)
        self.register_buffer("log_weights", log_weights)
        self.register_buffer("sigma", torch.tensor(float(sigma), dtype=torch.float64))
        self.register_buffer("background", torch.tensor(float(background), dtype=torch.float64))

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
        """g(x), and the coverage Σ_i w_i·k² / (b + Σ_i w_i·k²): the rows' share of the evidence at x."""
        # Unchecked: `torch.export` cannot read values.
        kernel = RBF(FixedBandwidth("sigma", self.sigma, validate=False))
        return attend_beside(
            kernel.term(x, self.rows), self.log_weights, self.residuals, self.background.log()
        )

    def sort(self) -> Int[Tensor, " n"]:
        """Puts rows into the order of `block_order`, in which narrow kernels leave out most pairs.

        Returns:
            The former numbers of the rows.
        """
        order = block_order(self.rows, BLOCK, parts=2)
        self.rows, self.residuals = self.rows[order], self.residuals[order]
        self.log_weights = self.log_weights[order]
        return order

    def config(self) -> dict[str, Any]:
        """The shapes that `from_config` needs, in the types of JSON."""
        return {"rows": len(self.rows), "d": self.rows.shape[1], "outputs": self.residuals.shape[1]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ResidualMemory:
        """A memory of these shapes, for `load_state_dict`."""
        n = config["rows"]
        return cls(torch.zeros(n, config["d"]), torch.zeros(n, config["outputs"]), torch.zeros(n))


def with_background(
    mean: Float[Tensor, "n outputs"], log_overlap: Float[Tensor, " n"], background: Tensor | float
) -> tuple[Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
    """From the mean residual and log Σ_i w_i·k² of the rows to g and the coverage."""
    log_background = torch.as_tensor(background, device=mean.device).log()
    coverage = (log_overlap - log_background).sigmoid().to(mean.dtype).unsqueeze(-1)
    return coverage * mean, coverage
