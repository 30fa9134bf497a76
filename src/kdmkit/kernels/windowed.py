"""Densities inside a region that has several intervals: on the line, and on a circle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import log_normalize, safe_logsumexp
from kdmkit.kernels.around import Around
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.transforms import as_float64
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.kernels.truncated import Truncated
from kdmkit.ops import Term
from kdmkit.ops.terms import InDtype, common_dtype, restricted


def windowed(kernel: LocationScale, ends: Sequence[tuple[float, float]]) -> Kernel:
    """The kernel inside some disjoint intervals.

    >>> import kdmkit as kdm
    >>> kernel = windowed(kdm.RBF(1.0), [(-math.inf, -1.0), (1.0, math.inf)])
    >>> kernel.cdf(torch.tensor([0.0, 0.5]), torch.zeros(1, 1))
    tensor([[0.5000],
            [0.5000]])
    """
    if not ends:
        raise ValueError(bad_argument("region", f"one that has a mass under {kernel!r}", "none"))
    if len(ends) == 1:
        return kernel if ends[0] == (-math.inf, math.inf) else Truncated(kernel, *ends[0])
    return Windowed(kernel, ends)


class Windowed(Around):
    """The density M·k²(x, c)/P_c(x in a window) inside several windows, and 0 outside of them.

    Args:
        kernel: RBF, Epanechnikov or Tricube, for events of one dimension.
        windows: two or more disjoint intervals (low, high), ascending.

    >>> import kdmkit as kdm
    >>> kernel = Windowed(kdm.RBF(1.0), [(-2.0, -1.0), (1.0, 2.0)])
    >>> kernel.log_mass(kdm.Interval(0.0, None), torch.zeros(1, 1)).exp()
    tensor([0.5000])
    """

    is_continuous: ClassVar[bool] = True
    unit_norm: ClassVar[bool] = True

    def __init__(self, kernel: Kernel, windows: Sequence[tuple[float, float]]) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleList([Truncated(kernel, *window) for window in windows])
        self.windows = [(float(low), float(high)) for low, high in windows]

    @property
    def kernel(self) -> LocationScale:  # type: ignore[override]
        """The kernel whose density is restricted."""
        return self.parts[0].kernel

    @property
    def low(self) -> Float[Tensor, ""]:
        """The lower end of the first window."""
        return self.parts[0].low

    @property
    def high(self) -> Float[Tensor, ""]:
        """The upper end of the last window."""
        return self.parts[-1].high

    def around(self, kernel: Kernel) -> Windowed:
        return Windowed(kernel, self.windows)

    def restricted(self, region: Any, components: Tensor) -> tuple[Kernel, Tensor]:
        ends = [(max(a, low), min(b, high)) for a, b in self.wide_ends(region) for low, high in self.windows]
        return windowed(self.kernel, sorted((a, b) for a, b in ends if a < b)), components

    @property
    def support(self) -> Constraint:
        return constraints.independent(constraints.interval(self.low, self.high), 1)

    # ---- densities

    def _log_masses(self, c: Tensor, scale: Tensor) -> Float[Tensor, "*shape windows"]:
        """The log mass that the inner density has in every window."""
        ends = c.new_tensor(self.windows)
        masses = [self.kernel.interval_log_mass(low, high, c, scale) for low, high in ends]
        return torch.stack(torch.broadcast_tensors(*masses), -1)

    def _inside(self, x: Tensor) -> Bool[Tensor, "*shape"]:
        ends = torch.tensor(self.windows, dtype=torch.float64, device=x.device)
        wide = as_float64(x).unsqueeze(-1)
        return ((wide >= ends[:, 0]) & (wide <= ends[:, 1])).any(-1)

    def _log_density(self, x: Tensor, c: Tensor, scale: Tensor) -> Tensor:
        """In float64: far from the centre both parts are large."""
        x, c, scale = as_float64(x), as_float64(c), as_float64(scale)
        total = safe_logsumexp(self._log_masses(c, scale))
        density = self.kernel.unit_log_overlap((x - c) / scale) + self.kernel.unit_log_norm - scale.log()
        return density - torch.where(torch.isneginf(total), 0.0, total)

    def term(self, x: Tensor, components: Tensor) -> Term:
        term = InDtype(self.kernel.score_term(self._block, x, components), common_dtype((x, components)))
        return restricted(term, self._inside(x))

    def _block(self, x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        c, scale = self.kernel.centres_and_scales(components, parameters, 1)
        return self._log_density(x, c.mT, scale.mT)

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        density = self._log_density(x, components, self.kernel.score_scale(components))
        inside = self._inside(x)
        return torch.where(inside, density, -math.inf).squeeze(-1).to(common_dtype((x, components)))

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    # ---- masses

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        return self.kernel.score_term(self._mass_block, torch.cat([low, high], -1), components)

    def _mass_block(self, ends: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        c, scale = (as_float64(part).mT for part in self.kernel.centres_and_scales(components, parameters, 1))
        low, high = as_float64(ends).chunk(2, -1)
        return self._log_share(low, high, c, scale)

    def _log_share(self, low: Tensor, high: Tensor, c: Tensor, scale: Tensor) -> Tensor:
        masses = [
            self.kernel.interval_log_mass(low.clamp(first, last), high.clamp(first, last), c, scale)
            for first, last in self.windows
        ]
        total = safe_logsumexp(self._log_masses(c, scale))
        share = safe_logsumexp(torch.stack(torch.broadcast_tensors(*masses), -1))
        return share - torch.where(torch.isneginf(total), 0.0, total)

    def pair_log_mass(self, low: Tensor, high: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """The log mass of [low, high] under the component beside it; leading dimensions broadcast."""
        parts = (low, high, components, self.kernel.score_scale(components))
        return self._log_share(*[as_float64(part) for part in parts]).squeeze(-1)

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        return self._mass_below(x, components)

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        low, high = zip(*(part.quantile_bounds(q, components) for part in self.parts), strict=True)
        return torch.stack(low).amin(0), torch.stack(high).amax(0)

    # ---- moments, modes and draws

    def _log_shares(self, components: Tensor, scale: Tensor) -> Float[Tensor, "*batch windows"]:
        """The log-probability of every window, under each component."""
        wide, scale = as_float64(components), as_float64(scale)
        masses = self._log_masses(wide, scale).squeeze(-2)
        dead = torch.isneginf(masses).all(-1, keepdim=True)
        return log_normalize(torch.where(dead, 0.0, masses))

    def mixed_moments(
        self, components: Tensor, moments: Callable[[Any], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance, from those in every window."""
        shares = self._log_shares(components, self.kernel.score_scale(components)).exp().unsqueeze(-2)
        means, variances = (
            torch.stack(part, -1).to(shares) for part in zip(*map(moments, self.parts), strict=True)
        )
        mean = (shares * means).sum(-1)
        variance = (shares * (variances + (means - mean.unsqueeze(-1)).square())).sum(-1)
        return mean.to(components), variance.to(components)

    def moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        return self.mixed_moments(components, lambda part: part.moments(components))

    def mode(self, components: Tensor) -> Tensor:
        """The nearest point of a window: densities fall with the distance."""
        modes = [part.mode(components) for part in self.parts]
        return highest(modes, [-(mode - components).abs().squeeze(-1) for mode in modes])

    def typical_event(self, components: Tensor) -> Tensor:
        return self.mode(components)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        return self.mixed_draws(components, index, self.parts, generator)

    def mixed_draws(
        self,
        components: Tensor,
        index: Int[Tensor, "*lead"],
        parts: Iterable[Any],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draws of kernels that have the shares of the windows."""
        shares = self._log_shares(components.detach(), self.kernel.scale_of(index, components.detach()))
        shares = shares.exp().reshape(-1, len(self.windows))
        window = torch.multinomial(shares, 1, generator=generator).reshape(components.shape[:-1])
        drawn = components.detach().clone()
        for i, part in enumerate(parts):
            here = window == i
            if bool(here.any()):
                drawn[here] = part.sample(components[here], index[here], generator)
        return drawn

    # ---- description

    def config(self) -> dict[str, Any]:
        windows = [[None if math.isinf(end) else end for end in pair] for pair in self.windows]
        return {"kernel": "Windowed", "inner": self.kernel.config(), "windows": windows}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Windowed:
        windows = [
            (-math.inf if low is None else low, math.inf if high is None else high)
            for low, high in config["windows"]
        ]
        return cls(kernel_from_config(config["inner"]), windows)

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, {self.windows}"


def highest(points: Sequence[Tensor], heights: Sequence[Tensor]) -> Tensor:
    """Of several points `(*batch, 1)` the one with the largest height `(*batch,)`."""
    best = torch.stack(list(heights)).argmax(0, keepdim=True).unsqueeze(-1)
    return torch.stack(list(points)).gather(0, best).squeeze(0)
