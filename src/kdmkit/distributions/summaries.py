"""Numbers that sum up a KDM: probabilities, moments, quantiles, entropy and mode."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_weights
from kdmkit.distributions.arguments import check_levels, common_batch
from kdmkit.distributions.base import Mixture
from kdmkit.distributions.component_scores import Features, Values
from kdmkit.distributions.mixing import Entry, log_posterior_weights
from kdmkit.distributions.univariate import Univariate
from kdmkit.kernels import Kernel, check_continuous

# Components that are compared as starting points of the search for a mode.
_STARTS = 64
# Steps at most, and the step in standard deviations of a component at which the search ends.
_STEPS, _ACCURACY = 1000, 1e-5


class Summaries(Mixture):
    """What a KDM says of itself in a few numbers.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.KDM.from_probs(torch.tensor([0.2, 0.8])), Summaries)
    True
    """

    components: Tensor
    kernel: Kernel
    _batch_shape: torch.Size
    _event_shape: torch.Size
    _validate_args: bool

    @abstractmethod
    def log_prob(self, value: Any) -> Float[Tensor, "*lead"]: ...

    @abstractmethod
    def _check_value(self, value: Any) -> Tensor: ...

    @property
    def probs(self) -> Float[Tensor, "*batch n"]:
        """π_i = Σ_j p_j ĉ_ji²: the probability of every label (discrete kernels); they sum to 1."""
        probs = self._average(Features(self.kernel, self.components, "probs"))
        # Rounded weights add up to 1 + ε. Gradients are those of the average, which is linear in the weights.
        total = probs.detach().double().sum(-1, keepdim=True)
        return (probs / total.clamp_min(torch.finfo(probs.dtype).tiny)).to(probs.dtype)

    @property
    def logits(self) -> Float[Tensor, "*batch n"]:
        """log π, `log_prob` of every label (discrete kernels): exact also if `probs` rounds to 0.

        >>> import kdmkit as kdm
        >>> kdm.KDM.from_probs(torch.tensor([0.25, 0.75])).logits
        tensor([-1.3863, -0.2877])
        """
        one = self.components.narrow(-1 - self.kernel.component_dim, 0, 1)
        n = self.kernel.probs(one).shape[-1]
        labels = torch.arange(n, device=self.components.device)
        return self.log_prob(labels.reshape(n, *[1] * len(self._batch_shape))).movedim(0, -1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """−Σ π log π in nats (discrete kernels), exactly; `estimate_entropy` serves all kernels.

        >>> import kdmkit as kdm
        >>> kdm.KDM.from_probs(torch.tensor([0.5, 0.5, 0.0])).entropy()
        tensor(0.6931)
        """
        if not self.kernel.discrete:
            got = f"{self.kernel!r}; estimate_entropy() averages over draws"
            raise TypeError(bad_argument("entropy", "a discrete kernel (Cosine, Categorical, Levels)", got))
        return self.cross_entropy(self.probs)

    def cross_entropy(self, target: Any) -> Float[Tensor, "*lead"]:
        """−Σ_i q_i log π_i in nats, the loss for soft labels (discrete kernels).

        Args:
            target: q, probabilities `(*lead, n)`; `lead` broadcasts with the batch.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM.from_probs(torch.tensor([0.5, 0.25, 0.25]))
        >>> rho.cross_entropy(torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]]))
        tensor([0.9011, 1.3863])
        """
        q = as_tensor("target", target, like=self.components)
        logits = self.logits
        if q.ndim == 0 or q.shape[-1] != logits.shape[-1] or not q.is_floating_point():
            wanted = f"probabilities of shape (..., {logits.shape[-1]})"
            raise ValueError(bad_argument("target", wanted, f"{q.dtype}, shape {tuple(q.shape)}"))
        if self._validate_args:
            check_weights("target", q)
        common_batch({"target": q.shape[:-1], "batch_shape": self._batch_shape})
        # A label of probability 0 that is never right costs nothing, and has no gradient.
        is_used = q > 0
        return -(q * torch.where(is_used, logits, 0.0)).sum(-1)

    @property
    def mode(self) -> Tensor:
        """The most probable event, of shape `(*batch, *event)`, without gradients.

        For discrete kernels it is exact, and a one-hot under Cosine.

        For RBF kernels without a metric it is the maximum of the density that is uphill from the best of the
        64 components with the largest weights: a local maximum, nearly always the global one.

        >>> import kdmkit as kdm
        >>> rho = kdm.KDM(torch.tensor([[0.0], [0.2], [5.0]]), None, kdm.RBF.from_std(0.5))
        >>> rho.mode, rho.mean
        (tensor([0.1000]), tensor([1.7333]))
        """
        with torch.no_grad():
            if not self.kernel.discrete:
                return _nearest_mode(self)
            best = self.logits.argmax(-1)
            if not self._event_shape:
                return best
            return torch.nn.functional.one_hot(best, self._event_shape[-1]).to(self.components.dtype)

    @property
    def mean(self) -> Float[Tensor, "*batch_event"]:
        """Σ_j p_j c_j (continuous kernels): Nadaraya–Watson regression if the KDM was inferred."""
        self._check_moments("mean")
        return self.kernel.mean_of(self._average(Features(self.kernel, self.components, "mean_features")))

    def _check_moments(self, what: str) -> None:
        if not self.kernel.has_moments:
            check_continuous(what, self.kernel)

    @property
    def variance(self) -> Float[Tensor, "*batch_event"]:
        """The variance of every dimension: within components plus between them, taken about a centre."""
        self._check_moments("variance")
        within = self.kernel.variance(self.components).double()
        mean = self.kernel.mean(self.components).double()
        if not self._event_shape:
            within, mean = within.unsqueeze(-1), mean.unsqueeze(-1)
        between = (mean - mean.detach().mean(-2, keepdim=True)).expand_as(within)
        # Rounded weights add up to 1 + ε, and ε times the square of a far mean may exceed the variance.
        moments = self._average(torch.cat([between, between.square() + within, torch.ones_like(within)], -1))
        first, second, total = moments.chunk(3, -1)
        variance = (second / total - (first / total).square()).to(self.components.dtype)
        return variance if self._event_shape else variance.squeeze(-1)

    def _average(self, values: Values) -> Float[Tensor, "*batch v"]:
        return self._weights.average(values).expand(*self._batch_shape, -1)

    def cdf(self, value: Any) -> Float[Tensor, "*lead"]:
        """F(x) of ordered events of one dimension; if NaN is an event, of the numbers, as `mean` is."""
        univariate = self._univariate("cdf")
        x = self._check_value(value)
        x = x if x.is_floating_point() else x.to(self.components.dtype)
        return univariate.cdf(x.squeeze(-1) if self._event_shape else x)

    def icdf(self, value: Any) -> Float[Tensor, "*lead_event"]:
        """The x with F(x) = q of a one-dimensional KDM of ordered events; q in (0, 1) has shape `(*lead,)`.

        If single events have a positive probability, it is the smallest x with F(x) ≥ q.
        """
        univariate = self._univariate("icdf")
        q = as_tensor("value", value, like=self.components).to(self.components)
        common_batch({"value": q.shape, "batch_shape": self._batch_shape})
        if self._validate_args:
            check_levels("value", q)
        x = univariate.icdf(q)
        return x.unsqueeze(-1) if self._event_shape else x

    def _univariate(self, what: str) -> Univariate:
        if not self.kernel.has_cdf:
            check_continuous(what, self.kernel)
        if self._event_shape not in ((), (1,)):
            wanted = "a one-dimensional KDM (event shape (1,))"
            raise ValueError(bad_argument(what, wanted, tuple(self._event_shape)))
        return Univariate(self.kernel, self.components, self.log_weights)


def _nearest_mode(rho: Summaries) -> Float[Tensor, "*batch d"]:
    """Uphill from the best of the heaviest components: x ← Σ_j w_j(x)·c_j/s_j² / Σ_j w_j(x)/s_j²."""
    components, kernel = rho.components, rho.kernel
    variance = kernel.noise_variance.to(components)
    log_weights = rho.log_weights
    d, m = components.shape[-1], components.shape[-2]
    every = components.expand(*rho.batch_shape, m, d)
    heaviest = log_weights.topk(min(_STARTS, m)).indices
    starts = every.gather(-2, heaviest.unsqueeze(-1).expand(*heaviest.shape, d)).movedim(-2, 0)
    best = rho.log_prob(starts).argmax(0)
    x = starts.gather(0, best[None, ..., None].expand(1, *best.shape, d)).squeeze(0)
    precision = (1 / variance).expand(m, d) if variance.ndim < 2 else (1 / variance).expand_as(components)
    for _ in range(_STEPS):
        weights = log_posterior_weights([Entry(kernel, x, components)], log_weights).exp().unsqueeze(-2)
        moved = (weights @ (precision * components) / (weights @ precision)).squeeze(-2)
        step = ((moved - x).square() * precision.amax(-2)).amax()
        x = moved
        if not bool(step > _ACCURACY**2):
            break
    return x
