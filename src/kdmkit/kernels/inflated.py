"""Point masses beside a continuous kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, bad_argument, check_event, check_finite, check_floating
from kdmkit._core.logspace import log_add, log_normalize
from kdmkit._core.tensors import at_least_float32, broadcast
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.categorical import read_codes
from kdmkit.kernels.cosine import LABEL_SMOOTHING
from kdmkit.kernels.measured import Around, Measured
from kdmkit.kernels.region_forms import Bounds, unpack_intervals
from kdmkit.kernels.regions import OneOf, Region
from kdmkit.kernels.registry import kernel_from_config
from kdmkit.ops import LogSum, Lookup, Restricted, Score, Sum, Term
from kdmkit.ops.terms import Masked, restricted

# The logarithm of a share that counts as none.
_NOTHING = -1e4


class Inflated(Around):
    """p(x | c) = p₀·f(x) + Σ_a p_a·[x = a]: masses of zeros, caps or frequent values beside a density f.

    f is the density of the inner kernel. A component is [logits of (continuous, atom 1 … A), inner
    component]; p is the softmax of the logits. `log_prob` is a log mass at atoms and a log-density elsewhere.
    NaN may be an atom: missing as a state.

    With a `Rounded` inner kernel every number has a mass. The mass of an atom is then p_a plus p₀ times the
    mass of its cell, so that all masses sum to 1.

    Args:
        kernel: a kernel of one dimension: RBF, Epanechnikov, Tricube, `Transformed`, `Truncated`, `Rounded`.
        atoms: one or more numbers, of which NaN may be one. See `find_atoms`.

    >>> import kdmkit as kdm
    >>> kernel = Inflated(kdm.RBF.from_std(1.0), [0.0])
    >>> c = torch.tensor([[0.0, 0.0, 5.0]])                   # half of the mass at 0, the rest about 5
    >>> kernel.log_mass(kdm.Interval(None, 0.0), c).exp(), kernel.mean(c)
    (tensor([0.5000]), tensor([[2.5000]]))
    """

    has_atoms: bool = True
    unit_norm: ClassVar[bool] = True
    kernel: Measured
    atoms: Tensor

    def __init__(self, kernel: Kernel, atoms: Any) -> None:
        super().__init__()
        if not isinstance(kernel, Measured) or isinstance(kernel, Inflated):
            wanted = "a kernel of numbers (RBF, Epanechnikov, Tricube, Periodic, Transformed, …)"
            raise TypeError(bad_argument("kernel", wanted, repr(kernel)))
        self.kernel = kernel
        # Not in `state_dict`, which holds finite numbers: the configuration has them.
        self.register_buffer("atoms", _atoms(atoms), persistent=False)
        self.has_missing = bool(self.atoms.isnan().any())
        self.only_atoms, self.has_moments = kernel.only_atoms, kernel.is_continuous  # type: ignore[misc]

    @property
    def n_atoms(self) -> int:
        """The number of atoms."""
        return self.atoms.shape[0]

    @property
    def _numbers(self) -> Float[Tensor, " a"]:
        """The atoms without NaN."""
        return self.atoms[~self.atoms.isnan()]

    def around(self, kernel: Kernel) -> Inflated:
        return Inflated(kernel, self.atoms)

    def restricted(self, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
        """Atoms inside keep their probabilities, the continuous part its mass; both relative to their sum."""
        log_p, inner = self.split(components)
        inside = self._atoms_in(region).to(log_p.device)
        mass = log_p[..., :1] + self.kernel.log_mass(region, inner).unsqueeze(-1)
        rest, inner = self.kernel.restricted(region, inner)
        if not bool(inside.any()):
            return rest, inner
        shares = torch.cat([mass.to(log_p), log_p[..., 1:][..., inside]], -1)
        logits = log_normalize(shares).clamp_min(_NOTHING).to(inner)
        return Inflated(rest, self.atoms[inside.cpu()].tolist()), torch.cat([logits, inner], -1)

    def _atoms_in(self, region: Region) -> Bool[Tensor, " a"]:
        """Which atoms a region has."""
        packed = self.pack("region", region, torch.Size([1]), self.atoms.device)
        missing, every = unpack_intervals(packed, 1)
        inside = [self._holds(bounds) for bounds in every]
        return torch.stack(inside).any(0) | (missing & self.atoms.isnan())

    def _holds(self, bounds: Bounds) -> Bool[Tensor, "*lead a"]:
        return self.kernel.holds(bounds, self.atoms.to(bounds.low.device)) & ~self.atoms.isnan()

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        # Components at atoms repeat the continuous parts of others.
        inner = self.split(components)[1].unique(dim=0)
        super().initialize_bandwidth(inner, sigma, distance=distance)

    # ---- components

    def event_shape(self, component_shape: torch.Size) -> torch.Size:
        return self.kernel.event_shape(torch.Size([component_shape[-1] - 1 - self.n_atoms]))

    def component_shape(self, event_shape: torch.Size) -> torch.Size:
        return torch.Size([1 + self.n_atoms + self.kernel.component_shape(event_shape)[-1]])

    def split(self, components: Tensor) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch d"]]:
        """Log-probabilities of (continuous, atoms), and the inner components."""
        logits, inner = components.tensor_split([1 + self.n_atoms], -1)
        return torch.log_softmax(at_least_float32(logits), -1), inner

    def components_from(self, events: Float[Tensor, "*batch m 1"]) -> Float[Tensor, "*batch m c"]:
        """Components with .99 of their mass at an atom, or in the continuous part about any other number.

        Those at atoms have the continuous parts of the other events, in turn.
        """
        match = self._match(events)
        state = torch.cat([~match.any(-1, keepdim=True), match], -1).to(events.dtype)
        states = 1 + self.n_atoms
        probs = (1 - LABEL_SMOOTHING) * state + LABEL_SMOOTHING / states
        return torch.cat([probs.log(), self._inner_components(events, match.any(-1))], -1)

    def _inner_components(self, events: Tensor, is_atom: Bool[Tensor, "*batch m"]) -> Tensor:
        numbers = events[~is_atom]
        if not len(numbers):
            return torch.zeros_like(events)
        turn = (is_atom.flatten().cumsum(0) - 1).clamp_min(0) % len(numbers)
        filled = torch.where(is_atom.unsqueeze(-1), numbers[turn].reshape(events.shape), events)
        return self.kernel.components_from(filled)

    def smoothed_components(
        self, chosen: Tensor, values: Tensor, event_shape: torch.Size, share: float
    ) -> Float[Tensor, "m c"]:
        log_p, inner = self.split(self.components_from(chosen))
        match = self._match(values)
        counts = torch.cat([~match.any(-1, keepdim=True), match], -1).sum(0).to(log_p) + 0.5
        return torch.cat([((1 - share) * log_p.exp() + share * counts / counts.sum()).log(), inner], -1)

    def evidence_points(
        self, components: Tensor, log_weights: Float[Tensor, "*batch m"]
    ) -> tuple[Tensor, Float[Tensor, "*batch points"]]:
        """The atoms, and one point of the continuous part for every component."""
        log_p, inner = self.split(components)
        points, weights = self.kernel.evidence_points(inner, log_weights.to(log_p) + log_p[..., 0])
        shares = log_weights.to(log_p).unsqueeze(-1) + log_p[..., 1:]
        atoms = self.atoms.to(points).unsqueeze(-1).expand(*points.shape[:-2], self.n_atoms, 1)
        return torch.cat([atoms, points], -2), torch.cat([shares.logsumexp(-2), weights], -1)

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        check_event(argument, components, self.component_shape(torch.Size([1])))
        super().check_component_values(argument, components, event_shape)
        inner = components[..., 1 + self.n_atoms :]
        self.kernel.check_component_values(argument, inner, torch.Size([1]))

    # ---- events

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        check_floating(argument, value)
        check_finite(argument, value[~value.isnan()] if self.has_missing else value)

    def _match(self, x: Float[Tensor, "*lead 1"]) -> Bool[Tensor, "*lead atoms"]:
        """Whether an event is an atom, in the precision of events; on a grid, whether they share a cell."""
        x, atoms = [self.kernel.nearest_atom(numbers) for numbers in (x, self.atoms.to(x))]
        return (x == atoms) | (x.isnan() & atoms.isnan())

    def _stand_in(self, x: Tensor, is_atom: Tensor, inner: Tensor) -> Tensor:
        """x, and in place of atoms a number at which the inner kernel has a density."""
        some = self.kernel.typical_event(inner.detach().reshape(-1, inner.shape[-1])[:1]).squeeze(0)
        return torch.where(is_atom.unsqueeze(-1), some.to(x), x)

    # ---- probabilities

    def term(self, x: Tensor, components: Tensor) -> Term:
        check_event("x", x, torch.Size([1]))
        log_p, inner = self.split(components)
        match = self._match(x)
        is_atom, code = match.any(-1), match.int().argmax(-1, keepdim=True)
        atoms = Lookup(code, log_p[..., 1:])
        if self.kernel.only_atoms:
            missing = x.isnan()
            rest = self._weighted(self.kernel.term(torch.where(missing, 0.0, x), inner), log_p, x.shape[-2])
            return LogSum((restricted(rest, ~missing), Restricted(atoms, is_atom.unsqueeze(-1))))
        term = self.kernel.term(self._stand_in(x, is_atom, inner), inner)
        offset = log_p[..., 0] + self.kernel.log_norm(inner).to(log_p)
        none = torch.zeros_like(log_p[..., :1])
        rest = Masked(term, offset.unsqueeze(-1), ~is_atom.unsqueeze(-1))
        return Sum((rest, Masked(atoms, none, is_atom.unsqueeze(-1))))

    def _weighted(self, term: Term, log_p: Tensor, n: int) -> Term:
        """A term of n queries plus log p₀."""
        codes = torch.zeros(n, 1, dtype=torch.long, device=log_p.device)
        return Sum((term, Lookup(codes, log_p[..., :1])))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        log_p, inner = self.split(components)
        match = self._match(x)
        is_atom, atoms = match.any(-1), read_codes(log_p[..., 1:], match.int().argmax(-1))
        replaced = x.isnan().squeeze(-1) if self.kernel.only_atoms else is_atom
        rest = self.kernel.log_overlap(self._stand_in(x, replaced, inner), inner)
        rest = rest + log_p[..., 0] + self.kernel.log_norm(inner).to(log_p)
        if self.kernel.only_atoms:
            rest = torch.where(x.isnan().squeeze(-1), -math.inf, rest)
            return log_add([rest, torch.where(is_atom, atoms, -math.inf)])
        return torch.where(is_atom, atoms, rest)

    def log_norm(self, components: Tensor) -> Float[Tensor, ""]:
        return torch.zeros(())

    def log_jacobian(self, x: Tensor) -> Float[Tensor, "*lead"] | None:
        """That of the inner kernel, and 0 at atoms."""
        jacobian = self.kernel.log_jacobian(torch.where(x.isnan(), torch.zeros_like(x), x))
        if jacobian is None:
            return None
        return torch.where(self._match(x).any(-1), torch.zeros_like(jacobian), jacobian)

    # ---- regions

    def bounded_term(self, bounds: Bounds, components: Tensor) -> Term:
        log_p, inner = self.split(components)
        rest = self._weighted(self.kernel.bounded_term(bounds, inner), log_p, bounds.low.shape[-2])
        return LogSum((rest, Score(_atom_masses, self._holds(bounds), log_p[..., 1:])))

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        is_open = torch.zeros_like(low, dtype=torch.bool)
        return self.bounded_term(Bounds(low, high, is_open, is_open), components)

    def missing_term(self, missing: Bool[Tensor, "*lead n 1"], components: Tensor) -> Term | None:
        if not self.has_missing:
            return None
        return Score(_atom_masses, missing & self.atoms.isnan(), self.split(components)[0][..., 1:])

    def null_points(self, region: Region) -> list[float]:
        points = self.kernel.null_points(region)
        return [point for point in points if not bool(self._atoms_in(OneOf([point])).any())]

    def at_points(self, points: Sequence[float], components: Tensor) -> tuple[Kernel, Tensor]:
        return self.kernel.at_points(points, self.split(components)[1])

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        """P(number ≤ x): at most 1 − p(NaN) if NaN is an atom."""
        log_p, inner = self.split(components)
        probs = log_p.exp()
        return probs[..., 0] * self.kernel.cdf(x, inner) + self._atoms_below(x, probs[..., 1:])

    def _atoms_below(self, x: Tensor, probs: Float[Tensor, "*batch m a"]) -> Float[Tensor, "*lead m"]:
        """Σ p_a over the atoms a ≤ x, from one table of sums for all x."""
        numbers = self._numbers.to(x)
        sums = torch.cat([torch.zeros_like(probs[..., :1]), probs[..., : len(numbers)].cumsum(-1)], -1)
        count = torch.searchsorted(numbers, x.detach().contiguous(), right=True)
        if sums.ndim == 2:
            return sums.mT[count]
        sums = sums.expand(*broadcast(x.shape, sums.shape[:-2]), *sums.shape[-2:])
        place = count.expand(sums.shape[:-2])[..., None, None].expand(*sums.shape[:-1], 1)
        return sums.gather(-1, place).squeeze(-1)

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds of the continuous part, extended to all atoms but NaN."""
        low, high = self.kernel.quantile_bounds(q, self.split(components)[1])
        numbers = self._numbers.to(low)
        if len(numbers):
            # A little further out: a bracket holds the quantile strictly inside.
            margin = 1e-3 * (1 + numbers.abs().amax())
            low, high = low.clamp_max(numbers.min() - margin), high.clamp_min(numbers.max() + margin)
        return low, high

    def steps(self) -> Float[Tensor, " s"]:
        numbers = self.kernel.nearest_atom(self._numbers.double())
        return torch.cat([numbers, self.kernel.beside(numbers, up=False)])

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        numbers = self._numbers.to(x)
        near = self.kernel.nearest_atom(x)
        if not len(numbers):
            return near
        atom = numbers[(x.unsqueeze(-1) - numbers).abs().argmin(-1)]
        if not self.kernel.has_atoms:
            return atom
        return torch.where((x - atom).abs() <= (x - near).abs(), atom, near)

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        return self.kernel.beside(x, up)

    # ---- moments, modes and draws

    def mean(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        """The mean of the numbers; if NaN is an atom, the mean given that the event is a number."""
        return self.mean_of(self.mean_features(components))

    def mean_features(self, components: Tensor) -> Float[Tensor, "*batch 2"]:
        """The probability of a number times the mean, and that probability."""
        log_p, inner = self.split(components)
        atoms, probs = self.atoms.nan_to_num(0.0).to(log_p), log_p.exp()
        total = probs[..., :1] * self.kernel.mean(inner) + (probs[..., 1:] * atoms).sum(-1, keepdim=True)
        return torch.cat([total, self._number_probs(probs).unsqueeze(-1)], -1)

    def _number_probs(self, probs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        return (probs[..., 1:] * ~self.atoms.isnan()).sum(-1) + probs[..., 0]

    def number_probs(self, components: Tensor) -> Float[Tensor, "*batch m"] | None:
        return self._number_probs(self.split(components)[0].exp()) if self.has_missing else None

    def mean_of(self, features: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch d"]:
        return features[..., :1] / features[..., 1:]

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        if self.has_missing:
            self._cannot("one without NaN among the atoms")
        log_p, inner = self.split(components)
        probs, mean = log_p.exp(), self.mean(components)
        inside = self.kernel.variance(inner) + (self.kernel.mean(inner) - mean).square()
        atoms = (self.atoms.to(probs) - mean).square()
        return probs[..., :1] * inside + (probs[..., 1:] * atoms).sum(-1, keepdim=True)

    def mode(self, components: Tensor) -> Tensor:
        """The most probable atom, or the inner mode if the continuous part is more probable than it.

        A density and a mass cannot be compared: the whole continuous part competes with the atoms. With a
        `Rounded` kernel the masses of single numbers are compared.
        """
        c = components.detach()
        log_p, inner = self.split(c)
        inner_mode = self.kernel.mode(inner)
        if self.kernel.only_atoms:
            every = self.atoms.to(c).reshape(-1, *([1] * c.ndim)).expand(-1, *inner_mode.shape)
            points = torch.cat([inner_mode.unsqueeze(0), every])
            best = self.log_overlap(points, c).argmax(0)
            return points.gather(0, best.unsqueeze(-1).unsqueeze(0)).squeeze(0)
        best, code = log_p[..., 1:].max(-1, keepdim=True)
        return torch.where(best > log_p[..., :1], self.atoms.to(c)[code], inner_mode)

    def typical_event(self, components: Tensor) -> Tensor:
        return self.kernel.typical_event(self.split(components)[1])

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        log_p, inner = self.split(components.detach())
        probs = log_p.exp().reshape(-1, 1 + self.n_atoms)
        state = torch.multinomial(probs, 1, generator=generator) if len(probs) else probs[:, :1].long()
        state = state.reshape(*components.shape[:-1], 1)
        values = torch.cat([torch.zeros_like(self.atoms[:1]), self.atoms]).to(components)[state]
        return torch.where(state > 0, values, self.kernel.sample(inner, index, generator))

    # ---- description

    def same_family(self, other: Kernel) -> bool:
        if not isinstance(other, Inflated) or not super().same_family(other):
            return False
        return torch.equal(self.atoms.nan_to_num(math.inf), other.atoms.to(self.atoms).nan_to_num(math.inf))

    def config(self) -> dict[str, Any]:
        atoms = [None if math.isnan(atom) else atom for atom in self.atoms.tolist()]
        return {"kernel": "Inflated", "inner": self.kernel.config(), "atoms": atoms}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Inflated:
        atoms = [math.nan if atom is None else atom for atom in config["atoms"]]
        return cls(kernel_from_config(config["inner"]), atoms)

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, atoms={self.atoms.tolist()}"


def _atoms(atoms: Any) -> Float[Tensor, " a"]:
    """Distinct numbers in ascending order, NaN last."""
    tensor = as_tensor("atoms", atoms, like=torch.empty((), dtype=torch.float64)).detach().double()
    if tensor.ndim != 1 or not len(tensor) or bool(tensor.isinf().any()):
        raise ValueError(bad_argument("atoms", "one or more numbers, of which NaN may be one", repr(atoms)))
    missing = tensor.isnan()
    return torch.cat([tensor[~missing].unique(), tensor[missing][:1]])


def _atom_masses(member: Tensor, log_p: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """log Σ_a p_a over the atoms of each region, `(n, a)` booleans, under each component, `(m, a)`."""
    pairs = zip(member.unbind(-1), log_p.unbind(-1), strict=True)
    return log_add([torch.where(here.unsqueeze(-1), share.unsqueeze(-2), -math.inf) for here, share in pairs])
