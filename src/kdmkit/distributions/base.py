"""The bases of KDM, JointKDM and TreeKDM: distributions made of tensors and kernels that move and copy.

`overlap` is tr ρσ of two of them; `Estimate` is a mean over draws with its error.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import as_shape, bad_argument, check_count, check_dtype, check_instance
from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions.arguments import BatchIndex, common_batch
from kdmkit.distributions.mixing import Entry
from kdmkit.kernels import Kernel
from kdmkit.kernels.bandwidth import Bandwidth

if TYPE_CHECKING:
    from kdmkit.distributions.weights import Weights


T = TypeVar("T")

#: A function of a tensor or of a kernel that returns another of the same kind.
PartMap = Callable[[Any], Any]


class Composite(ABC):
    """A distribution that is made of tensors and kernels."""

    batch_shape: torch.Size
    _set: Callable[..., None]

    @classmethod
    def _made(cls, *parts: Any) -> Self:
        """A distribution from the arguments of `_set`, without checks: for inference and layers."""
        made = cls.__new__(cls)
        made._set(*parts)
        return made

    @abstractmethod
    def _mapped(self, function: PartMap) -> Self:
        """The distribution with `function` applied to every tensor and kernel."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same on another device or in another dtype; kernels are copied, never moved.

        An inferred distribution moves with its evidence and with the joint it was inferred from: it stays
        uncomputed, and keeps `log_evidence`.
        """
        return self._mapped(_mover(*args, **kwargs))

    def detach(self) -> Self:
        """The distribution as it is now: without gradients, and no step of an optimizer moves it."""
        return self._mapped(snapshot)

    @abstractmethod
    def expand(self, batch_shape: Any) -> Self:
        """The same for more elements of a batch; nothing is copied, inferred weights stay uncomputed."""

    def __getitem__(self, index: Any) -> Self:
        """Elements of the batch, by what a tensor of shape `batch_shape` can be indexed with."""
        return self._at(BatchIndex(index, self.batch_shape))

    @abstractmethod
    def _at(self, index: BatchIndex) -> Self:
        """The chosen elements of the batch."""

    @abstractmethod
    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Any:
        """Exact draws."""

    def estimate_entropy(
        self, n_samples: int = 1000, *, generator: torch.Generator | None = None
    ) -> Estimate:
        """An estimate of the entropy in nats, −E log p(x), the mean over draws, with its standard error.

        For continuous variables it is the differential entropy, which depends on their units. It has no
        gradients.

        Args:
            n_samples: the number of draws, for every element of the batch.
            generator: source of randomness; None is torch's global one.
        """
        return entropy_of_draws(self, check_count("n_samples", n_samples, least=2), generator)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        return self._mapped(_copier(memo))


class Mixture(Composite):
    """Components with weights: the base of KDM and JointKDM."""

    _weights: Weights

    @property
    @abstractmethod
    def n_components(self) -> int: ...

    @property
    def weights(self) -> Float[Tensor, "*batch m"]:
        """p, of shape `(*batch, m)`."""
        return self.log_weights.exp()

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        """ℓ = log p, of shape `(*batch, m)`."""
        return self._weights.log_weights.expand(*self.batch_shape, self.n_components)

    @abstractmethod
    def _with_weights(self, weights: Weights) -> Self:
        """The same components with other weights."""

    @abstractmethod
    def _variables(self) -> dict[str, tuple[Kernel, Tensor]]:
        """Kernel and components of every variable; "" is the name of the only one."""

    def purity(self) -> Float[Tensor, "*batch"]:
        """tr ρ² = Σ_ij p_i p_j k²(c_i, c_j): 1 for one component, less for a mixture."""
        return overlap(self, self)

    def overlap(self, other: Self) -> Float[Tensor, "*batch"]:
        """tr ρσ = Σ_ij p_i q_j k²(c_i, d_j) of two distributions with the same kernels."""
        check_instance("other", other, type(self), f"a {type(self).__name__}")
        return overlap(self, other)

    def _with_evidence_of(self, log_evidence: Tensor) -> Self:
        """The same weights, inferred from evidence of this log-probability."""
        return self._with_weights(self._weights.with_evidence(log_evidence))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """The same for more elements of a batch; nothing is copied, inferred weights stay uncomputed."""
        return self._with_weights(self._weights.expand(expanded_shape(batch_shape, self.batch_shape)))

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l) of the evidence this was inferred from; −∞ if no component overlaps with it."""
        return self._weights.log_evidence.expand(self.batch_shape)


def expanded_shape(wanted: Any, batch_shape: torch.Size) -> torch.Size:
    """The shape that a batch is expanded to."""
    shape = as_shape("batch_shape", wanted)
    try:
        torch.empty(()).expand(batch_shape).expand(shape)
    except RuntimeError as error:
        expected = f"a shape that {tuple(batch_shape)} expands to"
        raise ValueError(bad_argument("batch_shape", expected, tuple(shape))) from error
    return shape


def _mover(*args: Any, **kwargs: Any) -> PartMap:
    """Does `to(*args, **kwargs)` to a tensor or a kernel; integers and masks keep their dtype."""
    try:
        moved = torch.empty(0).to(*args, **kwargs)
    except (RuntimeError, TypeError, AssertionError) as error:
        got = ", ".join(map(repr, (*args, *kwargs.values())))
        raise ValueError(bad_argument("device, dtype", "a device of this machine or a dtype", got)) from error
    check_dtype("dtype", moved.dtype)

    def move(part: Any) -> Any:
        if isinstance(part, Kernel):
            return copy.deepcopy(part).to(*args, **kwargs)
        if part.is_complex():
            return torch.view_as_complex(torch.view_as_real(part).to(*args, **kwargs))
        moved = part.to(*args, **kwargs)
        return moved if part.is_floating_point() else part.to(moved.device)

    return move


def _copier(memo: dict[Any, Any]) -> PartMap:
    """Does `copy.deepcopy` to a tensor or a kernel.

    torch refuses to copy results of a computation that carry gradients: they are cloned, and their copies
    stay in the graph.
    """

    def copied(part: Any) -> Any:
        is_result = isinstance(part, Tensor) and not part.is_leaf
        return part.clone() if is_result else copy.deepcopy(part, memo)

    return copied


def snapshot(part: Any) -> Any:
    """A tensor or a kernel without gradients that no training step changes: a copy if gradients can move it.

    A tensor without gradients is returned itself, however large it is. A kernel with trained parameters
    shares its frozen parameters and copies its buffers.
    """
    if isinstance(part, Tensor):
        return part.detach().clone() if part.requires_grad else part
    if not is_trained(part):
        return part
    memo: dict[int, Any] = {}
    for module in part.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):  # of old-style weight norm: torch refuses to copy such results
                memo[id(value)] = value.detach().clone()
        for value in module.parameters(recurse=False):
            memo[id(value)] = nn.Parameter(value.detach().clone(), False) if value.requires_grad else value
        for value in module.buffers(recurse=False):
            # Batch norm counts what it sees: those of a module in training mode are its own business.
            counts = module.training and getattr(module, "track_running_stats", False)
            memo[id(value)] = value if counts else value.detach().clone()
    return _copied(part, memo)


def graph_snapshot(part: Any) -> Any:
    """The same inside a graph: a copy through which gradients flow to what is trained.

    A kernel around an encoder is returned itself: encoders are modules of users, which cannot be copied at
    every step.
    """
    if isinstance(part, Tensor):
        return part.clone() if part.requires_grad else part
    copied = _copied_in_graph(part)
    return part if copied is None else copied


def _copied_in_graph(module: nn.Module) -> nn.Module | None:
    """A kernel with clones of what is trained, itself if nothing is; None with a module of users in it."""
    if not isinstance(module, Kernel | Bandwidth):
        return None
    parts: dict[str, Any] = {}
    for name, child in module._modules.items():
        copied = None if child is None else _copied_in_graph(child)
        if copied is None and child is not None:
            return None
        if copied is not child:
            parts["_modules"] = {**parts.get("_modules", module._modules), name: copied}
    # Results of a computation are buffers: a parameter is a leaf.
    clones = {name: x.clone() for name, x in module._parameters.items() if x is not None and x.requires_grad}
    clones |= {name: x.clone() for name, x in module._buffers.items() if x is not None and x.requires_grad}
    if clones:
        parts["_parameters"] = {name: x for name, x in module._parameters.items() if name not in clones}
        parts["_buffers"] = {**module._buffers, **clones}
    if not parts:
        return module
    copied = object.__new__(type(module))
    copied.__dict__.update(module.__dict__ | parts)
    return copied


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """`copy.deepcopy` with the tensors of `memo`; of kernels and bandwidths ten times faster."""
    if id(module) in memo or not isinstance(module, Kernel | Bandwidth):
        deep: nn.Module = copy.deepcopy(module, memo)
        return deep
    copied = object.__new__(type(module))
    memo[id(module)] = copied
    children = {
        name: None if child is None else _copied(child, memo) for name, child in module._modules.items()
    }
    parts: dict[str, dict[str, Any]] = {"_parameters": module._parameters, "_buffers": module._buffers}
    tensors = {part: {n: memo.get(id(x)) for n, x in members.items()} for part, members in parts.items()}
    copied.__dict__.update(module.__dict__ | tensors | {"_modules": children})
    return copied


def is_trained(module: nn.Module) -> bool:
    """Whether a parameter or a buffer requires gradients; `parameters()` would take ten times longer."""
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if tensor is not None and tensor.requires_grad:
                return True
    return any(is_trained(child) for child in module._modules.values() if child is not None)


def map_values(function: PartMap, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function(part) for name, part in parts.items()}


class cached_per_grad_mode(Generic[T]):
    """`functools.cached_property` with two caches, one of them for `torch.no_grad`.

    A value that was computed without gradients must not be used by code that needs gradients.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        cache = instance.__dict__
        key = f"{self._name} (gradients: {torch.is_grad_enabled()})"
        if key not in cache:
            cache[key] = self._function(instance)
        value: T = cache[key]
        return value


class Estimate(NamedTuple):
    """A mean over draws.

    Args:
        value: the mean, `(*batch,)`.
        standard_error: of the mean.

    >>> import kdmkit as kdm
    >>> entropy = kdm.KDM(torch.zeros(1, 1), None, kdm.RBF.from_std(1.0)).estimate_entropy(10_000)
    >>> bool(abs(entropy.value - 1.4189) < 5 * entropy.standard_error)
    True
    """

    value: Float[Tensor, "*batch"]
    standard_error: Float[Tensor, "*batch"]

    @classmethod
    def of_draws(cls, values: Float[Tensor, "n *batch"]) -> Estimate:
        """The mean over the first dimension."""
        return cls(values.mean(0), values.std(0) / math.sqrt(len(values)))


@torch.no_grad()
def entropy_of_draws(rho: Composite, n: int, generator: torch.Generator | None) -> Estimate:
    """−E log p(x)."""
    any_rho: Any = rho
    drawn = rho.sample((n,), generator=generator)
    log_prob = any_rho.log_prob(**drawn) if isinstance(drawn, dict) else any_rho.log_prob(drawn)
    return Estimate.of_draws(-log_prob)


def overlap(rho: Mixture, other: Mixture) -> Float[Tensor, "*batch"]:
    """Σ_ij p_i q_j Π_v k_v²(c_vi, d_vj), one mixture's components as points of the other's projection."""
    ours, theirs = rho._variables(), other._variables()
    if list(ours) != list(theirs):
        raise ValueError(bad_argument("other", f"the variables {list(ours)}", list(theirs)))
    entries = []
    for name, (kernel, components) in ours.items():
        other_kernel, other_components = theirs[name]
        check_same_kernel(kernel, other_kernel)
        check_same_events(kernel, components, other_components)
        m_dim = other_components.ndim - kernel.component_dim - 1
        points = other_components.movedim(m_dim, 0)
        # The dimension of the points comes in front of the batch.
        missing = max(len(rho.batch_shape), m_dim) - m_dim
        points = points.reshape(points.shape[0], *([1] * missing), *points.shape[1:])
        entries.append(Entry(kernel, points, components, "overlap"))
    common_batch({"batch_shape": rho.batch_shape, "other": other.batch_shape})
    log_f = rho._weights.log_mix(entries)
    return safe_logsumexp(log_f.movedim(0, -1) + other.log_weights).exp()


def check_same_kernel(kernel: Kernel, other: Kernel) -> None:
    """Raises unless components are states of one space, whose inner products the kernel gives."""
    if not kernel.components_are_events:
        raise TypeError(bad_argument("kernel", "one whose components are events", repr(kernel)))
    if kernel.per_component or other.per_component:
        raise ValueError(bad_argument("kernel", "one bandwidth for all components", "one per component"))
    if other is not kernel and not same_kernel(kernel, other):
        raise ValueError(bad_argument("other", f"a KDM with the kernel {kernel}", other))


def check_same_events(kernel: Kernel, components: Tensor, other: Tensor) -> None:
    """Raises unless components of two distributions have one shape."""
    shape, other_shape = (part.shape[part.ndim - kernel.component_dim :] for part in (components, other))
    if other_shape != shape:
        wanted = f"a KDM over events of shape {tuple(shape)}"
        raise ValueError(bad_argument("other", wanted, tuple(other_shape)))


def same_kernel(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels are densities of the same form with the same parameters."""
    return type(a) is type(b) and a.has_density and a.config() == b.config()
