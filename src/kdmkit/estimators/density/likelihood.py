"""Maximum likelihood of a density: what is minimised, and in which coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit.kernels import RBF
from kdmkit.nn import DensityLayer
from kdmkit.nn.scaler import normalized_weights
from kdmkit.training import nll

Covariance = Literal["spherical", "diag", "full"]

# Added to a covariance before it is undone, relative to the variances.
_RIDGE = 1e-3
# In whitened coordinates: the narrowest start of a bandwidth, and its lower bound relative to the start.
_NARROWEST = 0.2
_NOISE = 0.3
_BOUND = 0.1


class Likelihood(nn.Module):
    """−log p(x) of a layer's density, per row.

    While training, samples move by a part of the kernel's own standard deviation: the smoothing that keeps
    few samples in many dimensions from being learned by heart.
    """

    def __init__(self, layer: DensityLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        rho = self.layer()
        if self.training:
            x = x + _NOISE * rho.kernel.std.detach() * torch.randn_like(x)
        return nll(rho, x)


@dataclass(frozen=True)
class Frame:
    """Coordinates in which a likelihood is easy to maximise: z = W(x − μ) with W lower triangular."""

    shift: Float[Tensor, " d"]
    whiten: Float[Tensor, "d d"]

    @classmethod
    def of(
        cls, x: Float[Tensor, "n d"], weights: Float[Tensor, " n"] | None, covariance: Covariance
    ) -> Frame:
        """As much of the covariance undone as the kernel can express: a bandwidth, one per dimension, all."""
        share = normalized_weights(len(x), weights)
        shift = share @ x
        centred = x - shift
        matrix = centred.mT @ (share.unsqueeze(-1) * centred)
        variance = matrix.diagonal()
        varies = variance > 1e-24 * x.square().amax(0)
        eye = torch.eye(x.shape[1], dtype=x.dtype)
        if not bool(varies.any()):
            return cls(shift, eye)
        mean = variance.mean()
        if covariance == "spherical":
            variance, matrix = mean.expand_as(variance), mean * eye
        elif covariance == "diag":
            matrix = torch.diag(variance)
        # Column by column, so that units do not matter; one that does not vary borrows from the others.
        ridge = _RIDGE * torch.where(varies, variance, mean)
        root = torch.linalg.cholesky(matrix + torch.diag(ridge))
        return cls(shift, torch.linalg.solve_triangular(root, eye, upper=False))

    @property
    def size(self) -> float:
        """The length in x of a unit of z, on average."""
        return math.exp(-float(self.whiten.diagonal().log().mean()))

    def into(self, x: Tensor) -> Tensor:
        return (x - self.shift) @ self.whiten.mT

    def out_of(self, layer: DensityLayer) -> DensityLayer:
        """The same density over x: components move back, W joins the metric."""
        rho = layer.cpu().double()()
        kernel = rho.kernel
        assert isinstance(kernel, RBF)
        components = (
            torch.linalg.solve_triangular(self.whiten, rho.components.mT, upper=False).mT + self.shift
        )
        metric = kernel.metric
        if metric is not None:
            moved = RBF.from_metric((metric @ self.whiten).detach().tril())
        else:
            scale = self.whiten.diagonal().reciprocal()
            moved = RBF((kernel.sigma * (scale if kernel.sigma.ndim else scale[0])).detach())
        result = DensityLayer(components.shape[1], len(components), kernel=moved, dtype=torch.float64)
        with torch.no_grad():
            result.components["x"].copy_(components)
            result.logits.copy_(layer.logits)
        return result


def kernel_of(covariance: Covariance, d: int) -> RBF:
    if covariance == "spherical":
        return RBF(1.0)
    return RBF(torch.ones(d), shear=torch.zeros(d, d) if covariance == "full" else None)


def nearest(layer: DensityLayer, x: Tensor) -> Tensor:
    """The component nearest to every row."""
    return torch.cdist(x, layer.components["x"].detach()).argmin(1)


def weigh(layer: DensityLayer, x: Tensor, weights: Tensor) -> None:
    """Starts every component with the weight of the rows that are nearest to it."""
    mass = torch.bincount(nearest(layer, x), weights, minlength=layer.n_components)
    with torch.no_grad():
        layer.logits.copy_(mass.clamp_min(float(weights.min())).log())


def widen(layer: DensityLayer, x: Tensor, sigma: float | None) -> None:
    """Starts bandwidths from the spread inside clusters, and bounds them from below by a share of it."""
    kernel = layer.kernels["x"]
    assert isinstance(kernel, RBF)
    components = layer.components["x"].detach()
    residual = x - components[nearest(layer, x)]
    degrees = len(x) / max(1, len(x) - len(components))
    width = (2 * degrees * residual.square().mean(0)).clamp_min(_NARROWEST**2).sqrt()
    bandwidth = kernel.learned_bandwidth
    if sigma is not None:
        width = torch.full_like(width, sigma)
    value = width if bandwidth.raw.ndim else width.square().mean().sqrt()
    bandwidth.restart(value, _BOUND * float(value.min()))
