"""Trends, to which a joint KDM adds the distribution: means of a regression, logits of a classification."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.logspace import log_normalize, safe_log, safe_logsumexp
from kdmkit.distributions import KDM
from kdmkit.kernels import RBF
from kdmkit.kernels.bandwidth import FixedBandwidth
from kdmkit.nn.mlp import MLPEnsemble
from kdmkit.nn.scaler import Scaler, soft_clip
from kdmkit.ops.blocks import block_order
from kdmkit.ops.near_pairs import BLOCK
from kdmkit.ops.pruned import attend_beside


class Trend(nn.Module):
    """The mean of a regression, f(x) = mean_k f_k(x) + g(x), and its excess variance.

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

        Near training rows the residuals already show the errors of the ensemble. Elsewhere, for example in
        gaps between rows, its members disagree more than usual. Coverage is the memory's share of evidence.
        """
        z = self.x(x).to(self.ensemble.linear.dtype)
        answers = self.ensemble(z)
        centre, excess = answers.mean(1), (answers.var(1) - self.typical_variance).clamp_min(0)
        if self.memory is not None:
            residuals, coverage = self.memory(z)
            centre, excess = centre + residuals, excess * (1 - coverage).square()
        return self.y.inverse(centre), excess.double() * self.y.scale.square()

    def adjust(self, rho: KDM, trend: Float[Tensor, "n outputs"], excess: Float[Tensor, "n outputs"]) -> KDM:
        """p(y|x) from the distribution of the residual and from the results of `forward`."""
        return rho.shifted(trend).convolved(excess)

    def config(self) -> dict[str, Any]:
        """The shapes that `from_config` needs, in the types of JSON."""
        return _shapes(self.ensemble, self.memory)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Trend:
        """A trend of these shapes, for `load_state_dict`."""
        ensemble, memory, x = _parts_of_shapes(config)
        outputs = ensemble.sizes[-1]
        return cls(ensemble, memory, x, Scaler.identity(outputs), torch.zeros(outputs))


class LabelTrend(nn.Module):
    """The logits of a classification, p(y|x) = (1 − v(x))·Σ_j w_j(x)·softmax_y(t(x) + c_j) + v(x)·q(y|x).

    - t(x) = a·mean_k t_k(x): the logits of an ensemble, times an inverse temperature;
    - c_j: the offsets of the joint KDM's components, and w_j(x) their inferred weights;
    - q(y|x) and v(x): the memory's label proportions at x, and its share of the evidence there; without a
      memory v is 0.

    Everything is computed in float64.

    Args:
        ensemble: of networks from standardised rows, softly clipped, to logits; it becomes float64 in place.
        memory: of rows and their labels, as one-hot vectors, if any; it becomes float64 in place.
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
        """p(y|x) from the joint KDM's answer, whose weights are w_j(x), and from the results of `forward`."""
        tilted = tilted_log_probs(rho.weights, logits, self.offsets)
        parts = torch.stack([safe_log(1 - coverage) + tilted, safe_log(remembered)], -1)
        return rho._with_logits(log_normalize(safe_logsumexp(parts)))

    def probs_at_components(self, components: Float[Tensor, "m d"]) -> Float[Tensor, "m n"]:
        """softmax_y(t(x_j) + c_j) of every component."""
        return (self(components)[0] + self.offsets).softmax(-1)

    def config(self) -> dict[str, Any]:
        """The shapes that `from_config` needs, in the types of JSON."""
        return {**_shapes(self.ensemble, self.memory), "offsets": len(self.offsets)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LabelTrend:
        """A trend of these shapes, for `load_state_dict`."""
        ensemble, memory, x = _parts_of_shapes(config)
        return cls(ensemble, memory, x, torch.zeros(config["offsets"], ensemble.sizes[-1]), torch.ones(()))


def _shapes(ensemble: MLPEnsemble, memory: ResidualMemory | None) -> dict[str, Any]:
    return {"ensemble": ensemble.config(), "memory": None if memory is None else memory.config()}


def _parts_of_shapes(config: dict[str, Any]) -> tuple[MLPEnsemble, ResidualMemory | None, Scaler]:
    """An ensemble, a memory and a scaler of rows for `load_state_dict`."""
    ensemble = MLPEnsemble(**config["ensemble"], generator=torch.Generator())
    memory = None if config["memory"] is None else ResidualMemory.from_config(config["memory"])
    return ensemble, memory, Scaler.identity(ensemble.sizes[0])


def tilted_log_probs(
    weights: Float[Tensor, "rows m"], logits: Float[Tensor, "rows n"], offsets: Float[Tensor, "m n"]
) -> Float[Tensor, "rows n"]:
    """log Σ_j w_j·softmax_y(t + c_j).

    softmax_y(t + c_j) = e^{t_y}·e^{c_jy} / Σ_z e^{t_z}·e^{c_jz}: two matrix products do for all.

    >>> tilted_log_probs(torch.ones(1, 1), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2)).exp()
    tensor([[0.2689, 0.7311]])
    """
    logits = logits - logits.detach().amax(-1, keepdim=True)
    factors = offsets.exp()
    return logits + ((weights / (logits.exp() @ factors.mT)) @ factors).log()


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
) -> tuple[Float[Tensor, "*lead n outputs"], Float[Tensor, "*lead n 1"]]:
    """The function g and the coverage, from the mean residual and log Σ_i w_i·k² of the rows.

    Several backgrounds have the shape `(*lead, 1)`.
    """
    log_background = torch.as_tensor(background, device=mean.device).log()
    coverage = (log_overlap - log_background).sigmoid().to(mean.dtype).unsqueeze(-1)
    return coverage * mean, coverage
