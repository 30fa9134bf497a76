"""The mean function of a regression."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.distributions import KDM
from kdmkit.nn.ensemble import MLPEnsemble
from kdmkit.nn.memory import ResidualMemory
from kdmkit.nn.scaler import Scaler


class Trend(nn.Module):
    """f(x) = mean_k f_k(x) + g(x), and the variance that the members' disagreement adds to an answer.

    The f_k are the members of an ensemble and g is a memory of residuals, if there is one. Rows and results
    are in the units of the data.

    Args:
        ensemble: fitted to standardised rows and targets.
        memory: of the ensemble's residuals, if any.
        x, y: scalers of rows and targets.
        typical_variance: of the members' answers at rows that they have not seen, in standardised units.

    >>> import kdmkit as kdm
    >>> x, y, ensemble = torch.randn(5, 2), torch.randn(5, 1), kdm.nn.MLPEnsemble([2, 8, 1], n_members=2)
    >>> scalers = kdm.nn.Scaler.from_data(x), kdm.nn.Scaler.from_data(y)
    >>> mean, excess_variance = Trend(ensemble, None, *scalers, torch.zeros(1))(x)
    >>> mean.shape, excess_variance.shape
    (torch.Size([5, 1]), torch.Size([5, 1]))
    """

    memory: ResidualMemory | None
    typical_variance: Tensor

    def __init__(
        self,
        ensemble: MLPEnsemble,
        memory: ResidualMemory | None,
        x: Scaler,
        y: Scaler,
        typical_variance: Float[Tensor, " outputs"],
    ) -> None:
        super().__init__()
        self.ensemble, self.memory, self.x, self.y = ensemble, memory, x, y
        self.register_buffer("typical_variance", typical_variance)

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "n outputs"], Float[Tensor, "n outputs"]]:
        """f(x), and the excess variance: max(0, var_k f_k(x) − typical_variance)·(1 − coverage(x))².

        Residuals already say how far off the ensemble is where there are rows. Elsewhere, for example in gaps
        between rows, its members disagree more than usual. Coverage is the memory's share of evidence.
        """
        z = self.x(x).to(self.ensemble.linear.dtype)
        answers = self.ensemble(z)
        centre, excess = answers.mean(1), (answers.var(1) - self.typical_variance).clamp_min(0)
        if self.memory is not None:
            residuals, coverage = self.memory(z)
            centre, excess = centre + residuals, excess * (1 - coverage).square()
        return self.y.inverse(centre), excess.double() * self.y.scale.square()

    def adjust(self, rho: KDM, trend: Float[Tensor, "n outputs"], excess: Float[Tensor, "n outputs"]) -> KDM:
        """p(y|x) from the distribution of the residual and from what `forward` returned."""
        return rho.shifted(trend).convolved(excess)

    def config(self) -> dict[str, Any]:
        """The shapes that `from_config` needs, in the types of JSON."""
        memory = None if self.memory is None else self.memory.config()
        return {"ensemble": self.ensemble.config(), "memory": memory}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Trend:
        """A trend of these shapes, for `load_state_dict`."""
        ensemble = MLPEnsemble(**config["ensemble"], generator=torch.Generator())
        memory = None if config["memory"] is None else ResidualMemory.from_config(config["memory"])
        d, outputs = ensemble.sizes[0], ensemble.sizes[-1]
        return cls(ensemble, memory, Scaler.identity(d), Scaler.identity(outputs), torch.zeros(outputs))
