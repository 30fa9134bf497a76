"""Bandwidths: positive scales, learned or fixed, for all components, for each, or for each of a batch."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_choice, check_number, check_positive
from kdmkit._core.tensors import exact_distances

# The default lower bound, relative to the bandwidth: fits do not reach it before data sets a better one.
_TINY = 1e-6
# Descriptions hold at most this many numbers.
_MANY = 1 << 12
#: The lower bound of a bandwidth that was set from data, relative to its starting value.
BOUND = 0.01
#: Differences below this part of the values' size are rounding.
ROUNDING = 1e-12
# Distances are taken from about this many points.
_SAMPLE = 2048


def positive_tensor(name: str, value: Any) -> Tensor:
    """Positive floating-point values; plain numbers in float64, so that they keep their digits."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(bad_argument(name, "a number or a tensor", repr(value))) from error
    if isinstance(value, bool) or tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise TypeError(bad_argument(name, "a number or a tensor of real numbers", repr(value)))
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    check_positive(name, tensor)
    return tensor


class Bandwidth(nn.Module, ABC):
    """The positive scale of a kernel.

    It has the shape `()` for one value; `(d,)` for one per dimension; `(m, 1)` or `(m, d)` for a row per
    component; `(*batch, m, 1)` or `(*batch, m, d)` for such rows in every element of a batch of KDMs.

    >>> import kdmkit as kdm
    >>> kdm.RBF([0.5, 2.0]).bandwidth.shape
    torch.Size([2])
    """

    #: The argument's name in error messages: "sigma", "h".
    name: str

    @property
    @abstractmethod
    def value(self) -> Float[Tensor, "*shape"]:
        """The bandwidth."""

    @property
    def shape(self) -> torch.Size:
        """The shape of `value`."""
        return self.value.shape

    @abstractmethod
    def scaled(self, factor: Any) -> Bandwidth:
        """The bandwidth times `factor`, a number or `(d,)`, as a bandwidth of the same class."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description for `bandwidth_from_config`."""

    @property
    def per_component(self) -> bool:
        """Whether components have different bandwidths."""
        return len(self.shape) >= 2

    @property
    def batch_shape(self) -> torch.Size:
        """The leading shape of a batch of KDMs; `()` without one."""
        return self.shape[:-2]

    def coordinates(self, index: Sequence[int]) -> FixedBandwidth:
        """The bandwidth of some dimensions; gradients flow back to this one."""
        one_for_all = not self.shape or self.shape[-1] == 1
        return self.mapped(lambda value: value.clone() if one_for_all else value[..., list(index)])

    def mapped(self, function: Callable[[Tensor], Tensor]) -> FixedBandwidth:
        """A function of the value as a bandwidth; gradients flow back to this one."""
        return FixedBandwidth(self.name, function(self.value), validate=False)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Bandwidth:
        return copy_with_graph(self, memo)


class LearnedBandwidth(Bandwidth):
    """value = minimum + exp(raw) with a parameter `raw`.

    The lower bound keeps maximum likelihood well posed: without it, the density of a component that sits on
    a sample grows without limit as its bandwidth goes to zero.

    Args:
        name: the name of the bandwidth in error messages.
        value: a positive number or tensor of shape `()`, `(d,)`, `(m, 1)` or `(m, d)`, copied. Plain numbers
            are kept in float64, so that they keep their digits.
        minimum: the lower bound; None is a millionth of the smallest value.
        trainable: whether `raw` is trained.

    >>> LearnedBandwidth("sigma", 0.3).value
    tensor(0.3000, dtype=torch.float64)
    """

    raw: nn.Parameter
    minimum: Tensor

    def __init__(
        self, name: str, value: Any, minimum: float | None = None, *, trainable: bool = False
    ) -> None:
        super().__init__()
        self.name = name
        tensor = positive_tensor(name, value).detach()
        if tensor.ndim > 2:
            raise ValueError(bad_argument(name, "shape (), (d,), (m, 1) or (m, d)", tuple(tensor.shape)))
        smallest = float(tensor.min())
        wanted = f"0 ≤ {name}_min < {name} ({smallest:g})"
        bound = _TINY * smallest if minimum is None else minimum
        bound = check_number(f"{name}_min", bound, wanted, below=smallest)
        self.register_buffer("minimum", torch.tensor(bound, dtype=tensor.dtype))
        self.raw = nn.Parameter((tensor - bound).log(), requires_grad=trainable)

    @property
    def value(self) -> Float[Tensor, "*shape"]:
        return self.minimum + self.raw.exp()

    @value.setter
    def value(self, value: Any) -> None:
        tensor = positive_tensor(self.name, value).detach().to(self.raw)
        shape, given = self.raw.shape, tensor.shape
        pairs = zip(reversed(given), reversed(shape), strict=False)
        if len(given) > len(shape) or any(a not in (1, b) for a, b in pairs):
            raise ValueError(bad_argument(self.name, f"shape {tuple(shape)}", tuple(given)))
        if bool((tensor <= self.minimum).any()):
            wanted = f"> {self.name}_min ({self.minimum.item():g})"
            raise ValueError(bad_argument(self.name, wanted, f"{tensor.min().item():g}"))
        with torch.no_grad():
            self.raw.copy_((tensor - self.minimum).log().expand_as(self.raw))

    @property
    def shape(self) -> torch.Size:
        return self.raw.shape

    def bound(self, minimum: float) -> None:
        """Sets a new lower bound; values at or below it move just above."""
        if not 0 <= minimum < math.inf:
            raise ValueError(bad_argument(f"{self.name}_min", "a finite number ≥ 0", minimum))
        value = self.value.detach()
        with torch.no_grad():
            self.minimum.fill_(minimum)
            self.raw.copy_((value - minimum).clamp_min(_TINY * max(minimum, float(value.min()))).log())

    def restart(self, value: Any, minimum: float) -> None:
        """Sets the value and the lower bound together, whatever the bound was before."""
        self.bound(0.0)
        self.value = value
        self.bound(minimum)

    def scaled(self, factor: Any) -> LearnedBandwidth:
        """A bandwidth with a new parameter: gradients do not reach this one."""
        factor = positive_tensor("factor", factor).detach().to(self.raw.device)
        value = self.value.detach() * factor
        # A value that training has brought down to its bound must stay above the new one.
        minimum = min(float(self.minimum) * float(factor.min()), (1 - _TINY) * float(value.min()))
        return LearnedBandwidth(self.name, value, minimum, trainable=self.raw.requires_grad)

    def _description(self) -> Any:
        """The values with twelve digits, which exp(log v) has as well: a copy's description is the same."""
        numbers = self.value.detach().cpu().double().numpy()
        short = np.vectorize(lambda v: float(f"{v:.12g}"), otypes=[float])(numbers)
        return np.where(short > float(self.minimum), short, numbers).tolist()

    def config(self) -> dict[str, Any]:
        # `state_dict` has those of many components.
        value = {"shape": list(self.shape)} if self.raw.numel() > _MANY else self._description()
        return {self.name: value, f"{self.name}_min": float(self.minimum)}


def stack_bandwidths(bandwidths: Sequence[Bandwidth]) -> FixedBandwidth | None:
    """Learned bandwidths `(m, d)` as one with a batch; gradients flow to all. None if one is of another kind.

    >>> stack_bandwidths([LearnedBandwidth("sigma", torch.ones(5, 1))] * 3).shape
    torch.Size([3, 5, 1])
    """
    learned = [one for one in bandwidths if isinstance(one, LearnedBandwidth) and one.per_component]
    if len(learned) < len(bandwidths) or len({(one.shape, one.raw.dtype) for one in learned}) > 1:
        return None
    minimum = torch.stack([one.minimum for one in learned]).view(-1, 1, 1)
    value = minimum + torch.stack([one.raw for one in learned]).exp()
    return FixedBandwidth(learned[0].name, value, validate=False)


class FixedBandwidth(Bandwidth):
    """A given tensor, no parameter: gradients flow through it to the tensors that it was computed from.

    Args:
        name: the name of the bandwidth in error messages.
        value: a positive number or tensor of any shape that `Bandwidth` names.
        validate: whether the value is checked and copied. If False, the tensor itself is kept; no method
            changes it in place.

    >>> FixedBandwidth("sigma", torch.ones(5, 3, 2)).batch_shape
    torch.Size([5])
    """

    fixed: Tensor

    def __init__(self, name: str, value: Any, *, validate: bool = True) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("fixed", positive_tensor(name, value).clone() if validate else value)

    @property
    def value(self) -> Float[Tensor, "*shape"]:
        return self.fixed

    def scaled(self, factor: Any) -> FixedBandwidth:
        factor = positive_tensor("factor", factor).to(self.fixed.device)
        return FixedBandwidth(self.name, self.fixed * factor, validate=False)

    def config(self) -> dict[str, Any]:
        # A batch may hold millions of numbers: `state_dict` has them.
        value = {"shape": list(self.shape)} if self.batch_shape else self.fixed.tolist()
        return {self.name: value, f"{self.name}_min": None}


def requires_gradient(value: Any) -> bool:
    """Whether gradients of what is computed from it are wanted."""
    return isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()


def as_bandwidth(
    name: str, value: Any, minimum: float | None, *, trainable: bool, keeps_graph: bool = False
) -> Bandwidth:
    """A given bandwidth as it is; a fixed one of a batch, or of a tensor with gradients; else a learned one.

    A learned bandwidth has a parameter of its own, which starts at the value; through a fixed one gradients
    flow to the tensor that was given.

    Args:
        keeps_graph: whether another part of the kernel requires gradients, so that the bandwidth is fixed.
    """
    if isinstance(value, Bandwidth):
        if minimum is not None or trainable:
            wanted = f"a number or a tensor beside {name}_min or trainable"
            raise ValueError(bad_argument(name, wanted, type(value).__name__))
        return value
    tensor = positive_tensor(name, value)
    keeps_graph = not trainable and (keeps_graph or requires_gradient(tensor))
    if keeps_graph and minimum is not None:
        wanted = "None beside a tensor that requires gradients (trainable=True trains a copy of it)"
        raise ValueError(bad_argument(f"{name}_min", wanted, minimum))
    if keeps_graph or (tensor.ndim > 2 and minimum is None and not trainable):
        return FixedBandwidth(name, tensor)
    return LearnedBandwidth(name, tensor, minimum, trainable=trainable)


def bandwidth_from_config(name: str, config: dict[str, Any]) -> Bandwidth:
    """The bandwidth that `Bandwidth.config` described.

    Numbers that the description lacks are placeholders (NaN for a batch) until `load_state_dict` sets them.
    """
    value, minimum = config[name], config[f"{name}_min"]
    if isinstance(value, dict) and minimum is None:
        return FixedBandwidth(name, torch.full(value["shape"], math.nan), validate=False)
    if minimum is not None:
        value = torch.full(value["shape"], 1.0 + minimum) if isinstance(value, dict) else value
        return LearnedBandwidth(name, value, minimum)
    return FixedBandwidth(name, value)


def copy_with_graph(module: Any, memo: dict[Any, Any]) -> Any:
    """`copy.deepcopy` of a module whose buffers may be results of a computation.

    torch refuses to copy such tensors. Here the copy is part of the same graph: its storage is new, and its
    gradients flow to the same tensors as the original's.
    """
    for tensor in module.buffers():
        if not tensor.is_leaf:
            memo[id(tensor)] = tensor.clone()
    copied = object.__new__(type(module))
    memo[id(module)] = copied
    copied.__dict__.update(copy.deepcopy(module.__dict__, memo))
    return copied


# ---- lengths from which bandwidths start


def typical_distance(points: Tensor, rule: str, *, pairs: int = 1 << 22) -> float:
    """The distance of points `(n, *event)`: the median to the nearest neighbour, or the mean of all pairs.

    Coinciding points do not count; if all coincide, the answer is 1.

    Args:
        rule: `"nearest"`, `"mean"`, or `"scott"`, which multiplies the mean by n^(−1/(d + 4)): the order of
            the best bandwidth of a smooth density.
        points: their distances are taken.
        pairs: the number of distances that exist at once.

    Returns:
        A number > 0.

    >>> typical_distance(torch.tensor([[0.0], [1.0], [3.0]]), "nearest")
    1.0
    """
    check_choice("sigma", rule, ("nearest", "mean", "scott"))
    if rule == "scott":
        n, d = points.shape[0], points[0].numel()
        return typical_distance(points, "mean", pairs=pairs) * n ** (-1 / (d + 4))
    points = points.detach().double().flatten(1).cpu()
    some = points[:: max(1, points.shape[0] // _SAMPLE)]
    others = points if rule == "nearest" else some
    coincide = ROUNDING * float(points.abs().max())
    lengths = []
    for block in some.split(max(1, pairs // others.shape[0])):
        distances = exact_distances(block, others)
        apart = distances > coincide
        lengths.append(
            distances[apart] if rule == "mean" else torch.where(apart, distances, torch.inf).amin(1)
        )
    length = torch.cat(lengths)
    length = length[torch.isfinite(length)]
    if not len(length):
        return 1.0
    return float(length.mean() if rule == "mean" else length.median())


def relative_spread(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviations relative to their root mean square, with 1 for constant columns."""
    spread = x.std(0, unbiased=False)
    varies = spread > ROUNDING * x.abs().amax(0)
    if not bool(varies.any()):
        return torch.ones_like(spread)
    return torch.where(varies, spread / spread[varies].square().mean().sqrt(), torch.ones_like(spread))
