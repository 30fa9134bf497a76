"""A density on a circle inside an arc."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.transforms import as_float64, ends_inside
from kdmkit.kernels.measured import Around
from kdmkit.kernels.periodic import Periodic
from kdmkit.kernels.region_forms import Bounds
from kdmkit.kernels.regions import Region
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.ops import LogSum, Lookup, Sum, Term
from kdmkit.ops.terms import restricted, whole

# Halvings of a bracket: float64 has 52 bits.
_STEPS = 54


class Arc(Around):
    """The density of `Periodic` inside an arc, relative to its mass there, and 0 outside of it.

    Args:
        kernel: a Periodic kernel of one dimension.
        low, high: the ends, in [0, period]; of whole numbers, half a step before and after them.

    >>> import kdmkit as kdm
    >>> kernel = Arc(Periodic(2.0, 24), 6.0, 12.0)
    >>> kernel.log_mass(kdm.Interval(6.0, 9.0), torch.tensor([[9.0]])).exp()
    tensor([0.5000], dtype=torch.float64)
    """

    has_moments: ClassVar[bool] = False
    per_component: bool = True
    kernel: Periodic

    def __init__(self, kernel: Kernel, low: float, high: float) -> None:
        super().__init__()
        assert isinstance(kernel, Periodic)
        self.kernel, self.low, self.high = kernel, float(low), float(high)
        self.has_atoms = self.only_atoms = kernel.whole

    @property
    def period(self) -> float:
        """The length of one turn."""
        return self.kernel.period

    def around(self, kernel: Kernel) -> Arc:
        return Arc(kernel, self.low, self.high)

    # ---- densities

    def _log_total(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        """The log mass in the arc; 0 if there is none."""
        bound = torch.tensor([[self.low], [self.high]], dtype=torch.float64, device=components.device)
        closed = torch.zeros_like(bound[:1], dtype=torch.bool)
        term = self.kernel.bounded_term(Bounds(bound[:1], bound[1:], closed, closed), components)
        mass = whole(term.prepared()).squeeze(-2)
        return torch.where(torch.isneginf(mass), 0.0, mass)

    def _inside(self, x: Tensor) -> Bool[Tensor, "*lead"]:
        turned = x.detach().double().remainder(self.period).squeeze(-1)
        return (turned >= self.low) & (turned <= self.high)

    def term(self, x: Tensor, components: Tensor) -> Term:
        return restricted(self.kernel.term(x, components), self._inside(x).unsqueeze(-1))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return torch.where(self._inside(x), self.kernel.log_overlap(x, components), -math.inf)

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch m"]:
        return self.kernel.log_norm(components) - self._log_total(components)

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        self.kernel.check_events(argument, value, event_shape)

    # ---- masses

    def wide_ends(self, region: Region) -> list[tuple[float, float]]:
        return self.kernel.wide_ends(region)

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor] | None:
        low, high = max(low, self.low), min(high, self.high)
        return (Arc(self.kernel, low, high), components) if low < high else None

    def null_points(self, region: Region) -> list[float]:
        return self.kernel.null_points(region)

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        """The masses of what intervals share with the arc, relative to the mass of the arc."""
        shared = [self._shared(bounds, shift) for shift in (0.0, self.period)]
        masses = LogSum(tuple([self.kernel.bounded_term(part, components) for part in shared]))
        rows = torch.zeros(bounds.low.shape[-2], 1, dtype=torch.long, device=components.device)
        return Sum((masses, Lookup(rows, -self._log_total(components).unsqueeze(-1))))

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        is_open = torch.zeros_like(low, dtype=torch.bool)
        return self.bounded_term(Bounds(low, high, is_open, is_open), components)

    def _shared(self, bounds: Bounds, shift: float) -> Bounds:
        """What intervals share with the arc, on their turn or on the next one."""
        low, high, above, below = self.kernel.finite(bounds)
        turn = (low.detach() / self.period).floor() * self.period
        around = (high - low > self.period) | ((high - low == self.period) & ~(above & below))
        low, high = torch.where(around, 0.0, low - turn), torch.where(around, self.period, high - turn)
        low, high = (low - shift).clamp_min(self.low), (high - shift).clamp_max(self.high)
        return Bounds(low, high, above & ~around, below | around)

    def cdf(self, x: Float[Tensor, "*x"], components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x) on [0, period)."""
        high = as_float64(x)[..., None, None].clamp_max(self.period)
        term = self.interval_term(torch.zeros_like(high), high, components)
        return whole(term.prepared()).squeeze(-2).exp().clamp_max(1.0).to(components.dtype)

    def quantile_bounds(self, q: Float[Tensor, "*x"], components: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel.quantile_bounds(q, components)

    # ---- modes and draws

    def mode(self, components: Tensor) -> Tensor:
        """The nearest point of the arc: densities fall with the distance."""
        one = components.new_ones(())
        if self.kernel.whole:
            return self._scores(components, one).argmax(-1, keepdim=True)
        middle = self.kernel.mode(components)
        low, high = [end.expand_as(middle) for end in self._ends(middle)]
        nearer = self.kernel.log_bump(low - components, one) > self.kernel.log_bump(high - components, one)
        return torch.where(self._inside(middle).unsqueeze(-1), middle, torch.where(nearer, low, high))

    def _scores(self, c: Float[Tensor, "*lead 1"], kappa: Tensor) -> Float[Tensor, "*lead n"]:
        """Logarithms of probabilities of whole numbers, up to a constant."""
        numbers = torch.arange(round(self.period), dtype=c.dtype, device=c.device)
        scores = self.kernel.log_bump(numbers - c, kappa)
        return torch.where(self._inside(numbers.unsqueeze(-1)), scores, -math.inf)

    def _ends(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The ends of the arc, rounded into it."""
        low, high = torch.tensor([self.low, self.high], dtype=torch.float64)
        return ends_inside(low, high, like)

    def typical_event(self, components: Tensor) -> Tensor:
        return self.mode(components)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws by inversion of the mass from the lower end on."""
        c, kappa = components.detach().double(), self.kernel.kappa_of(components, index)
        if self.kernel.whole:
            probs = torch.softmax(self._scores(c, kappa), -1).reshape(-1, round(self.period))
            return torch.multinomial(probs, 1, generator=generator).reshape(components.shape)
        start, high = torch.full_like(c, self.low), torch.full_like(c, self.high)
        uniform = torch.rand(c.shape, dtype=torch.float64, device=c.device, generator=generator)
        wanted = uniform.log() + self.kernel.arc_mass(start, high, c, kappa)
        low = start
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = self.kernel.arc_mass(start, middle, c, kappa) < wanted
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (0.5 * (low + high)).to(components.dtype).clamp(*self._ends(components))

    # ---- description

    def config(self) -> dict[str, Any]:
        return {"kernel": "Arc", "inner": self.kernel.config(), "low": self.low, "high": self.high}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Arc:
        return cls(kernel_from_config(config["inner"]), config["low"], config["high"])

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, {self.low} … {self.high}"
