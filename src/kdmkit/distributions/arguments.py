"""Arguments of distributions: components, values, levels, names of variables, and indices of batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_event, check_finite, check_instance
from kdmkit._core.tensors import broadcast
from kdmkit.kernels import Kernel, check_kernel

Target = str | Sequence[str] | None
Masks = Mapping[str, Any] | None

#: Names that no variable may have, since methods have arguments of these names.
RESERVED = ("given", "target", "observed", "noisy", "self")


def is_checked(validate_args: bool | None, components: Tensor) -> bool:
    """Whether arguments are checked: by default always, except while `torch.compile` traces.

    The default of torch's distributions is no guide: the first `torch.compile` of a process switches it off.
    Tensors on the meta device have no numbers to check.
    """
    if components.is_meta:
        return False
    return not torch.compiler.is_compiling() if validate_args is None else validate_args


def check_components(argument: str, components: Tensor, kernel: Kernel) -> int:
    """The dimension that counts components."""
    m_dim = components.ndim - kernel.component_dim - 1
    if m_dim < 0 or 0 in components.shape[m_dim:]:
        event = ", ".join(["m", *(["d"] if kernel.component_dim == 1 else ["..."] * kernel.component_dim)])
        wanted = (
            f"shape (..., {event}) with m ≥ 1{' and d ≥ 1' if 0 in components.shape[m_dim + 1 :] else ''}"
        )
        raise ValueError(bad_argument(argument, wanted, tuple(components.shape)))
    if kernel.components_trainable and not (components.is_floating_point() or components.is_complex()):
        raise TypeError(
            bad_argument(argument, f"a floating-point tensor for {type(kernel).__name__}", components.dtype)
        )
    return m_dim


def event_shape_of(kernel: Kernel, components: Tensor) -> torch.Size:
    """The shape of one event of a variable with components `(*batch, m, *component)`."""
    return kernel.event_shape(components.shape[components.ndim - kernel.component_dim :])


def per_dimension(
    argument: str, value: Any, event_shape: torch.Size, like: Tensor, validate: bool
) -> Float[Tensor, "*batch d"]:
    """Numbers for every dimension of an event, from one number for all or `(*batch, d)`."""
    tensor = as_tensor(argument, value, like=like).to(like)
    tensor = tensor if tensor.ndim else tensor.expand(event_shape)
    check_event(argument, tensor, event_shape)
    if validate:
        check_finite(argument, tensor)
    return tensor


def common_batch(shapes: Mapping[str, torch.Size]) -> torch.Size:
    """The shape that leading dimensions broadcast to; their names are for the error message.

    >>> common_batch({"x": torch.Size([3, 1]), "y": torch.Size([4])})
    torch.Size([3, 4])
    """
    common = torch.Size()
    for shape in shapes.values():
        # Lengths first: a comparison of symbolic sizes would become a condition of an exported program.
        if len(shape) and len(common) and (len(shape) != len(common) or shape != common):
            return _broadcast_named(shapes)
        common = shape if len(shape) else common
    return common


def _broadcast_named(shapes: Mapping[str, torch.Size]) -> torch.Size:
    try:
        return broadcast(*shapes.values())
    except RuntimeError as error:
        given = {name: tuple(shape) for name, shape in shapes.items() if len(shape)}
        got = ", ".join(map(str, given.values()))
        raise ValueError(bad_argument(", ".join(given), "leading dimensions that broadcast", got)) from error


def check_index(index: Any, d: int) -> list[int]:
    """The coordinates of events `(d,)` that an index names, counted from 0.

    >>> check_index(-1, 3), check_index(slice(1, None), 3)
    ([2], [1, 2])
    """
    places = range(d)
    try:
        if isinstance(index, slice):
            chosen = list(places[index])
        else:
            listed = index.tolist() if isinstance(index, Tensor | np.ndarray) else index
            chosen = [places[i] for i in (listed if isinstance(listed, Sequence) else [listed])]
    except (IndexError, TypeError) as error:
        raise ValueError(bad_argument("index", f"coordinates in 0 … {d - 1}", index)) from error
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(bad_argument("index", "one or more different coordinates", index))
    return chosen


def check_levels(argument: str, q: Tensor) -> None:
    """Raises if a level is not strictly between 0 and 1."""
    outside = q[~((q > 0) & (q < 1))]
    if outside.numel():
        wanted = "quantiles strictly between 0 and 1"
        raise ValueError(bad_argument(argument, wanted, outside[:3].tolist()))


def check_variables(components: Any, kernels: Any) -> dict[str, Kernel]:
    """Kernels by variable, in the order of the components."""
    if not isinstance(components, Mapping) or not components:
        raise TypeError(
            bad_argument("components", "a mapping from variable to tensor", type(components).__name__)
        )
    if not isinstance(kernels, Mapping):
        raise TypeError(bad_argument("kernels", "a mapping from variable to kernel", type(kernels).__name__))
    if set(components) != set(kernels):
        raise ValueError(
            bad_argument("kernels", f"the variables of components, {list(components)}", list(kernels))
        )
    bad = [name for name in components if not isinstance(name, str) or name in RESERVED]
    if bad:
        raise ValueError(bad_argument("components", f"variables not named {', '.join(RESERVED)}", bad))
    return {name: check_kernel(f"kernels[{name!r}]", kernels[name]) for name in components}


def component_tensors(components: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> dict[str, Tensor]:
    """Components as tensors, by variable."""
    return {
        name: as_tensor(f"components[{name!r}]", components[name], is_real=not kernel.takes_complex)
        for name, kernel in kernels.items()
    }


def check_names(argument: str, names: Iterable[str], variables: Collection[str]) -> None:
    unknown = [name for name in names if name not in variables]
    if unknown:
        raise ValueError(bad_argument(argument, f"variables among {list(variables)}", unknown))


def check_complete(values: Mapping[str, Any], variables: Collection[str]) -> None:
    """Raises if a variable has no value."""
    missing = [name for name in variables if name not in values]
    if missing:
        wanted = f"all of {list(variables)} (marginal() drops variables)"
        raise ValueError(bad_argument("values", wanted, f"none for {missing}"))


def check_target(names: Sequence[str], variables: Collection[str]) -> None:
    check_names("target", names, variables)
    if not names or len(set(names)) < len(names):
        raise ValueError(bad_argument("target", "one or more different variables", list(names)))


def choose_targets(target: Target, evidence: Sequence[str], variables: Collection[str]) -> tuple[str, ...]:
    """The variables to infer: the named ones, or all without evidence."""
    if not evidence:
        raise ValueError(bad_argument("evidence", "at least one variable", "none (marginal() needs none)"))
    if target is None:
        rest = tuple([name for name in variables if name not in evidence])
        if not rest:
            wanted = "a variable left to infer (log_prob scores whole rows)"
            raise ValueError(bad_argument("evidence", wanted, "all of them"))
        return rest
    check_instance("target", target, Iterable, "a name or several")
    targets = (target,) if isinstance(target, str) else tuple(target)
    check_target(targets, variables)
    both = [name for name in targets if name in evidence]
    if both:
        raise ValueError(bad_argument("target", "variables without evidence", both))
    return targets


def check_masks(observed: Any) -> Mapping[str, Any]:
    if observed is None:
        return {}
    check_instance("observed", observed, Mapping, "a mapping from variable to boolean mask")
    checked: Mapping[str, Any] = observed
    return checked


def gather_masks(observed: Any, names: Sequence[str], like: Tensor) -> dict[str, Tensor]:
    """Masks as tensors; a mask of a variable that is not among the names raises."""
    masks = {}
    for name, mask in check_masks(observed).items():
        if name not in names:
            raise ValueError(bad_argument("observed", f"variables with evidence, {list(names)}", repr(name)))
        tensor = as_tensor(f"observed[{name!r}]", mask, like=like)
        if tensor.dtype != torch.bool:
            raise TypeError(bad_argument(f"observed[{name!r}]", "a boolean mask", tensor.dtype))
        masks[name] = tensor
    return masks


class BatchIndex:
    """Chooses elements of a batch from every tensor of a distribution.

    Args:
        index: what a tensor of shape `batch_shape` can be indexed with.
        batch_shape: of the distribution.

    >>> BatchIndex(1, torch.Size([3])).choose(torch.arange(6).view(3, 2), 1)
    tensor([2, 3])
    """

    def __init__(self, index: Any, batch_shape: torch.Size) -> None:
        parts = [*index] if isinstance(index, tuple) else [index]
        parts = [torch.as_tensor(part) if isinstance(part, list | np.ndarray) else part for part in parts]
        used = sum(_dimensions(part) for part in parts)
        n = len(batch_shape)
        dots = [i for i, part in enumerate(parts) if part is Ellipsis]
        if used > n or len(dots) > 1:
            raise IndexError(bad_argument("index", f"one for a batch of shape {tuple(batch_shape)}", index))
        # Written out: behind the batch are further dimensions, which the dots would take, too.
        at = dots[0] if dots else len(parts)
        parts[at : at + 1] = [slice(None)] * (n - used)
        self._index, self._batch_shape = tuple(parts), batch_shape

    def choose(self, tensor: Tensor, rank: int) -> Tensor:
        """The chosen elements of `(*batch, *rest)` with `rank` dimensions of rest, if there is a batch."""
        lead = tensor.ndim - rank
        if not lead:
            return tensor
        return tensor.expand(*self._batch_shape, *tensor.shape[lead:])[self._index]

    def of_shape(self, batch_shape: torch.Size) -> torch.Size:
        """The shape of the chosen elements of a batch that broadcasts to the whole one."""
        return self.choose(torch.empty(()).expand(batch_shape), 0).shape

    def choose_behind(self, tensor: Tensor, rank: int) -> Tensor:
        """As `choose`, for `(l, *batch, *rest)`."""
        if tensor.ndim == rank + 1:
            return tensor
        return self.choose(tensor.movedim(0, -1), rank + 1).movedim(-1, 0)

    def variables(
        self, components: Mapping[str, Tensor], kernels: Mapping[str, Kernel]
    ) -> tuple[dict[str, Tensor], dict[str, Kernel]]:
        """Components `(*batch, m, *component)` and kernels of the chosen elements, by variable."""
        chosen = {n: self.choose(components[n], 1 + kernel.component_dim) for n, kernel in kernels.items()}
        arranged = {n: kernel.arranged(lambda part: self.choose(part, 2)) for n, kernel in kernels.items()}
        return chosen, arranged


def _dimensions(part: Any) -> int:
    """The number of dimensions that one part of an index takes."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, Tensor) and part.dtype == torch.bool else 1
