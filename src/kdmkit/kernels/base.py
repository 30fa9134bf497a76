"""The abstract kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions.constraints import Constraint, real_vector

from kdmkit._core.checks import as_tensor, bad_argument, check_event, check_finite, check_floating, is_integer
from kdmkit._core.tensors import pick
from kdmkit.kernels.bandwidth import LearnedBandwidth, copy_with_graph
from kdmkit.kernels.region_forms import stack_packed
from kdmkit.kernels.regions import Region
from kdmkit.ops import Term
from kdmkit.ops.terms import whole


class Kernel(nn.Module, ABC):
    """A kernel k with k(x, x) = 1; its square is the Born rule's probability of x given c.

    Values have shape `(*lead, *event)`; components `(*batch, m, *component)`. Code outside this package asks
    a kernel what it can do and never which class it has: what a kernel cannot do raises a TypeError.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.RBF(1.0), kdm.Kernel)
    True
    >>> kdm.RBF(1.0).log_overlap(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor(-1.)
    """

    #: Whether the kernel's density is a probability over finitely many events.
    discrete: ClassVar[bool]
    #: Whether the kernel's density has a mean, a variance and a distribution function in every dimension.
    is_continuous: ClassVar[bool] = False
    #: Whether the kernel's density is a product over dimensions, perhaps in other coordinates.
    is_product: ClassVar[bool] = False
    #: Whether the kernel's density has a mean.
    has_moments: ClassVar[bool] = False
    #: Whether draws are one-hot vectors, which a softmax relaxes.
    draws_one_hot: ClassVar[bool] = False
    #: Whether events and components may be complex.
    takes_complex: ClassVar[bool] = False
    #: Whether draws can carry gradients to components and bandwidths.
    has_rsample: ClassVar[bool] = False
    #: Whether components are real numbers that a gradient may move.
    components_trainable: ClassVar[bool] = True
    #: Whether a component is an event, a point of the space that values are from.
    components_are_events: bool = True
    #: The number of dimensions of one event.
    event_dim: int = 1
    #: The number of dimensions of one component.
    component_dim: int = 1
    #: Whether `Missing` is an outcome.
    has_missing: bool = False
    #: Whether `log_norm` and `sample` exist.
    has_density: ClassVar[bool] = True
    #: Whether M = 1, so that `log_norm` is 0.
    unit_norm: ClassVar[bool] = False
    #: Whether single events have a positive probability: the distribution function has steps there.
    has_atoms: bool = False
    #: Whether all of the probability belongs to such events.
    only_atoms: bool = False

    @property
    def support(self) -> Constraint:
        """The events that have a density or a probability."""
        return real_vector

    # ---- what a kernel is

    @abstractmethod
    def term(self, x: Tensor, components: Tensor) -> Term:
        """2·log|k(x_i, c_j)| of all pairs, for the reductions to evaluate in blocks.

        Args:
            x: of shape `(*lead, n, *event)`.
            components: of shape `(*lead, m, *component)`.
        """

    @abstractmethod
    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """2·log|k(x, c)| of pairs: leading dimensions broadcast against each other."""

    @abstractmethod
    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch_m"]:
        """log M with ∫ M·k²(x, c) dx = 1 (or a sum over a basis).

        One value for all components; of shape `(m,)` or `(*batch, m)` if `per_component` holds.

        Args:
            components: of shape `(*batch, m, *component)`.
        """

    def term_and_log_norm(self, x: Tensor, components: Tensor) -> tuple[Term, Float[Tensor, "*batch_m"]]:
        """`term` and `log_norm`: a kernel computes once what both need."""
        return self.term(x, components), self.log_norm(components)

    def log_jacobian(self, x: Tensor) -> Float[Tensor, "*lead"] | None:
        """log|T′(x)| of a kernel on T(x), whose density is M·k²(T(x), T(c))·|T′(x)|; otherwise None."""
        return None

    @abstractmethod
    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        """One exact draw from the density of each of the given components.

        Args:
            components: the chosen components, of shape `(*lead, *component)`.
            index: which component each is, of shape `(*lead,)`.
            generator: source of randomness; None is torch's global one.
        """

    def draw(
        self, components: Tensor, index: Int[Tensor, "n *batch"], generator: torch.Generator | None = None
    ) -> Tensor:
        """As `sample`, from all components `(m, *component)` or `(*batch, m, *component)`."""
        return self.sample(pick(components, index, self.component_dim), index, generator)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `from_config` makes an equal kernel.

        It has the shape of a batch of bandwidths; `state_dict` has their numbers.
        """

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Self:
        """The kernel that `config` describes; `encoder` is for a Composed kernel."""

    # ---- components

    def event_shape(self, component_shape: torch.Size) -> torch.Size:
        """The shape of one event, given that of one component."""
        return component_shape

    def component_shape(self, event_shape: torch.Size) -> torch.Size:
        """The shape of one component, given that of one event."""
        return event_shape

    def components_from(self, events: Tensor) -> Tensor:
        """Components `(*batch, m, *component)` that sit at events `(*batch, m, *event)`."""
        return events

    def initial_components(self, values: Tensor, event_shape: torch.Size) -> Tensor:
        """Components to start training from, for events `(m, *event)` or labels `(m,)`."""
        return self.components_from(values)

    def smoothed_components(
        self, chosen: Tensor, values: Tensor, event_shape: torch.Size, share: float
    ) -> Tensor:
        """`initial_components`; distributions among them give a share of their mass to `values`."""
        return self.initial_components(chosen, event_shape)

    def evidence_points(
        self, components: Tensor, log_weights: Float[Tensor, "*batch m"]
    ) -> tuple[Tensor, Float[Tensor, "*batch points"]]:
        """Events `(*lead, points, *event)` and log-weights that stand for a KDM of this kernel."""
        return self.typical_event(components), log_weights

    def check_component_values(self, argument: str, components: Tensor, event_shape: torch.Size) -> None:
        """Raises if components `(*batch, m, *component)` hold numbers that the kernel cannot use."""
        if self.components_are_events:
            self.check_events(argument, components, event_shape)
        else:
            check_floating(argument, components)
            check_finite(argument, components)

    def check_components(self, argument: str, components: Tensor) -> None:
        """Raises if the kernel has parameters for another number of components `(*batch, m, *component)`."""
        if self.has_density:
            norm, m = self.log_norm(components), components.shape[-1 - self.component_dim]
            if norm.ndim and norm.shape[-1] != m:
                wanted = f"a bandwidth for each of {m} components"
                raise ValueError(bad_argument(argument, wanted, f"{norm.shape[-1]}"))

    # ---- events

    def as_events(self, argument: str, value: Any, event_shape: torch.Size, like: Tensor) -> Tensor:
        """`value` as a tensor of events or labels; plain numbers get the dtype and device of `like`."""
        value = as_tensor(argument, value, like=like, is_real=not self.takes_complex)
        check_event(argument, value, event_shape[len(event_shape) - self.event_rank(value) :])
        return value.long() if is_integer(value) and value.dtype != torch.int64 else value

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        """Raises if `value` holds anything but events: NaN, a zero amplitude, an unknown label."""
        check_floating(argument, value)
        check_finite(argument, value)

    def event_rank(self, value: Tensor) -> int:
        """The number of trailing dimensions of `value` that are one event: 0 for labels."""
        return self.event_dim

    def fill_missing(self, value: Tensor, keep: Tensor, components: Tensor) -> Tensor:
        """Valid events in place of missing ones, NaN for example: those for which `keep` is False."""
        if not self.event_rank(value):
            return torch.where(keep, value, torch.zeros_like(value))
        shape = components.shape[components.ndim - self.component_dim :]
        stand_in = components.detach().reshape(-1, *shape)[:1]
        return torch.where(keep, value, self.typical_event(stand_in).squeeze(0).to(value.dtype))

    def mode(self, components: Tensor) -> Tensor:
        """The most probable event of each component, `(*batch, m, *event)`."""
        self._cannot("one with a most probable event")

    def typical_event(self, components: Tensor) -> Tensor:
        """An event inside the support of each component, cheap to compute, of shape `(*batch, m, *event)`."""
        return components if self.components_are_events else self.mode(components)

    def steps(self) -> Float[Tensor, " s"]:
        """Atoms beside a density or a grid, at which F_j jumps, and the events before them, in float64."""
        return torch.zeros(0, dtype=torch.float64)

    def nearest_atom(self, x: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """The event nearest to x that has a positive probability; x itself for a density."""
        return x

    def beside(self, x: Float[Tensor, "*lead"], up: bool) -> Float[Tensor, "*lead"]:
        """The next event after an event x (`up`) or before it: for a density, the next number."""
        return torch.nextafter(x, torch.full_like(x, torch.inf if up else -torch.inf))

    # ---- regions

    def log_mass(self, region: Region | Sequence[Region], components: Tensor) -> Float[Tensor, "*lead m"]:
        """The log mass of every component `(m, *component)` in a region, or in every region of a batch."""
        packed = self.packed("region", region, self.event_shape(components.shape[1:]), components.device)
        lead = packed.shape[:-1]
        term = self.region_term(packed.reshape(-1, packed.shape[-1]), components)
        scores = whole(term.prepared()).to(term.dtype)
        return scores.reshape(*lead, scores.shape[-1])

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Tensor:
        """A region, or a batch of them, as one tensor `(*lead, p)` that `region_term` takes."""
        raise TypeError(bad_argument(argument, f"points, for {self!r}", type(region).__name__))

    def packed(
        self,
        argument: str,
        region: Region | Sequence[Region],
        event_shape: torch.Size,
        device: torch.device | None = None,
    ) -> Tensor:
        """As `pack`; several regions without a batch count along the first dimension."""
        if isinstance(region, Region):
            return self.pack(argument, region, event_shape, device)
        return stack_packed([self.pack(argument, one, event_shape, device) for one in region])

    def region_term(self, packed: Tensor, components: Tensor) -> Term:
        """The log mass of each component in regions `(*lead, n, p)` of `pack`, in blocks as `term`."""
        self._cannot("one that has masses of regions")

    def trimmed(self, region: Region, event_shape: torch.Size) -> Region:
        """The region, or `WHOLE` if it holds all outcomes, or `NOTHING` if it holds none."""
        return region

    def null_points(self, region: Region) -> list[float]:
        """The single values in a region that have densities instead of masses."""
        return []

    def at_points(self, points: Sequence[float], components: Tensor) -> tuple[Kernel, Tensor]:
        """The kernel and the components of masses at points of a density, in proportion to it."""
        self._cannot("one of numbers with a density")

    def mixed(
        self, log_shares: Float[Tensor, "m k"], parts: Sequence[tuple[Kernel, Tensor]]
    ) -> tuple[Kernel, Tensor]:
        """A kernel and components that mix restrictions of this kernel, with shares for every component."""
        self._cannot("one whose density can be restricted to a region")

    def restricted(self, region: Region, components: Tensor) -> tuple[Kernel, Tensor]:
        """The kernel and the components of f_j(x)/P_j(x in the region), which is 0 outside of the region.

        The weights of a mixture are multiplied by the components' masses there; components without mass may
        have any density.
        """
        self._cannot("one whose density can be restricted to a region")

    @property
    def has_cdf(self) -> bool:
        """Whether events of one dimension have a distribution function."""
        return type(self).cdf is not Kernel.cdf

    def cdf(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x), the mass of every component at or below x, for events of one dimension.

        Args:
            x: of shape `(*lead,)`.
            components: of shape `(*batch, m, *component)`; `batch` broadcasts with `lead`.
        """
        self._cannot("one with a distribution function")

    def quantile_bounds(self, q: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
        """Ends `(*lead, m)` of intervals that hold the q-quantile `(*lead,)` of every component."""
        self._cannot("one with a distribution function")

    # ---- moments

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        """The probability of every event under each component."""
        self._cannot("a discrete kernel (Cosine, Categorical, Levels)")

    def number_probs(self, components: Tensor) -> Float[Tensor, "*batch m"] | None:
        """The probability that an event is a number and not NaN; None if all events are numbers."""
        return None

    def mean(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        """The mean of each component's density."""
        self._cannot("one of numbers, which have a mean")

    def mean_features(self, components: Tensor) -> Float[Tensor, "*batch v"]:
        """Numbers whose average over components gives the mean of a mixture by `mean_of`."""
        return self.mean(components)

    def mean_of(self, features: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch d"]:
        """The mean of a mixture, given the average of its components' `mean_features`."""
        return features

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        """The variance of each component's density, dimension by dimension."""
        self._cannot("one of numbers, which have a variance")

    # ---- parameters and related kernels

    @property
    def overlaps_everywhere(self) -> bool:
        """Whether k(x, c) is positive for all x and c."""
        return False

    @property
    def per_component(self) -> bool:
        """Whether `log_norm` has a value for every component."""
        return False

    @property
    def batch_shape(self) -> torch.Size:
        """The batch dimensions of the kernel's parameters."""
        return torch.Size()

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        """The bandwidth that training changes."""
        self._cannot("one with a learned bandwidth")

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        """Sets a learned bandwidth, if there is one, and its lower bound from components `(m, *component)`.

        Args:
            sigma: a rule of `kdmkit.kernels.typical_distance`, or a number.
            distance: the result of the rule, if the caller has it; None measures the components.
        """

    @property
    def noise_variance(self) -> Float[Tensor, "*shape"]:
        """The variance of Gaussian noise about the components, in the shape of the bandwidth."""
        self._cannot("an RBF kernel without a metric")

    def same_family(self, other: Kernel) -> bool:
        """Whether components of `other` may be evidence for a variable with this kernel."""
        return type(self) is type(other)

    def stacked(self, others: Sequence[Kernel]) -> Kernel | None:
        """This kernel and others as one with a batch; gradients flow to all. None if they differ in kind."""
        return None

    def arranged(self, place: Callable[[Tensor], Tensor]) -> Kernel:
        """The kernel with other batch dimensions: `place` maps `(*batch, m, d)` to `(*other, m, d)`."""
        return self

    def scaled(self, factor: Any) -> Kernel:
        """The kernel of the variable times `factor`, a positive number or `(d,)`."""
        self._cannot("one with a bandwidth (RBF, LowRank, Epanechnikov, Tricube)")

    def convolved(self, variance: Float[Tensor, "*shape"]) -> Kernel:
        """The kernel of x plus independent Gaussian noise, whose variance broadcasts with the bandwidth."""
        self._cannot("an RBF kernel without a metric")

    def coordinates(self, index: Sequence[int]) -> Kernel:
        """The kernel over some coordinates of the event: its density is the marginal one."""
        self._cannot("a continuous kernel (RBF, LowRank, Epanechnikov, Tricube)")

    def _cannot(self, wanted: str) -> NoReturn:
        raise TypeError(bad_argument("kernel", wanted, repr(self)))

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        copied: Self = copy_with_graph(self, memo)
        return copied

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"
