"""Checks of user input. Every message names the argument, what was expected and what was given."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor


def bad_argument(argument: str, wanted: str, got: object) -> str:
    """The text of every error about an argument.

    >>> bad_argument("sigma", "> 0", -1.0)
    'sigma: expected > 0, got -1.0'
    """
    return f"{argument}: expected {wanted}, got {got}"


def as_tensor(argument: str, value: Any, *, like: Tensor | None = None) -> Tensor:
    """A tensor of `value`; Python and NumPy numbers take the floating dtype and device of `like`."""
    if isinstance(value, Tensor):
        return value
    try:
        tensor = torch.as_tensor(value, device=None if like is None else like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            bad_argument(argument, "a tensor or an array of numbers", type(value).__name__)
        ) from error
    if like is not None and like.is_floating_point() and tensor.is_floating_point():
        # Read again: torch takes Python's numbers for float32, and they would keep only its digits.
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return tensor


def check_floating(argument: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise TypeError(bad_argument(argument, "a floating-point tensor", value.dtype))


def check_finite(argument: str, value: Tensor) -> None:
    if value.is_floating_point():
        bad = ~torch.isfinite(value)
        if bool(bad.any()):
            first = value[bad][0].item()
            raise ValueError(
                bad_argument(argument, "finite values", f"{int(bad.sum())} that are not ({first})")
            )


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
    last place of the total, however many there are: summing happens in float64.
    """
    # bfloat16 has three digits, but weights that sum to 0.7 are wrong in any precision.
    return min(64 * torch.finfo(dtype).eps, 1 / 16)


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
        raise ValueError(bad_argument(argument, "non-negative values that sum to 1", _sum_of(worst)))


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
        raise ValueError(bad_argument(argument, "logarithms of weights that sum to 1", _sum_of(worst)))


def _sum_of(total: float) -> str:
    """As many digits as tell the sum from 1."""
    short = f"{total:.7g}"
    return f"a sum of {total if short == '1' else short}"


def check_choice(argument: str, value: object, choices: Iterable[object]) -> None:
    options = list(choices)
    if value not in options:
        raise ValueError(bad_argument(argument, "one of " + ", ".join(map(repr, options)), repr(value)))


def check_count(argument: str, value: object, wanted: str | None = None, *, least: int = 1) -> int:
    """A whole number of any type, as a Python int; `wanted` is what the message says instead."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(bad_argument(argument, wanted or f"a whole number ≥ {least}", repr(value)))
    return int(value)


def check_label(argument: str, value: Tensor, n: int) -> None:
    """Integer labels in 0 … n−1."""
    if value.numel() and not (0 <= int(value.min()) and int(value.max()) < n):
        outside = value[(value < 0) | (value >= n)][0].item()
        raise ValueError(bad_argument(argument, f"labels in 0 … {n - 1}", outside))


def is_integer(value: Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
