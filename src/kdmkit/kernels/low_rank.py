"""A Gaussian kernel whose components lean: the covariance of each is diagonal plus low rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, bad_argument, check_count, check_finite
from kdmkit._core.tensors import broadcast, full_precision, pick
from kdmkit.kernels.bandwidth import (
    Bandwidth,
    FixedBandwidth,
    as_bandwidth,
    bandwidth_from_config,
    positive_tensor,
    requires_gradient,
)
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.boxes import box_log_mass
from kdmkit.kernels.calculus.normal import anchored_log_mass
from kdmkit.kernels.calculus.woodbury import Woodbury, whiten
from kdmkit.kernels.continuous import Continuous
from kdmkit.kernels.rbf import RBF
from kdmkit.ops import Score, Term
from kdmkit.ops.terms import InDtype, LowRankDistance, common_dtype

# Descriptions hold at most this many numbers.
_MANY = 1 << 12
# Factors to start training from, in units of σ/√d: at 0 they have no gradient.
_START = 0.3


class LowRank(Continuous):
    """k²(x, c) = exp(−(x − c)ᵀ(diag(σ²) + F·Fᵀ)⁻¹(x − c)): ellipsoids along directions of their own.

    The density of a component is the Gaussian N(c, (diag(σ²) + F·Fᵀ)/2). Marginals and conditionals of
    coordinates are kernels of the same kind, in closed form, as are masses of intervals of one coordinate;
    those of boxes are integrals over the factors, exact to 1e-6. A score takes 1 + r/2 times the products of
    `RBF` with a bandwidth per component.

    Args:
        sigma: σ: a number, `(d,)`, `(m, 1)` or `(m, d)`, or a `Bandwidth`, as in `RBF`.
        factors: F, `(m, d, r)` for factors of every component, `(d, r)` for factors that all share; with
            r = 0 the kernel is an `RBF`. Gradients flow to a tensor that requires them, unless `trainable`
            makes a parameter that starts there.
        sigma_min: lower bound of σ while it is trained; None is a millionth of σ.
        trainable: whether σ and F are trained.

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM(torch.zeros(1, 2), None, kdm.LowRank.from_std(0.6, [[0.8], [0.8]]))
    >>> rho.variance, rho.conditional([0], [1.0]).mean
    (tensor([1., 1.]), tensor([0.6400]))
    """

    has_rsample: ClassVar[bool] = True
    factors: Tensor

    def __init__(
        self, sigma: Any, factors: Any, *, sigma_min: float | None = None, trainable: bool = False
    ) -> None:
        super().__init__()
        keeps_graph = requires_gradient(factors) and not trainable
        self.bandwidth = as_bandwidth("sigma", sigma, sigma_min, trainable=trainable, keeps_graph=keeps_graph)
        checked = self._check_factors(factors)
        if isinstance(self.bandwidth, FixedBandwidth):
            self.register_buffer("factors", checked)
        else:
            trained = self.learned_bandwidth.raw.requires_grad
            self.factors = nn.Parameter(checked.detach(), requires_grad=trained)

    def _check_factors(self, factors: Any) -> Tensor:
        sigma = self.sigma
        matrix = as_tensor("factors", factors, like=sigma).to(sigma.dtype, copy=True)
        check_finite("factors", matrix)
        if matrix.ndim < 2:
            raise ValueError(bad_argument("factors", "shape (d, r) or (m, d, r)", tuple(matrix.shape)))
        both = sigma.shape[-2:] if sigma.ndim > 1 else (1, *sigma.shape)
        fits = all(a == b or a == 1 for a, b in zip(both[::-1], matrix.shape[-2::-1], strict=False))
        if not fits or (matrix.ndim > 2 and sigma.ndim > 1 and sigma.shape[-2] != matrix.shape[-3]):
            wanted = f"one that fits sigma of shape {tuple(sigma.shape)}"
            raise ValueError(bad_argument("factors", wanted, tuple(matrix.shape)))
        return matrix

    @classmethod
    def from_std(cls, std: Any, factors: Any, **options: Any) -> LowRank:
        """The kernel whose density has the covariance diag(std²) + F·Fᵀ."""
        std = positive_tensor("std", std)
        return cls(
            std * math.sqrt(2), as_tensor("factors", factors, like=std).to(std) * math.sqrt(2), **options
        )

    @classmethod
    def from_covariance(
        cls, covariance: Float[Tensor, "*m d d"], rank: int | None = None, **options: Any
    ) -> LowRank:
        """The kernel whose density has given covariances, exactly if the rank is None (d − 1).

        Otherwise F has the directions of the largest eigenvalues, and variances stay as they are.

        >>> LowRank.from_covariance(torch.tensor([[1.0, 0.8], [0.8, 1.0]])).covariance
        tensor([[1.0000, 0.8000],
                [0.8000, 1.0000]])
        """
        covariance = as_tensor("covariance", covariance)
        d = covariance.shape[-1]
        rank = d - 1 if rank is None else min(d, check_count("rank", rank, least=0))
        with full_precision(covariance.device.type):
            values, vectors = torch.linalg.eigh(0.5 * (covariance + covariance.mT))
        if not bool((values > 0).all()):
            raise ValueError(bad_argument("covariance", "positive eigenvalues", values.min().item()))
        excess = (values - values[..., :1]).clamp_min(0)
        factors = (vectors * excess.sqrt().unsqueeze(-2))[..., d - rank :]
        rest = covariance.diagonal(dim1=-2, dim2=-1) - factors.square().sum(-1)
        # Rounding apart, what is left is at least the smallest eigenvalue.
        return cls.from_std(torch.maximum(rest, values[..., :1]).sqrt(), factors, **options)

    @classmethod
    def from_rbf(cls, kernel: RBF, d: int) -> LowRank:
        """The same kernel of events `(d,)`: its factors are 0, or those of its metric."""
        metric = kernel.metric
        if metric is None:
            return cls(kernel.sigma.detach(), torch.zeros(d, 0))
        inverse = torch.linalg.inv(metric.detach())
        return cls.from_covariance(0.5 * inverse @ inverse.mT)

    # ---- parameters

    @property
    def sigma(self) -> Float[Tensor, "*shape"]:
        """σ, in the shape of the bandwidth."""
        return self.bandwidth.value

    @property
    def rank(self) -> int:
        """r, the number of factors."""
        return self.factors.shape[-1]

    @property
    def covariance(self) -> Float[Tensor, "*m d d"]:
        """The covariance of the density of each component, or of all."""
        factors = self.factors
        variance = self.sigma.square().expand(*broadcast(self.sigma.shape, factors.shape[:-1]))
        return 0.5 * (torch.diag_embed(variance) + factors @ factors.mT)

    @property
    def per_component(self) -> bool:
        return (self.factors.ndim > 2 and self.rank > 0) or self.bandwidth.per_component

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size(broadcast(self.bandwidth.batch_shape, self.factors.shape[:-3]))

    @property
    def diagonal(self) -> RBF:
        """The kernel without its factors."""
        return RBF(self.bandwidth)

    def with_bandwidth(self, bandwidth: Bandwidth) -> LowRank:
        return LowRank(bandwidth, self.factors)

    def arranged(self, place: Callable[[Tensor], Tensor]) -> LowRank:
        if not self.batch_shape:
            return self
        d, columns = self.factors.shape[-2], self.factors.unbind(-1)
        m = max(value.shape[-2] for value in (*columns, self.sigma) if value.ndim > 1)
        shape = (*self.batch_shape, m, d)
        bandwidth = self.bandwidth.mapped(lambda value: place(value.expand(shape)))
        placed = [place(column.expand(shape)) for column in columns]
        return _made(bandwidth, torch.stack(placed, -1) if placed else self.factors)

    def convolved(self, variance: Float[Tensor, "*shape"]) -> LowRank:
        # σ² is twice the variance.
        return _made(
            self.bandwidth.mapped(lambda sigma: (sigma.square() + 2 * variance).sqrt()), self.factors
        )

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        """As in `Kernel`; factors start at small random numbers, always the same ones."""
        super().initialize_bandwidth(components, sigma, distance=distance)
        if isinstance(self.bandwidth, FixedBandwidth):
            return
        factors, generator = self.factors, torch.Generator().manual_seed(0)
        start = torch.randn(factors.shape, generator=generator) * (_START / math.sqrt(factors.shape[-2]))
        with torch.no_grad():
            scale = self.sigma if self.sigma.ndim else self.sigma.view(1)
            factors.copy_(start.to(factors) * scale.unsqueeze(-1))

    def check_dimensions(self, d: int, x: Tensor | None = None) -> int:
        if self.factors.shape[-2] != d:
            wanted = f"shape ({d}, r) or (m, {d}, r), for events of shape ({d},)"
            raise ValueError(bad_argument("factors", wanted, tuple(self.factors.shape)))
        return super().check_dimensions(d, x)

    def take(self, index: Int[Tensor, " k"] | slice) -> LowRank:
        bandwidth = self.bandwidth
        if bandwidth.per_component:
            bandwidth = bandwidth.mapped(lambda value: value[..., index, :])
        return _made(bandwidth, self.factors[..., index, :, :] if self.factors.ndim > 2 else self.factors)

    def joined(self, other: Kernel, sizes: tuple[int, int]) -> LowRank:
        if isinstance(other, RBF):
            other = LowRank.from_rbf(other, self.factors.shape[-2])
        if not isinstance(other, LowRank):
            self._cannot(f"one of the class {type(other).__name__}, which the other density has")
        rank, parts = max(self.rank, other.rank), []
        for kernel, size in zip((self, other), sizes, strict=True):
            factors = kernel.factors.to(self.factors)
            padded = nn.functional.pad(factors, (0, rank - kernel.rank))
            parts.append(padded.expand(size, *padded.shape[-2:]))
        return _made(self.joined_bandwidth(other, sizes), torch.cat(parts))

    def scaled(self, factor: Any) -> LowRank:
        bandwidth = self.bandwidth.scaled(factor)
        f = torch.as_tensor(factor).to(self.factors)
        return _made(bandwidth, self.factors * (f.unsqueeze(-1) if f.ndim else f))

    def coordinates(self, index: Sequence[int]) -> Continuous:
        """The marginal kernel: `RBF` of one coordinate, otherwise the chosen rows of F."""
        factors, chosen = self.factors[..., list(index), :], self.bandwidth.coordinates(index)
        if len(index) > 1:
            return _made(chosen, factors)
        variance = chosen.value.square() + factors.square().sum(-1)
        return RBF(FixedBandwidth("sigma", variance.sqrt(), validate=False))

    def conditional(
        self, index: Sequence[int], value: Float[Tensor, "*lead k"], components: Tensor
    ) -> tuple[Continuous, Float[Tensor, "*lead m rest"]]:
        rest = [i for i in range(self.check_dimensions(components.shape[-1])) if i not in index]
        given = components[..., list(index)]
        whitened = Woodbury.of(*self._parts(list(index)))
        # F·L⁻ᵀ with L·Lᵀ = I + F_bᵀ·diag(1/σ_b²)·F_b for the given coordinates b.
        left = whitened.solved(self.factors[..., rest, :].double().unbind(-1))
        difference = value.double().unsqueeze(-2) - given.double()
        moved = components[..., rest].double()
        for column, direction in zip(left, whitened.directions, strict=True):
            moved = moved + column * (direction * difference).sum(-1, keepdim=True)
        factors = torch.stack(left, -1).to(self.factors) if left else self.factors[..., rest, :]
        return _made(self.bandwidth.coordinates(rest), factors), moved.to(components)

    # ---- scores

    def _parts(self, index: Sequence[int] | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """1/σ and the columns of F, of some coordinates, in float64."""
        sigma = self.sigma.double()
        inverse = sigma.expand(*sigma.shape[:-1], self.factors.shape[-2])[..., index].reciprocal()
        # One factor after the other: columns that are far apart in memory are slow.
        return inverse, self.factors[..., index, :].movedim(-1, 0).contiguous().double()

    def term(self, x: Tensor, components: Tensor) -> Term:
        return self.term_and_log_norm(x, components)[0]

    def term_and_log_norm(self, x: Tensor, components: Tensor) -> tuple[Term, Float[Tensor, "*batch_m"]]:
        d = self.check_dimensions(components.shape[-1], x)
        if not self.rank:
            return self.diagonal.term_and_log_norm(x, components)
        scales, factors = self._parts()
        directions, log_root = whiten(scales, factors)
        sides = [
            part.to(components.device).expand(*part.shape[:-2], components.shape[-2], -1)
            for part in (scales, directions)
        ]
        return LowRankDistance(x, components, *sides), self._log_norm(d, scales, log_root)

    def _log_norm(self, d: int, scales: Tensor, log_root: Tensor) -> Float[Tensor, "*batch_m"]:
        log_volume = log_root - scales.log().sum(-1)
        return (-0.5 * d * math.log(math.pi) - log_volume).to(self.factors.dtype)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        self.check_dimensions(components.shape[-1], x)
        whitened = Woodbury.of(*self._parts())
        difference = x.double() - components.double()
        overlap = -(whitened.scales * difference).square().sum(-1)
        for direction in whitened.directions:
            overlap = overlap + (direction * difference).sum(-1).square()
        return overlap.clamp_max(0).to(common_dtype((x, components)))

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch_m"]:
        d = self.check_dimensions(components.shape[-1])
        if not self.rank:
            return self.diagonal.log_norm(components)
        scales, factors = self._parts()
        return self._log_norm(d, scales, whiten(scales, factors)[1])

    # ---- draws and moments

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        variance = 0.5 * (self.sigma.square() + self.factors.square().sum(-1)).to(components)
        return variance.expand(broadcast(variance.shape, components.shape))

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        def normal(*shape: int) -> Tensor:
            noise = torch.randn(shape, dtype=components.dtype, device=components.device, generator=generator)
            return noise * math.sqrt(0.5)

        sigma, factors = self.sigma.to(components), self.factors.to(components)
        sigma = pick(sigma, index, 1) if sigma.ndim > 1 else sigma
        factors = pick(factors, index, 2) if factors.ndim > 2 else factors
        along = (factors @ normal(*index.shape, self.rank, 1)).squeeze(-1)
        return components + sigma * normal(*components.shape) + along

    # ---- regions

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        d = self.check_dimensions(components.shape[-1], low)
        sigma, factors = [part.double().to(components.device) for part in (self.sigma, self.factors)]
        lead = broadcast(components.shape[:-1], sigma.shape[:-1], factors.shape[:-2])
        parts = components.double(), sigma.expand(*lead, d), factors.expand(*lead, d, self.rank).flatten(-2)
        packed = torch.cat([part.expand(*lead, -1) for part in parts], -1)
        term = Score(self._box_block, torch.cat([low, high], -1), packed)
        return InDtype.of(term, common_dtype((components,)))

    def _box_block(self, ends: Tensor, packed: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Coordinates without ends are left out: those that are left may be one, in closed form."""
        low, high = ends.double().chunk(2, -1)
        d = low.shape[-1]
        bounded = (torch.isfinite(low) | torch.isfinite(high)).flatten(0, -2).any(0).nonzero().squeeze(1)
        centre, sigma, flat = packed.split([d, d, d * self.rank], -1)
        factors = flat.unflatten(-1, (d, self.rank))[..., bounded, :]
        low, high, centre, sigma = [part[..., bounded] for part in (low, high, centre, sigma)]
        if len(bounded) < 2 or not self.rank:
            scale = (sigma.square() + factors.square().sum(-1)).sqrt()
            low, high, at, scale = [
                part.unsqueeze(place) for part, place in ((low, -2), (high, -2), (centre, -3), (scale, -3))
            ]
            return anchored_log_mass(low, high, at, at, scale).sum(-1)
        lead = broadcast(low.shape[:-2], centre.shape[:-2])
        if not lead:
            return box_log_mass(low, high, centre, sigma, factors)
        rows = [part.expand(*lead, *part.shape[-2:]).flatten(0, -3) for part in (low, high, centre, sigma)]
        spread = factors.expand(*lead, *factors.shape[-3:]).flatten(0, -4)
        masses = [box_log_mass(*parts) for parts in zip(*rows, spread, strict=True)]
        return torch.stack(masses).unflatten(0, lead)

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor]:
        if components.shape[-1] > 1:
            self._cannot("one whose density can be restricted to an interval")
        restricted = self.coordinates([0])
        return restricted.between(low, high, components) or (restricted, components)

    def cdf(self, x: Float[Tensor, "*x"], components: Tensor) -> Float[Tensor, "*lead m"]:
        return self.coordinates([0]).cdf(x, components)

    def quantile_bounds(self, q: Float[Tensor, "*x"], components: Tensor) -> tuple[Tensor, Tensor]:
        return self.coordinates([0]).quantile_bounds(q, components)

    # ---- bounds and roots

    @property
    def envelope(self) -> RBF:
        # F·Fᵀ is at most the diagonal matrix of the sums of the rows of |F·Fᵀ|.
        products = (self.factors @ self.factors.mT).abs().sum(-1)
        return RBF(self.bandwidth.mapped(lambda sigma: (sigma.square() + products).sqrt()))

    @property
    def root(self) -> Float[Tensor, "*m d d"]:
        return torch.linalg.cholesky(2 * self.covariance.double())

    # ---- descriptions

    def config(self) -> dict[str, Any]:
        factors = self.factors.detach()
        many = factors.numel() > _MANY
        shown = {"shape": list(factors.shape)} if many else factors.tolist()
        return {"kernel": "LowRank", **self.bandwidth.config(), "factors": shown}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> LowRank:
        factors = config["factors"]
        factors = torch.zeros(factors["shape"]) if isinstance(factors, dict) else factors
        return cls(bandwidth_from_config("sigma", config), factors)

    def extra_repr(self) -> str:
        return f"rank {self.rank}, factors of shape {tuple(self.factors.shape)}"


def _made(bandwidth: Bandwidth, factors: Tensor) -> LowRank:
    """A kernel through which gradients flow to the tensors that it was computed from."""
    fixed = FixedBandwidth(bandwidth.name, bandwidth.value, validate=False)
    return LowRank(fixed, factors)
