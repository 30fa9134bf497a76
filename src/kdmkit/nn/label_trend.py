"""The logits of a classification."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.logspace import log_normalize, safe_log, safe_logsumexp
from kdmkit.distributions import KDM
from kdmkit.distributions.labels import with_label_probs
from kdmkit.nn.ensemble import MLPEnsemble
from kdmkit.nn.memory import ResidualMemory
from kdmkit.nn.scaler import Scaler, soft_clip


class LabelTrend(nn.Module):
    """p(y|x) = (1 − v(x))·Σ_j w_j(x)·softmax_y(t(x) + c_j) + v(x)·q(y|x).

    - t(x) = a·mean_k t_k(x): the logits of an ensemble, times an inverse temperature;
    - c_j: the offsets of the joint KDM's components, and w_j(x) their inferred weights;
    - q(y|x) and v(x): label proportions of remembered rows about x, and the rows' share of the evidence
      there; without a memory v is 0.

    Everything is computed in float64.

    Args:
        ensemble: of networks from standardised rows, softly clipped, to logits; it is converted in place.
        memory: of rows and their labels, as one-hot vectors, if any; the same.
        x: scaler of rows.
        offsets: c_j.
        inverse_temperature: a.

    >>> import kdmkit as kdm
    >>> x, ensemble = torch.randn(5, 2), kdm.nn.MLPEnsemble([2, 8, 3], n_members=2)
    >>> scaler, offsets = kdm.nn.Scaler.from_data(x), torch.zeros(5, 3)
    >>> LabelTrend(ensemble, None, scaler, offsets, torch.tensor(1.0)).probs_at_components(x).shape
    torch.Size([5, 3])
    """

    memory: ResidualMemory | None
    offsets: Tensor
    inverse_temperature: Tensor

    def __init__(
        self,
        ensemble: MLPEnsemble,
        memory: ResidualMemory | None,
        x: Scaler,
        offsets: Float[Tensor, "m n"],
        inverse_temperature: Float[Tensor, ""],
    ) -> None:
        super().__init__()
        self.ensemble, self.memory, self.x = ensemble, memory, x
        self.register_buffer("offsets", offsets.double())
        self.register_buffer("inverse_temperature", inverse_temperature.double())
        # In float32 an answer would depend, in the seventh digit, on the rows beside it.
        self.double()

    def forward(
        self, x: Float[Tensor, "rows d"]
    ) -> tuple[Float[Tensor, "rows n"], Float[Tensor, "rows n"], Float[Tensor, "rows 1"]]:
        """t(x), v(x)·q(·|x) and v(x)."""
        z = soft_clip(self.x(x))
        logits = self.inverse_temperature * self.ensemble(z).mean(1)
        if self.memory is None:
            return logits, torch.zeros_like(logits), torch.zeros_like(logits[:, :1])
        remembered, coverage = self.memory(z)
        return logits, remembered, coverage

    def adjust(
        self,
        rho: KDM,
        logits: Float[Tensor, "rows n"],
        remembered: Float[Tensor, "rows n"],
        coverage: Float[Tensor, "rows 1"],
    ) -> KDM:
        """p(y|x) from the joint KDM's answer, whose weights are w_j(x), and from what `forward` returned."""
        tilted = tilted_log_probs(rho.weights, logits, self.offsets)
        parts = torch.stack([safe_log(1 - coverage) + tilted, safe_log(remembered)], -1)
        return with_label_probs(rho, log_normalize(safe_logsumexp(parts)))

    def probs_at_components(self, components: Float[Tensor, "m d"]) -> Float[Tensor, "m n"]:
        """softmax_y(t(x_j) + c_j) of every component."""
        return (self(components)[0] + self.offsets).softmax(-1)

    def config(self) -> dict[str, Any]:
        """The shapes that `from_config` needs, in the types of JSON."""
        memory = None if self.memory is None else self.memory.config()
        return {"ensemble": self.ensemble.config(), "memory": memory, "offsets": len(self.offsets)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LabelTrend:
        """A trend of these shapes, for `load_state_dict`."""
        ensemble = MLPEnsemble(**config["ensemble"], generator=torch.Generator())
        memory = None if config["memory"] is None else ResidualMemory.from_config(config["memory"])
        offsets = torch.zeros(config["offsets"], ensemble.sizes[-1])
        return cls(ensemble, memory, Scaler.identity(ensemble.sizes[0]), offsets, torch.ones(()))


def tilted_log_probs(
    weights: Float[Tensor, "rows m"], logits: Float[Tensor, "rows n"], offsets: Float[Tensor, "m n"]
) -> Float[Tensor, "rows n"]:
    """log Σ_j w_j·softmax_y(t + c_j).

    softmax_y(t + c_j) = e^{t_y}·e^{c_jy} / Σ_z e^{t_z}·e^{c_jz}: two matrix products do for all components.

    >>> tilted_log_probs(torch.ones(1, 1), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2)).exp()
    tensor([[0.2689, 0.7311]])
    """
    logits = logits - logits.detach().amax(-1, keepdim=True)
    factors = offsets.exp()
    return logits + ((weights / (logits.exp() @ factors.mT)) @ factors).log()
