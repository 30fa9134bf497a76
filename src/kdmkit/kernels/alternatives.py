"""Mixtures of kernels: every component has a probability for each of several densities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.logspace import log_add, log_normalize
from kdmkit._core.tensors import at_least_float32
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.measured import Measured
from kdmkit.kernels.region_forms import Bounds
from kdmkit.kernels.regions import Region
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.ops import LogSum, Lookup, Score, Sum, Term

# The logarithm of a share that counts as none.
_NOTHING = -1e4


class Alternatives(Measured):
    """p(x | c) = Σ_k softmax(ℓ)_k·f_k(x | c_k): one of several densities of events of one dimension.

    A component is [the logits ℓ of the alternatives, c_1, c_2, …]. Densities restricted to several intervals
    are of this kind.

    Args:
        kernels: the alternatives, kernels of numbers.
        sizes: the length of a component of each.

    >>> import kdmkit as kdm
    >>> parts = [kdm.Truncated(kdm.RBF(1.0), -2.0, -1.0), kdm.Truncated(kdm.RBF(1.0), 1.0, 2.0)]
    >>> kernel = Alternatives(parts, [1, 1])
    >>> kernel.log_mass(kdm.Interval(0.0, None), torch.tensor([[0.0, 0.0, 0.0, 0.0]])).exp()
    tensor([0.5000])
    """

    unit_norm: ClassVar[bool] = True
    components_are_events: bool = False

    def __init__(self, kernels: Sequence[Kernel], sizes: Sequence[int]) -> None:
        super().__init__()
        self.kernels, self.sizes = nn.ModuleList(kernels), [int(size) for size in sizes]
        self.has_moments = all(kernel.has_moments for kernel in kernels)  # type: ignore[misc]
        self.is_continuous = all(kernel.is_continuous for kernel in kernels)  # type: ignore[misc]
        self.has_atoms = any(kernel.has_atoms for kernel in kernels)
        self.only_atoms = all(kernel.only_atoms for kernel in kernels)
        self.has_missing = any(kernel.has_missing for kernel in self.parts)

    @property
    def parts(self) -> list[Measured]:
        """The alternatives."""
        return list(self.kernels)  # type: ignore[arg-type]

    @classmethod
    def joined(
        cls, log_shares: Float[Tensor, "*batch m k"], parts: Sequence[tuple[Kernel, Tensor]]
    ) -> tuple[Kernel, Tensor]:
        """A kernel and components that mix kernels with theirs.

        Args:
            log_shares: of every part, under each component, up to a constant; −∞ is legal.
        """
        logits = log_normalize(log_shares).clamp_min(_NOTHING)
        components = [c for _, c in parts]
        kernel = cls([kernel for kernel, _ in parts], [c.shape[-1] for c in components])
        return kernel, torch.cat([logits.to(components[0]), *components], -1)

    def event_shape(self, component_shape: torch.Size) -> torch.Size:
        return torch.Size([1])

    def component_shape(self, event_shape: torch.Size) -> torch.Size:
        return torch.Size([len(self.sizes) + sum(self.sizes)])

    def split(self, components: Tensor) -> tuple[Float[Tensor, "*batch k"], list[Tensor]]:
        """Log-probabilities of the alternatives, and the component of each."""
        logits, *parts = components.split([len(self.sizes), *self.sizes], -1)
        return torch.log_softmax(at_least_float32(logits), -1), parts

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        kernel = next((kernel for kernel in self.parts if kernel.has_missing), self.parts[0])
        kernel.check_events(argument, value, event_shape)

    # ---- densities and masses

    def _mixed(self, components: Tensor, score: Callable[[Measured, Tensor], Term]) -> Term:
        """log Σ_k p_k exp(score_k)."""
        log_p, parts = self.split(components)
        terms: list[Term] = []
        for k, (kernel, c) in enumerate(zip(self.parts, parts, strict=True)):
            term, share = score(kernel, c), log_p[..., k : k + 1]
            codes = torch.zeros(term.shape[1], 1, dtype=torch.long, device=share.device)
            terms.append(Sum((term, Lookup(codes, share))))
        return LogSum(tuple(terms))

    def term(self, x: Tensor, components: Tensor) -> Term:
        def score(kernel: Measured, c: Tensor) -> Term:
            term, norm, jacobian = kernel.term(x, c), kernel.log_norm(c), kernel.log_jacobian(x)
            codes = torch.zeros(term.shape[1], 1, dtype=torch.long, device=x.device)
            norm = norm.to(c).expand(c.shape[:-1]).unsqueeze(-1)
            parts = (term, Lookup(codes, norm))
            if jacobian is None:
                return Sum(parts)
            rows = jacobian.to(term.dtype).unsqueeze(-1)
            return Sum((*parts, Score(_for_all, rows, torch.zeros_like(norm))))

        return self._mixed(components, score)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        log_p, parts = self.split(components)
        scores = []
        for kernel, c, share in zip(self.parts, parts, log_p.unbind(-1), strict=True):
            density = kernel.log_overlap(x, c) + kernel.log_norm(c).to(share) + share
            jacobian = kernel.log_jacobian(x)
            scores.append(density if jacobian is None else density + jacobian.to(density))
        return log_add(scores)

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        return self._mixed(components, lambda kernel, c: kernel.interval_term(low, high, c))

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        return self._mixed(components, lambda kernel, c: kernel.bounded_term(bounds, c))

    def holds(self, bounds: Bounds, numbers: Float[Tensor, " a"]) -> Bool[Tensor, "*lead n a"]:
        return self.parts[0].holds(bounds, numbers)

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Float[Tensor, "*lead p"]:
        return self.parts[0].pack(argument, region, event_shape, device)

    def null_points(self, region: Region) -> list[float]:
        first, *others = [kernel.null_points(region) for kernel in self.parts]
        return [point for point in first if all(point in points for points in others)]

    def restricted(self, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
        log_p, parts = self.split(components)
        inside, shares = [], []
        for kernel, c, share in zip(self.parts, parts, log_p.unbind(-1), strict=True):
            mass = kernel.log_mass(region, c)
            if bool(mass.isfinite().any()):
                inside.append(kernel.restricted(region, c))
                shares.append(share + mass)
        return self.joined(torch.stack(shares, -1), inside) if inside else (self, components)

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        log_p, parts = self.split(components)
        pairs = zip(self.parts, parts, log_p.exp().unbind(-1), strict=True)
        return torch.stack([share * kernel.cdf(x, c) for kernel, c, share in pairs]).sum(0)

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(self.parts, self.split(components)[1], strict=True)
        low, high = zip(*[kernel.quantile_bounds(q, c) for kernel, c in pairs], strict=True)
        return torch.stack(low).amin(0), torch.stack(high).amax(0)

    def steps(self) -> Float[Tensor, " s"]:
        return torch.cat([kernel.steps() for kernel in self.parts]).unique()

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        atoms = torch.stack([kernel.nearest_atom(x) for kernel in self.parts])
        return atoms.gather(0, (atoms - x).abs().argmin(0, keepdim=True)).squeeze(0)

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        return self.parts[0].beside(x, up)

    # ---- moments, modes and draws

    def _moments(self, components: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities that an alternative holds and its event is a number, means and variances."""
        log_p, parts = self.split(components)
        numbers, means, variances = [], [], []
        for kernel, c, share in zip(self.parts, parts, log_p.exp().unbind(-1), strict=True):
            some, mean = kernel.number_probs(c), kernel.mean(c).squeeze(-1)
            numbers.append(share if some is None else share * some)
            means.append(mean if some is None else torch.where(some > 0, mean, 0.0))  # NaN without a number
            variances.append(torch.zeros_like(share) if self.has_missing else kernel.variance(c).squeeze(-1))
        return torch.stack(numbers, -1), torch.stack(means, -1), torch.stack(variances, -1)

    def number_probs(self, components: Tensor) -> Float[Tensor, "*batch m"] | None:
        return self._moments(components)[0].sum(-1) if self.has_missing else None

    def mean_features(self, components: Tensor) -> Float[Tensor, "*batch 2"]:
        """The probability of a number times the mean, and that probability."""
        numbers, means, _ = self._moments(components)
        return torch.stack([(numbers * means).sum(-1), numbers.sum(-1)], -1)

    def mean_of(self, features: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 1"]:
        return features[..., :1] / features[..., 1:]

    def mean(self, components: Tensor) -> Float[Tensor, "*batch 1"]:
        return self.mean_of(self.mean_features(components)).to(components.dtype)

    def variance(self, components: Tensor) -> Float[Tensor, "*batch 1"]:
        if self.has_missing:
            self._cannot("one without Missing")
        shares, means, variances = self._moments(components)
        centre = (shares * means).sum(-1, keepdim=True)
        variance = (shares * (variances + (means - centre).square())).sum(-1, keepdim=True)
        return variance.to(components.dtype)

    def mode(self, components: Tensor) -> Tensor:
        """The mode of an alternative at which the density is largest; masses and densities count alike."""
        pairs = zip(self.parts, self.split(components)[1], strict=True)
        modes = torch.stack([kernel.mode(c) for kernel, c in pairs])
        heights = torch.stack([self.log_overlap(mode, components) for mode in modes])
        return modes.gather(0, heights.argmax(0, keepdim=True).unsqueeze(-1)).squeeze(0)

    def typical_event(self, components: Tensor) -> Tensor:
        log_p, parts = self.split(components)
        pairs = zip(self.parts, parts, strict=True)
        events = torch.stack([kernel.typical_event(c) for kernel, c in pairs])
        return events.gather(0, log_p.argmax(-1)[None, ..., None]).squeeze(0)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        log_p, parts = self.split(components.detach())
        probs = log_p.exp().reshape(-1, len(self.sizes))
        chosen = torch.multinomial(probs, 1, generator=generator).reshape(log_p.shape[:-1])
        drawn = None
        for k, (kernel, c) in enumerate(zip(self.parts, parts, strict=True)):
            here = chosen == k
            part = kernel.sample(c[here], index[here], generator)
            drawn = part.new_zeros((*log_p.shape[:-1], 1)) if drawn is None else drawn
            drawn[here] = part
        assert drawn is not None
        return drawn

    # ---- description

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    def config(self) -> dict[str, Any]:
        parts = [kernel.config() for kernel in self.parts]
        return {"kernel": "Alternatives", "parts": parts, "sizes": self.sizes}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Alternatives:
        return cls([kernel_from_config(part) for part in config["parts"]], config["sizes"])

    def extra_repr(self) -> str:
        return ", ".join(map(repr, self.parts))


def _for_all(rows: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """A score of the query alone."""
    return rows.expand(*rows.shape[:-1], components.shape[-2])
