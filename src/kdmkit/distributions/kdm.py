"""A kernel density matrix as a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import as_shape, as_tensor, bad_argument, check_instance, check_weights
from kdmkit.distributions.arguments import (
    BatchIndex,
    check_components,
    check_index,
    common_batch,
    is_checked,
    per_dimension,
)
from kdmkit.distributions.base import PartMap
from kdmkit.distributions.mixing import Entry, log_posterior_weights
from kdmkit.distributions.sampling import choose, draw_with_gradients
from kdmkit.distributions.summaries import Summaries
from kdmkit.distributions.weights import Given, Weights, given_weights
from kdmkit.kernels import Cosine, Kernel, Region, check_continuous, check_kernel
from kdmkit.kernels.bandwidth import FixedBandwidth


class KDM(Summaries, Distribution):
    """A weighted set of components with a kernel: f̂(x) = M·Σ_j p_j k²(x, c_j).

    Args:
        components: c, of shape `(m, *event)`, or `(*batch, m, *event)`. Shared components are never expanded.
        weights: p, of shape `(*batch, m)`, non-negative and summing to 1 (zeros are legal); None is uniform.
        kernel: the kernel k.
        log_weights: log p, instead of `weights`.
        validate_args: whether arguments and values are checked; None: they are, but not inside
            `torch.compile`.

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
        components = as_tensor("components", components, is_real=not kernel.takes_complex)
        m_dim = check_components("components", components, kernel)
        validate = is_checked(validate_args, components)
        mixture = given_weights(weights, log_weights, components, m_dim, validate=validate)
        self._set(components, mixture, kernel, validate)
        if validate:
            kernel.check_component_values("components", components, self._event_shape)
            kernel.check_components("kernel", components)

    def _set(self, components: Tensor, weights: Weights, kernel: Kernel, validate_args: bool) -> None:
        self.components, self.kernel, self._weights = components, kernel, weights
        cut = components.ndim - kernel.component_dim
        batch, kernel_batch = weights.batch_shape, kernel.batch_shape
        event_shape = kernel.event_shape(components.shape[cut:])
        if cut > 1 or kernel_batch:
            shapes = {"weights": batch, "components": components.shape[: cut - 1], "kernel": kernel_batch}
            batch = common_batch(shapes)
        super().__init__(batch, event_shape, validate_args=False)
        self._validate_args = validate_args and not components.is_meta

    @classmethod
    def pure(cls, x: Any, kernel: Kernel, *, validate_args: bool | None = None) -> KDM:
        """The KDM with the one component x `(*batch, *event)`, for every element of a batch."""
        kernel = check_kernel("kernel", kernel)
        x = as_tensor("x", x, is_real=not kernel.takes_complex)
        rank = kernel.event_rank(x)
        if x.ndim < rank:
            raise ValueError(bad_argument("x", f"at least {rank} dimension(s)", tuple(x.shape)))
        components = kernel.components_from(x.unsqueeze(x.ndim - rank))
        return cls(components, None, kernel, validate_args=validate_args)

    @classmethod
    def from_samples(cls, samples: Any, kernel: Kernel, weights: Any = None) -> KDM:
        """The non-parametric estimate: every sample a component, uniform weights unless given.

        >>> import kdmkit as kdm
        >>> kdm.KDM.from_samples(torch.tensor([[0.0], [1.0]]), kdm.RBF.from_std(0.5)).mean
        tensor([0.5000])
        """
        kernel = check_kernel("kernel", kernel)
        samples = as_tensor("samples", samples, is_real=not kernel.takes_complex)
        return cls(kernel.components_from(samples), weights, kernel)

    @classmethod
    def from_probs(cls, probs: Any) -> KDM:
        """A distribution over n labels as a mixture of basis vectors: weights p, components the identity."""
        probs = as_tensor("probs", probs)
        if not probs.ndim or not probs.is_floating_point():
            got = f"{probs.dtype}, shape {tuple(probs.shape)}"
            raise ValueError(bad_argument("probs", "floating-point probabilities (*batch, n)", got))
        check_weights("probs", probs)
        return cls(torch.eye(probs.shape[-1], dtype=probs.dtype, device=probs.device), probs, Cosine())

    # ---- what it is made of

    @property
    def n_components(self) -> int:
        """m, the number of components."""
        return self.components.shape[-1 - self.kernel.component_dim]

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.kernel.has_rsample

    @property
    def support(self) -> Constraint:
        return self.kernel.support

    # ---- densities

    def log_prob(self, value: Any) -> Float[Tensor, "*lead"]:
        """log f̂(x) = logsumexp_j(ℓ_j + 2·log|k(x, c_j)| + log M_j), plus the kernel's `log_jacobian(x)`.

        Args:
            value: of shape `(*lead, *event)`, or labels `(*lead,)` under a Cosine kernel, on any device.
                `lead` broadcasts with the batch.
        """
        return self._weights.log_mix([Entry(self.kernel, self._check_value(value), self.components)])

    def log_projection(self, value: Any) -> Float[Tensor, "*lead"]:
        """log f(x), the Born rule's projection without the normaliser."""
        value = self._check_value(value)
        return self._weights.log_mix([Entry(self.kernel, value, self.components, "overlap")])

    def projection(self, value: Any) -> Float[Tensor, "*lead"]:
        """f(x) = Σ_j p_j k²(x, c_j): at most 1, but densities of Inflated components take the place of k²."""
        return self.log_projection(value).exp()

    def log_mass(self, region: Region | Sequence[Region]) -> Float[Tensor, "*lead"]:
        """log Σ_j p_j·(mass of component j in the region): how probable the region is.

        Args:
            region: an `Interval`, or a `OneOf` for discrete kernels; leading dimensions broadcast with the
                batch. A list of regions adds a first dimension to the result.
        """
        for one in region if isinstance(region, list | tuple) else [region]:
            check_instance("region", one, Region, "a region: kdmkit.Interval, kdmkit.OneOf, kdmkit.Missing")
        kernel, event = self.kernel, self._event_shape
        packed = kernel.packed("region", region, event, self.components.device)
        if not isinstance(region, Region):
            packed = packed.reshape(len(packed), *[1] * len(self._batch_shape), -1)
        common_batch({"region": packed.shape[:-1], "batch_shape": self._batch_shape})
        return self._weights.log_mix([Entry(kernel, packed, self.components, is_region=True)])

    def _check_value(self, value: Any) -> Tensor:
        """`value` as events; plain numbers get the dtype and device of the components."""
        kernel, event = self.kernel, self._event_shape
        value = kernel.as_events("value", value, event, self.components)
        if self._validate_args:
            kernel.check_events("value", value, event)
        lead = value.shape[: value.ndim - kernel.event_rank(value)]
        if len(lead) != len(self._batch_shape) or lead != self._batch_shape:
            common_batch({"value": lead, "batch_shape": self._batch_shape})
        return value

    # ---- draws

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws `(*sample_shape, *batch, *event)`: one-hots under Cosine, codes under Categorical.

        Args:
            sample_shape: sizes of the leading dimensions; a number n means `(n,)`.
            generator: source of randomness; None is torch's global one.
        """
        shape = as_shape("sample_shape", sample_shape)
        with torch.no_grad():
            index = choose(self.log_weights, shape.numel(), generator)
            drawn = self.kernel.draw(self.components, index, generator)
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
                unbiased, those to the weights biased (on small test mixtures by .3 to 13 % at temperature .1,
                by 13 to 62 % at .5); without `hard` the draws themselves are biased. It also serves the
                Cosine kernel.
            temperature: of the relaxation.
            hard: straight-through: exact draws forward, the relaxation backward.
        """
        shape = as_shape("sample_shape", sample_shape)
        drawn = draw_with_gradients(self, shape.numel(), method, temperature, hard, generator)
        return drawn.reshape(self._extended_shape(shape))

    # ---- copies

    def shifted(self, by: Any) -> KDM:
        """The distribution of x + b (continuous kernels): every component moves by b.

        Args:
            by: b, of shape `(*batch, d)`, or a number for all dimensions.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM.from_samples(torch.tensor([[0.0], [1.0]]), kdm.RBF.from_std(0.5))
        >>> rho.shifted(torch.tensor([[0.0], [10.0]])).mean
        tensor([[ 0.5000],
                [10.5000]])
        """
        check_continuous("shifted", self.kernel)
        by = per_dimension("by", by, self._event_shape, self.components, self._validate_args)
        common_batch({"by": by.shape[:-1], "batch_shape": self._batch_shape})
        return KDM._made(self.components + by.unsqueeze(-2), self._weights, self.kernel, self._validate_args)

    def scaled(self, factor: Any) -> KDM:
        """The distribution of f·x (continuous kernels): components and bandwidths are multiplied by f.

        Args:
            factor: f > 0, a number or `(*batch, d)`.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM(torch.tensor([[3.0]]), None, kdm.RBF(1.0)).scaled(2.0)
        >>> rho.mean, rho.variance
        (tensor([6.]), tensor([2.]))
        """
        kernel = check_continuous("scaled", self.kernel)
        f = per_dimension("factor", factor, self._event_shape, self.components, self._validate_args)
        common_batch({"factor": f.shape[:-1], "batch_shape": self._batch_shape})
        if self._validate_args and not bool((f > 0).all()):
            raise ValueError(bad_argument("factor", "numbers > 0", f.min().item()))
        # Fixed, for gradients: a learned bandwidth has a parameter of its own.
        bandwidth = FixedBandwidth(kernel.bandwidth.name, kernel.bandwidth.value, validate=False)
        fixed, moved = kernel.with_bandwidth(bandwidth), self.components * f.unsqueeze(-2)
        if f.ndim == 1:
            return KDM._made(moved, self._weights, fixed.scaled(f), self._validate_args)
        each = f.unsqueeze(-2).expand(*f.shape[:-1], *self.components.shape[-2:])
        return KDM._made(moved, self._weights, fixed.scaled(each), self._validate_args)

    def convolved(self, variance: Any) -> KDM:
        """The distribution of x + e with independent Gaussian noise e (RBF kernels without a metric).

        Σ_j p_j N(x; c_j, s_j²) becomes Σ_j p_j N(x; c_j, s_j² + v), exactly.

        Args:
            variance: v ≥ 0, the noise's variance in every dimension, of shape `(*batch, d)`, or a number.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM.from_samples(torch.tensor([[0.0], [1.0]]), kdm.RBF.from_std(0.5))
        >>> rho.convolved(torch.tensor([[0.0], [10.0]])).variance
        tensor([[ 0.5000],
                [10.5000]])
        """
        checked, like = self._validate_args, self.components
        variance = per_dimension("variance", variance, self._event_shape, like, checked)
        batch = common_batch({"variance": variance.shape[:-1], "batch_shape": self._batch_shape})
        if checked and bool((variance < 0).any()):
            raise ValueError(bad_argument("variance", "values ≥ 0", variance.min().item()))
        each = variance.unsqueeze(-2).expand(*batch, *like.shape[-2:])
        return KDM._made(like, self._weights, self.kernel.convolved(each), checked)

    def coordinates(self, index: int | slice | Sequence[int] | Tensor) -> KDM:
        """The marginal distribution of some coordinates of the event (continuous kernels).

        Args:
            index: a coordinate, a slice, or a sequence or tensor of coordinates; one alone gives the event
                shape `(1,)`.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM.from_samples(torch.tensor([[0.0, 5.0], [1.0, 7.0]]), kdm.RBF.from_std([0.5, 2.0]))
        >>> rho.coordinates(1).icdf(0.5)
        tensor([6.])
        """
        check_continuous("coordinates", self.kernel)
        chosen = check_index(index, self._event_shape[-1])
        components = self.components[..., chosen]
        return KDM._made(components, self._weights, self.kernel.coordinates(chosen), self._validate_args)

    def conditional(self, index: int | slice | Sequence[int] | Tensor, value: Any) -> KDM:
        """The distribution of the other coordinates of the event, given some of them (continuous kernels).

        Components are weighted by their densities at the given coordinates; under a `LowRank` kernel or a
        metric they also move.

        Args:
            index: the given coordinates, as in `coordinates`; at least one must be left.
            value: what they are, `(*lead, k)`; `lead` broadcasts with the batch.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM(torch.zeros(1, 2), None, kdm.LowRank.from_std(0.6, [[0.8], [0.8]]))
        >>> given = rho.conditional(0, torch.tensor([[1.0], [2.0]]))
        >>> given.mean, given.stddev
        (tensor([[0.6400],
                [1.2800]]), tensor([[0.7684],
                [0.7684]]))
        """
        kernel = check_continuous("conditional", self.kernel)
        chosen = check_index(index, self._event_shape[-1])
        if len(chosen) == self._event_shape[-1]:
            raise ValueError(bad_argument("index", "fewer coordinates than all", index))
        evidence = self.coordinates(chosen)
        x = evidence._check_value(value)
        common_batch({"value": x.shape[:-1], "batch_shape": self._batch_shape})
        entries = [Entry(evidence.kernel, x, evidence.components)]
        log_weights = log_posterior_weights(entries, self.log_weights)
        kernel, components = kernel.conditional(chosen, x.to(self.components), self.components)
        return KDM._made(components, Given(log_weights), kernel, self._validate_args)

    def with_kernel(self, kernel: Kernel) -> KDM:
        """The same components and weights under another kernel on the same events.

        >>> import kdmkit as kdm
        >>> kdm.KDM(torch.zeros(1, 1), None, kdm.RBF(1.0)).with_kernel(kdm.RBF.from_std(2.0)).kernel.std
        tensor(2., dtype=torch.float64)
        """
        kernel = check_kernel("kernel", kernel)
        if kernel.component_dim != self.kernel.component_dim:
            raise ValueError(bad_argument("kernel", f"one on events like those of {self.kernel}", kernel))
        if self._validate_args:
            kernel.check_component_values("components", self.components, self._event_shape)
            kernel.check_components("kernel", self.components)
        return KDM._made(self.components, self._weights, kernel, self._validate_args)

    def _with_logits(self, logits: Float[Tensor, "*batch n"]) -> KDM:
        """A distribution over labels with these log-probabilities, and with the evidence of this one."""
        basis = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
        return KDM._made(basis, Given(logits, self._weights), self.kernel, self._validate_args)

    def _variables(self) -> dict[str, tuple[Kernel, Tensor]]:
        return {"": (self.kernel, self.components)}

    def _with_weights(self, weights: Weights) -> KDM:
        return KDM._made(self.components, weights, self.kernel, self._validate_args)

    def _at(self, index: BatchIndex) -> KDM:
        components = index.choose(self.components, 1 + self.kernel.component_dim)
        kernel = self.kernel.arranged(lambda part: index.choose(part, 2))
        return KDM._made(components, self._weights.at(index), kernel, self._validate_args)

    def _mapped(self, function: PartMap) -> KDM:
        components, kernel = function(self.components), function(self.kernel)
        return KDM._made(components, self._weights.mapped(function), kernel, self._validate_args)

    def __repr__(self) -> str:
        return (
            f"KDM(batch_shape={tuple(self._batch_shape)}, event_shape={tuple(self._event_shape)}, "
            f"n_components={self.n_components}, kernel={self.kernel})"
        )
