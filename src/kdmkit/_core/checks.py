"""Checks of user input. Every message names the argument, what was expected and what was given."""

import difflib
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

_Choice = TypeVar("_Choice")

#: Packages whose frames stand between a call of the library and the warning that it gives.
_INSIDE = {"jaxtyping", "kdmkit", "torch"}


def bad_argument(argument: str, wanted: str, got: object) -> str:
    """The text of every error about an argument.

    >>> bad_argument("sigma", "> 0", -1.0)
    'sigma: expected > 0, got -1.0'
    """
    return f"{argument}: expected {wanted}, got {got}"


def did_you_mean(value: object, options: Iterable[object]) -> str:
    """A hint to add to an error: the option that was probably meant, or nothing.

    >>> did_you_mean("carrat", ["price", "carat"])
    " (did you mean 'carat'?)"
    """
    words = {str(word).casefold(): word for word in options}
    close = difflib.get_close_matches(str(value).casefold(), words, n=1)
    return f" (did you mean {words[close[0]]!r}?)" if close else ""


def warn_user(text: str) -> None:
    """A warning that names the line of the user's code, however deep in the library it is given."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


def as_tensor(
    argument: str, value: Any, *, like: Tensor | None = None, wide: bool = False, is_real: bool = True
) -> Tensor:
    """A tensor of `value` on the device of `like`; Python and NumPy numbers take its floating dtype, too.

    Without `like` Python's numbers are in torch's default dtype, or in float64 if `wide`. Complex numbers
    raise if `is_real`.
    """
    if isinstance(value, Tensor):
        is_refused = is_real and value.is_complex()
        if is_refused or value.layout != torch.strided:
            got = value.dtype if is_refused else value.layout
            raise TypeError(bad_argument(argument, "a dense tensor of real numbers", got))
        return value if like is None or value.device == like.device else value.to(like.device)
    try:
        # NumPy reads a data frame by position; torch would read it by its labels.
        source = _writable(np.asarray(value)) if wide or hasattr(value, "__array__") else value
        tensor = torch.as_tensor(source, device=None if like is None else like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            bad_argument(argument, "a tensor or an array of numbers", type(value).__name__)
        ) from error
    if is_real and tensor.is_complex():
        raise TypeError(bad_argument(argument, "real numbers", tensor.dtype))
    if like is not None and like.is_floating_point() and tensor.is_floating_point():
        # Read again: torch takes Python's numbers for float32, and they would keep only its digits.
        return torch.as_tensor(source, dtype=like.dtype, device=like.device)
    return tensor


def _writable(array: Any) -> Any:
    """An array that shares its memory with a tensor without warnings or errors: a copy if necessary."""
    return array if array.flags.writeable and all(step >= 0 for step in array.strides) else array.copy()


def check_floating(argument: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise TypeError(bad_argument(argument, "a floating-point tensor", value.dtype))


def check_finite(argument: str, value: Tensor) -> None:
    # A sum tells in one pass; that of finite values may be infinite.
    if not value.is_floating_point() or math.isfinite(value.detach().sum().item()):
        return
    if not bool(torch.isfinite(value).all()):
        bad = value[~torch.isfinite(value)]
        got = f"{bad.numel()} that are not ({bad[0].item()})"
        raise ValueError(bad_argument(argument, "finite values", got))


def check_event(argument: str, value: Tensor, event_shape: torch.Size) -> None:
    """The last dimensions of `value` are `event_shape`."""
    k = len(event_shape)
    if value.ndim < k or (k and value.shape[-k:] != event_shape):
        raise ValueError(bad_argument(argument, f"shape (..., {_inside(event_shape)})", tuple(value.shape)))


def _inside(shape: Iterable[int]) -> str:
    return ", ".join(str(s) for s in shape)


def check_positive(argument: str, value: Tensor) -> None:
    check_finite(argument, value)
    if value.numel() == 0 or not bool((value > 0).all()):
        smallest = value.min().item() if value.numel() else "no values"
        raise ValueError(bad_argument(argument, "> 0", smallest))


def simplex_tolerance(dtype: torch.dtype) -> float:
    """How far a sum of weights may be from 1.

    Each weight carries a rounding error relative to itself, and those add up to at most a few units in the
    last place of the total, however many there are: summing happens in float64. Weights in float64 may have
    been computed in float32.
    """
    # bfloat16 has three digits, but weights that sum to 0.7 are wrong in any precision.
    return min(64 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps), 1 / 16)


def check_weights(argument: str, weights: Tensor) -> None:
    """Non-negative weights that sum to 1 over the last dimension (zeros are legal)."""
    check_floating(argument, weights)
    check_finite(argument, weights)
    if bool((weights < 0).any()):
        raise ValueError(
            bad_argument(
                argument, "non-negative values that sum to 1", f"a value of {weights.min().item():g}"
            )
        )
    total = weights.double().sum(-1)
    off = (total - 1).abs()
    if bool((off > simplex_tolerance(weights.dtype)).any()):
        worst = total.flatten()[off.flatten().argmax()].item()
        raise ValueError(bad_argument(argument, "non-negative values that sum to 1", f"a sum of {worst:.7g}"))


def check_log_weights(argument: str, log_weights: Tensor) -> None:
    """Logarithms of weights that sum to 1: −∞ is legal, NaN and +∞ are not."""
    check_floating(argument, log_weights)
    if bool(torch.isnan(log_weights).any()) or bool((log_weights == torch.inf).any()):
        raise ValueError(bad_argument(argument, "values below +∞", "NaN or +∞"))
    total = log_weights.double().exp().sum(-1)
    # exp turns an absolute error of the logarithm into a relative one of the weight.
    slack = simplex_tolerance(log_weights.dtype) * (1 + log_weights.double().clamp_min(-100).abs().amax(-1))
    off = (total - 1).abs()
    if bool((off > slack).any()):
        worst = total.flatten()[off.flatten().argmax()].item()
        raise ValueError(
            bad_argument(argument, "logarithms of weights that sum to 1", f"a sum of {worst:.7g}")
        )


def check_choice(argument: str, value: object, choices: Iterable[_Choice]) -> _Choice:
    """The choice that equals a value."""
    options = list(choices)
    if value not in options:
        raise ValueError(bad_argument(argument, "one of " + ", ".join(map(repr, options)), repr(value)))
    return options[options.index(value)]


def check_count(argument: str, value: object, wanted: str | None = None, *, least: int = 1) -> int:
    """A whole number of any type, as a Python int; `wanted` replaces the text of the message."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(bad_argument(argument, wanted or f"a whole number ≥ {least}", repr(value)))
    return int(value)


def check_number(
    argument: str,
    value: object,
    wanted: str,
    *,
    positive: bool = False,
    below: float = math.inf,
    most: float | None = None,
) -> float:
    """A number ≥ 0 (or > 0) of any type, as a Python float: less than `below`, or equal to `most`."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not (number >= 0 and (number < below or number == most)) or (positive and number == 0):
        raise ValueError(bad_argument(argument, wanted, repr(value)))
    return number


def check_flag(argument: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(bad_argument(argument, "True or False", repr(value)))
    return bool(value)


def check_instance(argument: str, value: object, kind: Any, wanted: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(bad_argument(argument, wanted, type(value).__name__))


def check_generator(generator: object) -> None:
    check_instance("generator", generator, (torch.Generator, type(None)), "a torch.Generator or None")


def check_path(argument: str, path: object) -> None:
    check_instance(argument, path, (str, os.PathLike), "text or a pathlib.Path")


def check_dtype(argument: str, dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(bad_argument(argument, "a floating-point dtype such as torch.float64", repr(dtype)))


def check_device(argument: str, device: Any) -> torch.device:
    """A device of this machine."""
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(bad_argument(argument, "a device of this machine", repr(device))) from error
    return checked


def as_levels(argument: str, values: Any, *, least: int = 1) -> Tensor:
    """Probabilities strictly between 0 and 1 in float64, `(k,)` with k ≥ `least`; a number is one of them."""
    levels = as_tensor(argument, values, like=torch.empty((), dtype=torch.float64)).double()
    if levels.ndim > 1 or levels.numel() < least or not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(bad_argument(argument, "numbers strictly between 0 and 1", repr(values)))
    return levels.reshape(-1)


def as_shape(argument: str, value: Any, *, least: int = 0) -> torch.Size:
    """Sizes of at least `least`; a whole number n means `(n,)`.

    >>> as_shape("sample_shape", 3), as_shape("sample_shape", [])
    (torch.Size([3]), torch.Size([]))
    """
    if isinstance(value, torch.Size) and not least:
        return value
    wanted = f"a whole number ≥ {least} or a tuple of them"
    sizes = (value,) if isinstance(value, int | Integral) else value
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise TypeError(bad_argument(argument, wanted, repr(value)))
    return torch.Size([check_count(argument, size, wanted, least=least) for size in sizes])


@contextmanager
def in_memory(argument: str, value: object) -> Iterator[None]:
    """Code that may run out of memory: the error then names the argument that was too large."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        full = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not full:
            raise
        raise MemoryError(bad_argument(argument, "a size that fits into memory", value)) from error


def apply(argument: str, module: Callable[[Tensor], Any], x: Tensor) -> Any:
    """module(x) of a user's module; an error inside it names the argument that it came with."""
    try:
        return module(x)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        wanted = f"a module that takes {x.dtype} tensors of shape {tuple(x.shape)}"
        raise ValueError(bad_argument(argument, wanted, f"{type(error).__name__}: {error}")) from error


def check_label(argument: str, value: Tensor, n: int) -> None:
    """Integer labels in 0 … n−1."""
    low, high = value.aminmax() if value.numel() else (0, n - 1)
    if int(low) < 0 or int(high) >= n:
        outside = value[(value < 0) | (value >= n)][0].item()
        raise ValueError(bad_argument(argument, f"labels in 0 … {n - 1}", outside))


def is_integer(value: Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
