"""The Gaussian (radial basis function) kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_finite
from kdmkit._core.precision import compute_dtype, full_precision
from kdmkit.kernels.bandwidth import Bandwidth, Widened, as_bandwidth
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.ops import ComponentDistance, SquaredDistance, Term


class RBF(LocationScale):
    """k(x, c) = exp(−‖x − c‖²/(2σ²)), so the density k²·M is a Gaussian of standard deviation σ/√2.

    σ is the paper's parameter, not a standard deviation: `RBF.from_std(0.5)` and `.std` speak of the latter.

    Args:
        sigma: a number; `(d,)` for one bandwidth per dimension; `(m, 1)` or `(m, d)` for one per component.
        shear: the strict lower triangle of a metric's factor L, `(d, d)`; its diagonal is 1/σ_i and the
            overlap becomes exp(−‖L(x − c)‖²). See `RBF.from_metric`.
        sigma_min: lower bound of σ while it is trained; None is a millionth of σ.
        trainable: whether the parameters ask for gradients.

    >>> kernel = RBF.from_std(0.5)
    >>> x, c = torch.zeros(1, 1), torch.zeros(1, 1)
    >>> kernel.log_overlap(x, c) + kernel.log_norm(c.shape[-1:]).float()   # log N(0; 0, 0.5²)
    tensor([-0.2258])
    """

    unit_log_norm: ClassVar[float] = -0.5 * math.log(math.pi)
    unit_variance: ClassVar[float] = 0.5
    unit_radius: ClassVar[float] = math.inf

    def __init__(
        self,
        sigma: Any = 1.0,
        *,
        shear: Any = None,
        sigma_min: float | None = None,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        self.bandwidth = Bandwidth("sigma", sigma, sigma_min, trainable=trainable, max_dim=2)
        self.shear: nn.Parameter | None = None
        if shear is not None:
            self.shear = nn.Parameter(self._check_shear(shear), requires_grad=trainable)

    def _check_shear(self, shear: Any) -> Tensor:
        sigma = self.sigma.detach()
        matrix = torch.as_tensor(shear, dtype=sigma.dtype, device=sigma.device).clone()
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
        std = as_bandwidth("std", std)
        return cls(std * math.sqrt(2), **options)

    @classmethod
    def from_metric(cls, factor: Float[Tensor, "d d"], **options: Any) -> RBF:
        """The kernel with log-overlap −‖L(x − c)‖² for a lower triangular L with a positive diagonal."""
        factor = torch.as_tensor(factor)
        square = factor.ndim == 2 and factor.shape[0] == factor.shape[1]
        if not square or bool((factor.diagonal() <= 0).any()) or bool((factor.triu(1) != 0).any()):
            wanted = "a lower triangular (d, d) matrix with a positive diagonal"
            raise ValueError(bad_argument("factor", wanted, f"shape {tuple(factor.shape)}:\n{factor}"))
        return cls(factor.diagonal().reciprocal(), shear=factor.tril(-1), **options)

    @property
    def sigma(self) -> Float[Tensor, "*shape"]:
        return self.bandwidth.value

    @sigma.setter
    def sigma(self, value: Any) -> None:
        self.bandwidth.value = value

    def widened(self, by: Float[Tensor, "*batch m d"]) -> RBF:
        """The kernel whose density has variance s² + v, with v of shape `(*batch, m, d)`.

        It shares this one's bandwidth. `KDM.widened` is what users need.
        """
        # σ² is twice the variance.
        return self._with(Widened(self.bandwidth, 2 * by))

    def arranged(self, place: Callable[[Tensor], Tensor]) -> RBF:
        assert isinstance(self.bandwidth, Widened)
        return self._with(self.bandwidth.arranged(place))

    def _with(self, bandwidth: Widened) -> RBF:
        kernel = RBF.__new__(RBF)
        nn.Module.__init__(kernel)
        kernel.bandwidth, kernel.shear = bandwidth, None
        return kernel

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """The standard deviation of the density: σ/√2 (the square root of its variances under a metric)."""
        if self.shear is None:
            return self.sigma / math.sqrt(2)
        return self._metric_variance().sqrt()

    @property
    def metric(self) -> Float[Tensor, "d d"] | None:
        """L, where the kernel has a full metric."""
        if self.shear is None:
            return None
        return self.shear.tril(-1) + torch.diag(self.sigma.reciprocal())

    def _metric_variance(self) -> Tensor:
        metric = self.metric
        assert metric is not None
        eye = torch.eye(metric.shape[-1], dtype=metric.dtype, device=metric.device)
        inverse = torch.linalg.solve_triangular(metric, eye, upper=False)
        return 0.5 * inverse.square().sum(-1)

    def unit_log_overlap(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return -u.square()

    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return torch.special.ndtr(u * math.sqrt(2))

    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        normal = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        return normal / math.sqrt(2)

    def unit_quantile_bound(self, q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # One more standard deviation than the quantile: a bracket must hold it strictly inside.
        return (torch.special.ndtri(q).abs() + 1) / math.sqrt(2)

    def term(self, x: Tensor, components: Tensor) -> Term:
        self._check_dimensions(components.shape[-1])
        metric = self.metric
        if metric is not None:
            metric = metric.to(components.device, compute_dtype(components.dtype))
            return SquaredDistance(x, components, metric, metric=True)
        scale = self.score_scale(components).reciprocal()
        if self.per_component:
            return ComponentDistance(x, components, scale)
        return SquaredDistance(
            x, components, scale.expand(1, *scale.shape[-1:]) if scale.ndim else scale.view(1, 1)
        )

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
        if isinstance(self.bandwidth, Widened):
            raise ValueError(bad_argument("kernel", "one without a batch of bandwidths", "a widened one"))
        return {
            "kernel": "RBF",
            "sigma": self.sigma.tolist(),
            "sigma_min": float(self.bandwidth.minimum),
            "shear": None if self.shear is None else self.shear.tolist(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> RBF:
        return cls(config["sigma"], shear=config["shear"], sigma_min=config["sigma_min"])

    def extra_repr(self) -> str:
        return super().extra_repr() if self.shear is None else f"metric of {self.shear.shape[-1]} dimensions"
