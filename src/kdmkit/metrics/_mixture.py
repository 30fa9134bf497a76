"""Mean absolute distances of one-dimensional mixtures, in blocks that bound memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.kernels import LocationScale

# Pairs whose distances are held at once.
_PAIRS = 1 << 22


@dataclass(frozen=True)
class Mixture:
    """Rows of mixtures in float64.

    Args:
        weights: a row for every element of the batch.
        components: as many rows, or one where all share it.
        scale: one bandwidth for each component, in as many rows or one.
    """

    kernel: LocationScale
    weights: Float[Tensor, "b m"]
    components: Float[Tensor, "c m"]
    scale: Float[Tensor, "s m"]

    @classmethod
    def of(cls, rho: KDM, kernel: LocationScale) -> Mixture:
        m = rho.n_components
        shape = (*rho.batch_shape, m)
        # Rounded weights do not sum to exactly 1, and that error grows with the distance of the components.
        weights = rho.log_weights.double().log_softmax(-1).exp().expand(shape).reshape(-1, m)
        components = rho.components.double().squeeze(-1)
        scale = kernel.scale(rho.components.double())
        scale = scale.squeeze(-1) if scale.ndim else scale
        return cls(
            kernel, weights, _rows(components, shape), _rows(scale.expand(*scale.shape[:-1], m), shape)
        )

    @property
    def _pairs(self) -> int:
        return _PAIRS // self.kernel.values_per_distance

    def mean_distance_to(self, y: Float[Tensor, " n"], row: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Σ_j w_ij E|X_j − y_i|, where y_i meets the mixture of number row_i."""
        step = max(1, self._pairs // self.weights.shape[-1])
        sums = []
        for values, rows in zip(y.split(step), row.split(step), strict=True):
            components, scale = (_chosen(own, rows) for own in (self.components, self.scale))
            distance = self.kernel.distance_to_point(values.unsqueeze(-1) - components, scale)
            sums.append((self.weights[rows] * distance).sum(-1))
        return torch.cat(sums)

    def mean_distance_between(self) -> Float[Tensor, " b"]:
        """Σ_ij w_i w_j E|X_i − X_j'| of every row."""
        m = self.weights.shape[-1]
        # Mixtures that share their components are the rows of one product.
        groups = max(len(self.components), len(self.scale))
        weights = self.weights.reshape(groups, -1, m)
        components, scale = (own.expand(groups, m) for own in (self.components, self.scale))
        step = max(1, self._pairs // m**2)
        parts = zip(weights.split(step), components.split(step), scale.split(step), strict=True)
        return torch.cat([self._between(*part) for part in parts]).reshape(-1)

    def _between(
        self,
        weights: Float[Tensor, "g r m"],
        components: Float[Tensor, "g m"],
        scale: Float[Tensor, "g m"],
    ) -> Tensor:
        g, r, m = weights.shape
        total = weights.new_zeros(g, r)
        for index in torch.arange(m, device=weights.device).split(max(1, self._pairs // (g * max(r, m)))):
            gap = components[:, index, None] - components[:, None, :]
            distance = self.kernel.distance_between(gap, scale[:, index, None], scale[:, None, :])
            total = total + (weights[..., index] * torch.matmul(weights, distance.mT)).sum(-1)
        return total


def _rows(values: Float[Tensor, "*own m"], shape: tuple[int, ...]) -> Float[Tensor, "r m"]:
    """A row for every element of a batch, or one where all are the same."""
    m = shape[-1]
    return values.reshape(1, m) if values.shape[:-1].numel() == 1 else values.expand(shape).reshape(-1, m)


def _chosen(values: Float[Tensor, "r m"], rows: Int[Tensor, " n"]) -> Tensor:
    return values[rows] if len(values) > 1 else values
