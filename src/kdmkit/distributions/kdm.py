"""A kernel density matrix as a distribution."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import as_tensor, check_choice, check_log_weights, check_weights, expected
from kdmkit._core.logspace import safe_log, safe_logsumexp
from kdmkit.distributions.inference import Inferred
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.sampling import choose, gumbel, gumbel_one_hot, implicit, pick
from kdmkit.distributions.univariate import Univariate
from kdmkit.distributions.weights import Given, Weights
from kdmkit.kernels import Cosine, Kernel, LocationScale


class KDM(Distribution):
    """A weighted set of components with a kernel: f̂(x) = M·Σ_j p_j k²(x, c_j).

    Args:
        components: c, of shape `(m, *event)`, or `(*batch, m, *event)`. Shared components are never expanded.
        weights: p, of shape `(*batch, m)`, non-negative and summing to 1 (zeros are legal); None is uniform.
        kernel: the kernel k.
        log_weights: log p, instead of `weights`.
        validate_args: whether arguments and values are checked; None is torch's default (they are).

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM(torch.eye(3), torch.tensor([0.2, 0.3, 0.5]), kdm.Cosine())
    >>> rho.probs
    tensor([0.2000, 0.3000, 0.5000])
    >>> rho.log_prob(torch.tensor(2)).exp()
    tensor(0.5000)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        components: Any,
        weights: Any = None,
        kernel: Kernel | None = None,
        *,
        log_weights: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        kernel = check_kernel("kernel", kernel)
        components = as_tensor("components", components)
        m_dim = check_components("components", components, kernel)
        mixture = given_weights(weights, log_weights, components, m_dim, validate=_checked(validate_args))
        self._set(components, mixture, kernel, validate_args)
        if self._validate_args:
            kernel.check_events("components", components, self._event_shape)

    def _set(self, components: Tensor, weights: Weights, kernel: Kernel, validate_args: bool | None) -> None:
        self.components, self.kernel, self._weights = components, kernel, weights
        cut = components.ndim - kernel.event_dim
        try:
            batch = torch.broadcast_shapes(weights.batch_shape, components.shape[: cut - 1])
        except RuntimeError as error:
            wanted = f"a batch that broadcasts with the components' {tuple(components.shape[: cut - 1])}"
            raise ValueError(expected("weights", wanted, tuple(weights.batch_shape))) from error
        super().__init__(batch, components.shape[cut:], validate_args=False)
        self._validate_args = _checked(validate_args)

    @classmethod
    def _made(cls, components: Tensor, weights: Weights, kernel: Kernel, validate_args: bool) -> KDM:
        """A KDM from checked parts, as inference and layers make them."""
        rho = cls.__new__(cls)
        rho._set(components, weights, kernel, validate_args)
        return rho

    @classmethod
    def pure(cls, x: Float[Tensor, "*batch d"], kernel: Kernel, *, validate_args: bool | None = None) -> KDM:
        """The KDM with the one component x, for every element of a batch."""
        x = as_tensor("x", x)
        kernel = check_kernel("kernel", kernel)
        if x.ndim < kernel.event_dim:
            raise ValueError(expected("x", f"at least {kernel.event_dim} dimension(s)", tuple(x.shape)))
        return cls(x.unsqueeze(x.ndim - kernel.event_dim), None, kernel, validate_args=validate_args)

    @classmethod
    def from_samples(cls, samples: Any, kernel: Kernel, weights: Any = None) -> KDM:
        """The non-parametric estimate: every sample a component, uniform weights unless given.

        >>> import kdmkit as kdm
        >>> kdm.KDM.from_samples(torch.tensor([[0.0], [1.0]]), kdm.RBF.from_std(0.5)).mean
        tensor([0.5000])
        """
        return cls(samples, weights, kernel)

    @classmethod
    def from_probs(cls, probs: Any) -> KDM:
        """A distribution over n labels as a mixture of basis vectors: weights p, components the identity."""
        probs = as_tensor("probs", probs)
        if not probs.ndim or not probs.is_floating_point():
            raise ValueError(
                expected(
                    "probs",
                    "floating-point probabilities (*batch, n)",
                    f"{probs.dtype}, shape {tuple(probs.shape)}",
                )
            )
        check_weights("probs", probs)
        return cls(torch.eye(probs.shape[-1], dtype=probs.dtype, device=probs.device), probs, Cosine())

    # ---- what it is made of

    @property
    def weights(self) -> Float[Tensor, "*batch m"]:
        return self.log_weights.exp()

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        return self._weights.log_weights

    @property
    def n_components(self) -> int:
        return self.components.shape[-1 - self.kernel.event_dim]

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l) of the evidence this KDM was inferred from; −∞ where nothing overlaps it."""
        if not isinstance(self._weights, Inferred):
            raise AttributeError("log_evidence: only a KDM that `infer` returned has evidence")
        return self._weights.log_evidence

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return isinstance(self.kernel, LocationScale)

    @property
    def support(self) -> Constraint:
        if isinstance(self.kernel, LocationScale):
            return constraints.real_vector
        return constraints.nonnegative_integer if self.kernel.event_dim == 0 else constraints.real_vector

    # ---- densities

    def log_prob(self, value: Any) -> Float[Tensor, "*lead"]:
        """log f̂(x) = logsumexp_j(ℓ_j + 2·log|k(x, c_j)|) + log M.

        Args:
            value: of shape `(*lead, *event)`, or labels `(*lead,)` under a Cosine kernel. `lead` broadcasts
                with the batch.
        """
        return self._weights.log_mix([self._entry(value, normalized=True)])

    def log_projection(self, value: Any) -> Float[Tensor, "*lead"]:
        """log f(x), the Born rule's projection without the normaliser."""
        return self._weights.log_mix([self._entry(value, normalized=False)])

    def projection(self, value: Any) -> Float[Tensor, "*lead"]:
        """f(x) = Σ_j p_j k²(x, c_j), at most 1."""
        return self.log_projection(value).exp()

    def _entry(self, value: Any, *, normalized: bool) -> Entry:
        value = check_value(
            "value", value, self.kernel, self._event_shape, self.components, self._validate_args
        )
        return Entry(self.kernel, value, self.components, normalized)

    # ---- summaries

    @property
    def probs(self) -> Float[Tensor, "*batch n"]:
        """π_i = Σ_j p_j ĉ_ji²: the probability of every label (discrete kernels)."""
        return self._average(self.kernel.probs(self.components))

    @property
    def mean(self) -> Float[Tensor, "*batch d"]:
        """Σ_j p_j c_j (continuous kernels): Nadaraya–Watson regression where the KDM was inferred."""
        self._continuous("mean")
        return self._average(self.components)

    @property
    def variance(self) -> Float[Tensor, "*batch d"]:
        """The variance of every dimension: within components plus between them, taken about a centre."""
        kernel = self._continuous("variance")
        components = self.components.double()
        centre = components.detach().mean(-2, keepdim=True)
        between = components - centre
        within = kernel.variance(self.components).double()
        moments = self._average(torch.cat([between, between.square() + within], -1))
        mean, second = moments.chunk(2, -1)
        return (second - mean.square()).to(self.components.dtype)

    def _average(self, values: Float[Tensor, "*batch m v"]) -> Float[Tensor, "*batch v"]:
        return self._weights.average(values).expand(*self._batch_shape, values.shape[-1])

    def cdf(self, value: Any) -> Float[Tensor, "*lead"]:
        """F(x) of a one-dimensional continuous KDM; values have shape `(*lead, 1)`."""
        univariate = self._univariate("cdf")
        value = check_value(
            "value", value, self.kernel, self._event_shape, self.components, self._validate_args
        )
        return univariate.cdf(value.squeeze(-1))

    def icdf(self, value: Any) -> Float[Tensor, "*lead 1"]:
        """The x with F(x) = q of a one-dimensional continuous KDM; q in (0, 1) has shape `(*lead,)`."""
        univariate = self._univariate("icdf")
        q = as_tensor("value", value, like=self.components).to(self.components)
        if self._validate_args and not bool(((q > 0) & (q < 1)).all()):
            raise ValueError(
                expected(
                    "value",
                    "quantiles strictly between 0 and 1",
                    q.detach().flatten()[((q <= 0) | (q >= 1)).flatten()][:3].tolist(),
                )
            )
        return univariate.icdf(q).unsqueeze(-1)

    def _univariate(self, what: str) -> Univariate:
        kernel = self._continuous(what)
        if self._event_shape != (1,):
            raise ValueError(
                expected(what, "a one-dimensional KDM (event shape (1,))", tuple(self._event_shape))
            )
        return Univariate(kernel, self.components, self.log_weights)

    def _continuous(self, what: str) -> LocationScale:
        if not isinstance(self.kernel, LocationScale):
            raise TypeError(
                expected(what, "a continuous kernel (RBF, Epanechnikov, Tricube)", type(self.kernel).__name__)
            )
        return self.kernel

    def purity(self) -> Float[Tensor, "*batch"]:
        """tr ρ² = Σ_ij p_i p_j k²(c_i, c_j): 1 for one component, less for a mixture."""
        return self.overlap(self)

    def overlap(self, other: KDM) -> Float[Tensor, "*batch"]:
        """tr ρσ = Σ_ij p_i q_j k²(c_i, d_j) of two KDMs with the same kernel."""
        if self.kernel.per_component or other.kernel.per_component:
            raise ValueError(expected("kernel", "one bandwidth for all components", "one per component"))
        if other.kernel is not self.kernel and not _same_kernel(self.kernel, other.kernel):
            raise ValueError(expected("other", f"a KDM with the kernel {self.kernel}", other.kernel))
        m_dim = other.components.ndim - other.kernel.event_dim - 1
        points = other.components.movedim(m_dim, 0)
        rank = max(len(self._batch_shape), m_dim)
        points = points.reshape(points.shape[0], *([1] * (rank - m_dim)), *points.shape[1:])
        log_f = self._weights.log_mix([Entry(self.kernel, points, self.components, normalized=False)])
        return safe_logsumexp(log_f.movedim(0, -1) + other.log_weights).exp()

    # ---- draws

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws `(*sample_shape, *batch, *event)`: one-hots under Cosine, codes under Categorical."""
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            index = choose(self.log_weights.expand(*self._batch_shape, -1), shape.numel(), generator)
            chosen = pick(self.components, index, self.kernel.event_dim)
            drawn = self.kernel.sample(chosen, index, generator)
        return drawn.reshape(self._extended_shape(shape))

    def rsample(
        self,
        sample_shape: Any = (),
        *,
        method: Literal["implicit", "gumbel"] = "implicit",
        temperature: float = 0.5,
        hard: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws that carry gradients to weights, components and bandwidths.

        Args:
            method: `"implicit"` draws exactly and differentiates the conditional distribution functions:
                unbiased for everything, continuous kernels only. `"gumbel"` relaxes the choice of the
                component: with `hard` the draws are exact and the gradients to components and bandwidths
                unbiased, those to the weights biased by an amount that shrinks with the temperature; without
                `hard` the draws themselves are biased. It also serves the Cosine kernel.
            temperature: of the relaxation.
            hard: straight-through: exact draws forward, the relaxation backward.
        """
        check_choice("method", method, ("implicit", "gumbel"))
        shape = torch.Size(sample_shape)
        if method == "implicit":
            kernel = self._continuous("rsample(method='implicit')")
            drawn = self.sample((shape.numel(),), generator=generator)
            drawn = implicit(kernel, drawn, self.components, self.log_weights)
        elif not temperature > 0:
            raise ValueError(expected("temperature", "> 0", temperature))
        elif isinstance(self.kernel, LocationScale):
            log_weights = self.log_weights.expand(*self._batch_shape, -1)
            drawn = gumbel(
                self.kernel, self.components, log_weights, shape.numel(), temperature, hard, generator
            )
        elif isinstance(self.kernel, Cosine):
            drawn = gumbel_one_hot(self.probs, shape.numel(), temperature, hard, generator)
        else:
            raise TypeError(expected("kernel", "one with differentiable draws", type(self.kernel).__name__))
        return drawn.reshape(self._extended_shape(shape))

    # ---- copies

    def expand(self, batch_shape: Any, _instance: Any = None) -> KDM:
        shape = torch.Size(batch_shape)
        log_weights = self.log_weights.expand(*shape, self.n_components)
        return KDM._made(self.components, Given(log_weights), self.kernel, self._validate_args)

    def to(self, *args: Any, **kwargs: Any) -> KDM:
        """A new KDM on another device or in another dtype; the kernel is copied, never moved."""
        kernel = copy.deepcopy(self.kernel).to(*args, **kwargs)
        components = _cast(self.components, *args, **kwargs)
        return KDM._made(components, self._weights.to(*args, **kwargs), kernel, self._validate_args)

    def __repr__(self) -> str:
        return (
            f"KDM(batch_shape={tuple(self._batch_shape)}, event_shape={tuple(self._event_shape)}, "
            f"n_components={self.n_components}, kernel={self.kernel})"
        )


def _cast(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`tensor.to`, but integers keep their dtype."""
    moved = tensor.to(*args, **kwargs)
    return moved if tensor.is_floating_point() else moved.to(tensor.dtype)


def _checked(validate_args: bool | None) -> bool:
    return Distribution._validate_args if validate_args is None else validate_args


def _same_kernel(a: Kernel, b: Kernel) -> bool:
    return type(a) is type(b) and a.has_density and a.config() == b.config()


def check_kernel(argument: str, kernel: object) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise TypeError(expected(argument, "a kernel such as kdmkit.RBF(0.3)", type(kernel).__name__))
    return kernel


def check_components(argument: str, components: Tensor, kernel: Kernel) -> int:
    """The dimension that counts components."""
    m_dim = components.ndim - kernel.event_dim - 1
    if m_dim < 0 or components.shape[m_dim] == 0:
        event = ", ".join(["m", *(["d"] if kernel.event_dim == 1 else ["..."] * kernel.event_dim)])
        raise ValueError(expected(argument, f"shape (..., {event}) with m ≥ 1", tuple(components.shape)))
    if kernel.event_dim and not components.is_floating_point():
        raise TypeError(
            expected(argument, f"a floating-point tensor for {type(kernel).__name__}", components.dtype)
        )
    return m_dim


def check_value(
    argument: str, value: Any, kernel: Kernel, event_shape: torch.Size, like: Tensor, validate: bool
) -> Tensor:
    """`value` as events of `kernel`, on terms with the components `like`."""
    value = kernel.as_events(argument, value, event_shape, like)
    if validate:
        kernel.check_events(argument, value, event_shape)
    return value


def given_weights(weights: Any, log_weights: Any, components: Tensor, m_dim: int, *, validate: bool) -> Given:
    """The mixture's weights from whichever form the user gave."""
    m = components.shape[m_dim]
    like = components if components.is_floating_point() else torch.zeros((), device=components.device)
    if weights is None and log_weights is None:
        return Given(
            torch.full(
                (m,),
                -torch.log(torch.tensor(float(m), dtype=torch.float64)).item(),
                dtype=like.dtype,
                device=like.device,
            )
        )
    if weights is not None and log_weights is not None:
        raise ValueError(expected("weights", "either weights or log_weights", "both"))
    argument = "weights" if log_weights is None else "log_weights"
    tensor = as_tensor(argument, weights if log_weights is None else log_weights, like=like)
    if tensor.ndim == 0 or tensor.shape[-1] != m:
        raise ValueError(expected(argument, f"shape (..., {m}), one per component", tuple(tensor.shape)))
    if log_weights is None:
        if not tensor.is_floating_point():
            tensor = tensor.to(like.dtype)
        if validate:
            check_weights(argument, tensor)
        return Given(safe_log(tensor))
    if validate:
        check_log_weights(argument, tensor)
    return Given(tensor)
