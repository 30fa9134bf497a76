"""Maximum likelihood of a density, by gradient steps and by expectation and maximisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import check_number
from kdmkit.estimators.common.arrays import merge_rows, split_rows
from kdmkit.estimators.common.leave_one_out import SIGMA, choose_sigma, is_rule
from kdmkit.kernels import RBF
from kdmkit.nn import DensityLayer, DrawingModule
from kdmkit.nn.layer import LayerOptions
from kdmkit.nn.scaler import normalized_weights
from kdmkit.training import Rows, nll

Covariance = Literal["spherical", "diag", "full"]

#: What covariances are shrunken to: smaller copies of that of all rows, or their average; or their diagonals.
Shape = Literal["full", "tied", "diag"]
# Added to variances in EM, relative to those of all rows; the least of these (constant columns); the least
# gain and the number of steps.
_EM_RIDGE, _LEAST_VARIANCE, _EM_GAIN, _EM_STEPS = 1e-6, 1e-3, 1e-3, 60
# Added to a covariance before it is inverted, relative to the variances.
_RIDGE = 1e-3
# With fewer components than a quarter of this share of the rows, bandwidths need no bound by leave-one-out.
_FEW_COMPONENTS = 0.2
# In whitened coordinates: the smallest bandwidth to start from, the noise on samples in units of the
# kernel's standard deviation, and the lower bound of bandwidths relative to their start.
_SMALLEST_START = 0.2
_NOISE = 0.3
_BOUND = 0.1


def fit_likelihood(
    estimator: Any, x: Float[Tensor, "n d"], weights: Float[Tensor, " n"] | None
) -> tuple[DensityLayer, list[dict[str, float]]]:
    """The density of an estimator's components with the largest likelihood, and the history of the fit."""
    is_free = is_rule(estimator.sigma) or (isinstance(estimator.sigma, str) and estimator.sigma == "auto")
    start = None if is_free else check_number("sigma", estimator.sigma, SIGMA, positive=True)
    frame = Frame.of(x, weights, estimator.covariance)
    z, seed = frame.into(x).float(), estimator._seed
    rows, validation = split_rows((z,), weights, estimator.validation_fraction, seed)
    z, d = rows.tensors[0], x.shape[1]
    m = estimator._count_components(len(rows), max(1, min(16, len(rows) // 24)))
    options: LayerOptions = {"dtype": torch.float32, "generator": torch.Generator()}
    layer = DensityLayer(d, m, kernel=kernel_of(estimator.covariance, d), **options)
    layer.initialize(z, method="kmeans", generator=estimator._torch_generator())
    if rows.weights is not None:
        _initialize_weights(layer, z, rows.weights)
    start = None if start is None else start / frame.size
    _initialize_bandwidth(layer, z, start, _least_sigma(rows, m))
    history = estimator._run(Likelihood(layer), rows, validation, "density")
    return frame.out_of(layer), history


def _least_sigma(rows: Rows, m: int) -> float:
    """A lower bound of bandwidths, min(1, 4m/n) times that of a kernel density estimate (leave-one-out).

    If components are nearly as many as rows, each sits on a row: narrower bandwidths would overfit.
    """
    share, x = 4 * m / len(rows), rows.tensors[0]
    if share < _FEW_COMPONENTS:
        return 0.0
    distinct, w = merge_rows(x, rows.weights)
    return min(1.0, share) * choose_sigma("loo", x[distinct], w)


class Likelihood(DrawingModule):
    """−log p(x) of a layer's density, per row; in training of x + e with noise e ~ N(0, (.3·s)²).

    s is the kernel's standard deviation. The noise is a regulariser: without it few samples in many
    dimensions are overfitted.
    """

    def __init__(self, layer: DensityLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        rho = self.layer()
        if self.training:
            x = x + _NOISE * _rbf(self.layer).std.detach() * self.normal(x)
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
        """W = C^(−1/2) of the covariance C as far as the kernel can express it: c·I, diagonal, or full."""
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
        # Relative to each column's variance, so that units do not matter; a constant column takes the mean.
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
        """The same density over x: components are mapped back, W becomes part of the kernel."""
        layer = layer.cpu().double()
        kernel, latent = _rbf(layer), layer.components["x"].detach()
        components = torch.linalg.solve_triangular(self.whiten, latent.mT, upper=False).mT + self.shift
        if kernel.metric is not None:
            moved = RBF.from_metric((kernel.metric @ self.whiten).detach().tril())
        else:
            scale = self.whiten.diagonal().reciprocal()
            moved = RBF((kernel.sigma * (scale if kernel.sigma.ndim else scale[0])).detach())
        options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
        result = DensityLayer(components.shape[1], len(components), kernel=moved, **options)
        return result.assign({"x": components}, layer.logits)


def kernel_of(covariance: Covariance, d: int) -> RBF:
    """The kernel in whitened coordinates."""
    if covariance == "spherical":
        return RBF(1.0)
    return RBF(torch.ones(d), shear=torch.zeros(d, d) if covariance == "full" else None)


def _rbf(layer: DensityLayer) -> RBF:
    """The kernel of a layer that has one of `kernel_of`."""
    return cast("RBF", layer.kernel("x"))


def _initialize_weights(layer: DensityLayer, x: Tensor, weights: Tensor) -> None:
    """Gives every component the weight of the rows that are nearest to it."""
    mass = torch.bincount(_nearest(layer, x), weights, minlength=layer.n_components)
    with torch.no_grad():
        layer.logits.copy_(mass.clamp_min(float(weights.min())).log())


def _initialize_bandwidth(layer: DensityLayer, x: Tensor, sigma: float | None, least: float) -> None:
    """Starts bandwidths from the spread inside clusters (or from σ), with a lower bound.

    The bound is a share of the start, or `least` if that is more.
    """
    components = layer.components["x"].detach()
    residual = x - components[_nearest(layer, x)]
    degrees = len(x) / max(1, len(x) - len(components))
    width = (2 * degrees * residual.square().mean(0)).clamp_min(_SMALLEST_START**2).sqrt()
    bandwidth = layer.kernel("x").learned_bandwidth
    if sigma is not None:
        width = torch.full_like(width, sigma)
    value = width if bandwidth.shape else width.square().mean().sqrt()
    bound = max(least, _BOUND * float(value.min()))
    bandwidth.restart(value.clamp_min(1.05 * bound), bound)


def _nearest(layer: DensityLayer, x: Tensor) -> Tensor:
    """The component nearest to every row."""
    return torch.cdist(x, layer.components["x"].detach()).argmin(1)


@dataclass(frozen=True)
class Gaussians:
    """Gaussian components with full covariances.

    Args:
        share: their weights.
        mean: their centres.
        root: Cholesky factors of their covariances.
    """

    share: Float[Tensor, " k"]
    mean: Float[Tensor, "k d"]
    root: Float[Tensor, "k d d"]

    @classmethod
    def of(
        cls,
        z: Float[Tensor, "n d"],
        w: Float[Tensor, " n"],
        r: Float[Tensor, "k n"],
        prior: float,
        shape: Shape,
    ) -> Gaussians:
        """The best components for responsibilities r.

        Covariances are averages with `prior` pseudo-rows of the covariance of all rows, less by k^(2/d)
        (components are smaller), or, if they are "tied", of the average covariance of components.
        """
        k, d = len(r), z.shape[1]
        r = r * w
        mass = r.sum(1).clamp_min(1e-12)
        mean = (r @ z) / mass.unsqueeze(1)
        centred = z - mean.unsqueeze(1)
        scatter = (centred * r.unsqueeze(-1)).mT @ centred
        every = z - (w @ z) / w.sum()
        total = every.mT @ (w.unsqueeze(1) * every) / w.sum()
        usual = scatter.sum(0) / w.sum() if shape == "tied" else total / k ** (2 / d)
        covariance = (scatter + prior * usual) / (mass + prior).view(-1, 1, 1)
        if shape == "diag":
            covariance = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
        ridge = _EM_RIDGE * total.diagonal().clamp_min(_LEAST_VARIANCE)
        return cls((mass + 1) / (mass + 1).sum(), mean, torch.linalg.cholesky(covariance + torch.diag(ridge)))

    @classmethod
    def fit(
        cls,
        z: Float[Tensor, "n d"],
        w: Float[Tensor, " n"],
        r: Float[Tensor, "k n"],
        prior: float,
        shape: Shape,
    ) -> Gaussians:
        """Expectation and maximisation, from responsibilities r."""
        model, last = cls.of(z, w, r, prior, shape), -math.inf
        for _ in range(_EM_STEPS if len(r) > 1 else 0):
            scores = model.scores(z)
            density = torch.logsumexp(scores, 0)
            gained = float(w @ density / w.sum())
            if gained < last + _EM_GAIN:
                break
            model, last = cls.of(z, w, (scores - density).exp(), prior, shape), gained
        return model

    def scores(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "k n"]:
        """log p_k + log N(z; mean_k, covariance_k)."""
        d = z.shape[1]
        inverse = torch.linalg.solve_triangular(
            self.root, torch.eye(d).to(z).expand_as(self.root), upper=False
        )
        white = z @ inverse.mT - (inverse @ self.mean.unsqueeze(-1)).mT
        log_norm = self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * d * math.log(2 * math.pi)
        return (self.share.log() - log_norm).unsqueeze(1) - 0.5 * white.square().sum(-1)
