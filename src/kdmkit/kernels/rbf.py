"""The Gaussian (radial basis function) kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, bad_argument, check_finite
from kdmkit._core.tensors import full_precision
from kdmkit.kernels.bandwidth import (
    Bandwidth,
    FixedBandwidth,
    as_bandwidth,
    bandwidth_from_config,
    positive_tensor,
    requires_gradient,
    stack_bandwidths,
)
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.normal import anchored_log_mass, anchored_log_overlap
from kdmkit.kernels.continuous import Continuous
from kdmkit.kernels.feature_map import FeatureMap, positive_inner_products
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.regions import Region
from kdmkit.ops import SquaredDistance, Term
from kdmkit.ops.terms import score_dtype


class RBF(LocationScale, FeatureMap):
    """k(x, c) = exp(−‖x − c‖²/(2σ²)), so the density k²·M is a Gaussian of standard deviation σ/√2.

    σ is the paper's parameter, not a standard deviation. `RBF.from_std(0.5)` and `.std` use the latter.

    Args:
        sigma: a number; `(d,)` for one bandwidth per dimension; `(m, 1)` or `(m, d)` for one per component;
            `(*batch, m, 1)` or `(*batch, m, d)` for one per component of every KDM of a batch (not trained);
            or a `Bandwidth`. Gradients flow to a tensor that requires them, unless `trainable` makes a
            parameter that starts at its value.
        shear: the strict lower triangle of a metric's factor L, `(d, d)`; its diagonal is 1/σ_i and the
            overlap becomes exp(−‖L(x − c)‖²). See `RBF.from_metric`.
        sigma_min: lower bound of σ while it is trained; None is a millionth of σ.
        trainable: whether the parameters are trained.

    >>> kernel = RBF.from_std(0.5)
    >>> x, c = torch.zeros(1, 1), torch.zeros(1, 1)
    >>> kernel.log_overlap(x, c) + kernel.log_norm(c).float()   # log N(0; 0, 0.5²)
    tensor([-0.2258])
    """

    unit_log_norm: ClassVar[float] = -0.5 * math.log(math.pi)
    unit_variance: ClassVar[float] = 0.5
    unit_radius: ClassVar[float] = math.inf
    values_per_distance: ClassVar[int] = 1
    shear: Tensor | None

    def __init__(
        self,
        sigma: Any = 1.0,
        *,
        shear: Any = None,
        sigma_min: float | None = None,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        keeps_graph = requires_gradient(shear) and not trainable
        self.bandwidth = as_bandwidth("sigma", sigma, sigma_min, trainable=trainable, keeps_graph=keeps_graph)
        if shear is None:
            self.shear = None
        elif isinstance(self.bandwidth, FixedBandwidth):
            self.register_buffer("shear", self._check_shear(shear))
        else:
            trained = self.learned_bandwidth.raw.requires_grad
            self.shear = nn.Parameter(self._check_shear(shear).detach(), requires_grad=trained)

    def _check_shear(self, shear: Any) -> Tensor:
        sigma = self.sigma
        matrix = as_tensor("shear", shear, like=sigma).to(sigma.dtype, copy=True)
        check_finite("shear", matrix)
        d = matrix.shape[-1] if matrix.ndim else 0
        if matrix.shape != (d, d) or sigma.shape != (d,):
            wanted = f"a (d, d) matrix beside a (d,) sigma, here {tuple(sigma.shape)}"
            raise ValueError(bad_argument("shear", wanted, tuple(matrix.shape)))
        if bool((matrix.triu() != 0).any()):
            raise ValueError(bad_argument("shear", "zeros on and above the diagonal", matrix.triu().tolist()))
        return matrix

    @classmethod
    def from_std(cls, std: Any, **options: Any) -> RBF:
        """The kernel whose density has standard deviation `std`: σ = √2·std."""
        return cls(positive_tensor("std", std) * math.sqrt(2), **options)

    @classmethod
    def from_metric(cls, factor: Float[Tensor, "d d"], **options: Any) -> RBF:
        """The kernel with log-overlap −‖L(x − c)‖² for a lower triangular L with a positive diagonal."""
        factor = as_tensor("factor", factor)
        square = factor.ndim == 2 and factor.shape[0] == factor.shape[1]
        if not square or bool((factor.diagonal() <= 0).any()) or bool((factor.triu(1) != 0).any()):
            wanted = "a lower triangular (d, d) matrix with a positive diagonal"
            raise ValueError(bad_argument("factor", wanted, f"shape {tuple(factor.shape)}:\n{factor}"))
        return cls(factor.diagonal().reciprocal(), shear=factor.tril(-1), **options)

    @property
    def sigma(self) -> Float[Tensor, "*shape"]:
        """σ, in the shape of the bandwidth."""
        return self.bandwidth.value

    @sigma.setter
    def sigma(self, value: Any) -> None:
        self.learned_bandwidth.value = value

    def stacked(self, others: Sequence[Kernel]) -> RBF | None:
        """One kernel with a bandwidth for every component of each; None for metrics and shared bandwidths."""
        kernels = [kernel for kernel in (self, *others) if isinstance(kernel, RBF) and kernel.shear is None]
        if len(kernels) <= len(others):
            return None
        bandwidth = stack_bandwidths([kernel.bandwidth for kernel in kernels])
        return None if bandwidth is None else RBF(bandwidth)

    def with_bandwidth(self, bandwidth: Bandwidth) -> RBF:
        return RBF(bandwidth, shear=self.shear)

    def scaled(self, factor: Any) -> RBF:
        bandwidth = self.bandwidth.scaled(factor)
        if self.shear is None:
            return RBF(bandwidth)
        # −‖L(x − c)‖² with x = y/f is −‖L·diag(1/f)·(y − f·c)‖².
        sigma = bandwidth.value
        return RBF(bandwidth, shear=self.shear.to(sigma) / torch.as_tensor(factor).to(sigma))

    def coordinates(self, index: Sequence[int]) -> RBF:
        if self.shear is None:
            return RBF(self.bandwidth.coordinates(index))
        # The marginal of N(c, AAᵀ/2) with A = L⁻¹ has the rows of A that belong to the chosen coordinates.
        rows = self._inverse_metric()[list(index)]
        with full_precision(rows.device.type):
            return _of_covariance(rows @ rows.mT)

    def conditional(
        self, index: Sequence[int], value: Float[Tensor, "*lead k"], components: Tensor
    ) -> tuple[LocationScale, Float[Tensor, "*lead m rest"]]:
        if self.shear is None:
            return super().conditional(index, value, components)
        given, rest = list(index), [i for i in range(components.shape[-1]) if i not in index]
        inverse = self._inverse_metric()
        with full_precision(inverse.device.type):
            covariance = inverse @ inverse.mT
            across = covariance[rest][:, given]
            slope = torch.linalg.solve(covariance[given][:, given], across.mT).mT
            moved = (value.unsqueeze(-2) - components[..., given]) @ slope.mT.to(components)
            return _of_covariance(covariance[rest][:, rest] - slope @ across.mT), components[
                ..., rest
            ] + moved

    def joined(self, other: Kernel, sizes: tuple[int, int]) -> Continuous:
        from kdmkit.kernels.low_rank import LowRank  # not above: that module imports this one

        if isinstance(other, LowRank):
            return LowRank.from_rbf(self, other.factors.shape[-2]).joined(other, sizes)
        metric, others = self.metric, other.metric if isinstance(other, RBF) else None
        if metric is None and others is None:
            return super().joined(other, sizes)
        if metric is None or others is None or not torch.equal(metric, others):
            self._cannot("one without a metric, or with that of the other density")
        return self

    @property
    def noise_variance(self) -> Float[Tensor, "*shape"]:
        if self.shear is not None:
            self._cannot("an RBF kernel without a metric")
        return 0.5 * self.sigma.square()

    def convolved(self, variance: Float[Tensor, "*shape"]) -> RBF:
        if self.shear is not None:
            self._cannot("an RBF kernel without a metric")
        # σ² is twice the variance.
        value = (self.sigma.square() + 2 * variance).sqrt()
        return RBF(FixedBandwidth("sigma", value, validate=False))

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """The standard deviation of the density: σ/√2 (the square root of its variances under a metric)."""
        if self.shear is None:
            return self.sigma / math.sqrt(2)
        return self._metric_variance().sqrt()

    @property
    def metric(self) -> Float[Tensor, "d d"] | None:
        """L, if the kernel has a metric, or None."""
        if self.shear is None:
            return None
        return self.shear.tril(-1) + torch.diag(self.sigma.reciprocal())

    def _inverse_metric(self) -> Float[Tensor, "d d"]:
        """L⁻¹: the density's covariance is L⁻¹L⁻ᵀ/2."""
        metric = self.metric
        assert metric is not None
        eye = torch.eye(metric.shape[-1], dtype=metric.dtype, device=metric.device)
        return torch.linalg.solve_triangular(metric, eye, upper=False)

    def _metric_variance(self) -> Float[Tensor, " d"]:
        return 0.5 * self._inverse_metric().square().sum(-1)

    inner_products = positive_inner_products

    def unit_log_overlap(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return -u.square()

    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # Not ndtr, which is 0 below −9 standard deviations.
        return 0.5 * torch.erfc(-u)

    def interval_log_mass(self, low: Tensor, high: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        return anchored_log_mass(low, high, centre, centre, scale)

    def anchored_log_overlap(self, x: Tensor, anchor: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        return anchored_log_overlap(x, anchor, centre, scale)

    def anchored_log_mass(
        self, low: Tensor, high: Tensor, anchor: Tensor, centre: Tensor, scale: Tensor
    ) -> Tensor:
        return anchored_log_mass(low, high, anchor, centre, scale)

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Float[Tensor, "*lead p"]:
        self._check_product(argument, event_shape[-1])
        return super().pack(argument, region, event_shape, device)

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        self._check_product("region", components.shape[-1])
        return super().interval_term(low, high, components)

    def _check_product(self, argument: str, d: int) -> None:
        if self.shear is not None and d > 1:
            wanted = "points, or a kernel without a metric"
            raise TypeError(bad_argument(argument, wanted, f"Interval for {self!r}"))

    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        normal = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        return normal / math.sqrt(2)

    def unit_quantile_bound(self, q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # One more standard deviation than the quantile: a bracket must hold it strictly inside.
        return (torch.special.ndtri(q).abs() + 1) / math.sqrt(2)

    def distance_to_point(self, gap: Float[Tensor, "*shape"], scale: Tensor) -> Float[Tensor, "*shape"]:
        return _mean_absolute(gap, scale * math.sqrt(0.5))

    def distance_between(
        self, gap: Float[Tensor, "*shape"], scale: Tensor, other: Tensor
    ) -> Float[Tensor, "*shape"]:
        return _mean_absolute(gap, torch.hypot(scale, other) * math.sqrt(0.5))

    def term(self, x: Tensor, components: Tensor) -> Term:
        self.check_dimensions(components.shape[-1], x)
        metric = self.metric
        if metric is not None:
            metric = metric.to(components.device, score_dtype(x, components))
            return SquaredDistance(x, components, metric, metric=True)
        # Reciprocals in the precision of the scores: rounded, they would move those of far queries.
        scale = self.sigma.to(components.device, score_dtype(x, components)).reciprocal()
        return self.distance_term(x, components, scale)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        if self.shear is None:
            return super().log_overlap(x, components)
        return self.whiten(x - components).square().sum(-1).neg()

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        if self.shear is None:
            return super().variance(components)
        return self._metric_variance().to(components).expand_as(components)

    def sample(self, components: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.shear is None:
            return super().sample(components, index, generator)
        return components + self.unwhiten(self.unit_draw(components, generator))

    def whiten(self, x: Tensor) -> Tensor:
        metric = self.metric
        if metric is None:
            return x
        with full_precision(x.device.type):
            return torch.matmul(x, metric.to(x).mT)

    def unwhiten(self, u: Tensor) -> Tensor:
        metric = self.metric
        if metric is None:
            return u
        return torch.linalg.solve_triangular(metric.to(u), u.unsqueeze(-1), upper=False).squeeze(-1)

    def whitened(self) -> LocationScale:
        return self if self.shear is None else RBF(1.0)

    def config(self) -> dict[str, Any]:
        shear = None if self.shear is None else self.shear.tolist()
        return {"kernel": "RBF", **self.bandwidth.config(), "shear": shear}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> RBF:
        return cls(bandwidth_from_config("sigma", config), shear=config["shear"])

    def extra_repr(self) -> str:
        return super().extra_repr() if self.shear is None else f"metric of {self.shear.shape[-1]} dimensions"


def _of_covariance(covariance: Float[Tensor, "d d"]) -> RBF:
    """The kernel whose density has half this covariance."""
    root = torch.linalg.cholesky(covariance)
    factor = torch.linalg.solve_triangular(root, torch.eye(len(root)).to(root), upper=False)
    sigma = FixedBandwidth("sigma", factor.diagonal().reciprocal(), validate=False)
    return RBF(sigma, shear=factor.tril(-1) if len(root) > 1 else None)


def _mean_absolute(mean: Float[Tensor, "*shape"], std: Tensor) -> Float[Tensor, "*shape"]:
    """E|x| of a Gaussian x: 2·std·φ(z) + mean·(2Φ(z) − 1) with z = mean/std."""
    z = mean / std
    return std * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() + mean * torch.erf(z * math.sqrt(0.5))
