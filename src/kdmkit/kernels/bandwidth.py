"""A positive scale with a lower bound, trainable or not."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_positive

# Relative to the given bandwidth: a bound that no sensible fit meets before data sets a better one.
_TINY = 1e-6


def as_bandwidth(name: str, value: Any) -> Tensor:
    """Positive floating values; plain numbers in float64, so that they lose nothing."""
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(bad_argument(name, "a number or a tensor", repr(value))) from error
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    check_positive(name, tensor)
    return tensor


class Bandwidth(nn.Module):
    """value = minimum + exp(raw).

    The lower bound keeps maximum likelihood well posed: without it a component that sits on a sample grows
    without limit as its bandwidth goes to zero.

    Args:
        name: how error messages call it.
        value: a positive number or tensor. Plain numbers are kept in float64 so that they lose nothing.
        minimum: the lower bound; None is a millionth of the smallest value.
        trainable: whether `raw` asks for gradients.
        max_dim: 1 for a number or `(d,)`; 2 admits `(m, 1)` and `(m, d)`, one row per component.

    >>> Bandwidth("sigma", 0.3).value
    tensor(0.3000, dtype=torch.float64)
    """

    raw: nn.Parameter
    minimum: Tensor

    def __init__(
        self,
        name: str,
        value: Any,
        minimum: float | None = None,
        *,
        trainable: bool = False,
        max_dim: int = 1,
    ) -> None:
        super().__init__()
        self.name = name
        tensor = as_bandwidth(name, value)
        if tensor.ndim > max_dim:
            shapes = "(), (d,), (m, 1) or (m, d)" if max_dim == 2 else "() or (d,)"
            raise ValueError(bad_argument(name, f"shape {shapes}", tuple(tensor.shape)))
        bound = _TINY * float(tensor.min()) if minimum is None else float(minimum)
        if not 0 <= bound < float(tensor.min()):
            raise ValueError(
                bad_argument(f"{name}_min", f"0 ≤ {name}_min < {name} ({float(tensor.min()):g})", bound)
            )
        self.register_buffer("minimum", torch.tensor(bound, dtype=tensor.dtype))
        self.raw = nn.Parameter((tensor - bound).log(), requires_grad=trainable)

    @property
    def value(self) -> Float[Tensor, "*shape"]:
        return self.minimum + self.raw.exp()

    @value.setter
    def value(self, value: Any) -> None:
        tensor = as_bandwidth(self.name, value).to(self.raw)
        shape, given = self.raw.shape, tensor.shape
        pairs = zip(reversed(given), reversed(shape), strict=False)
        if len(given) > len(shape) or any(a not in (1, b) for a, b in pairs):
            raise ValueError(bad_argument(self.name, f"shape {tuple(shape)}", tuple(given)))
        if bool((tensor <= self.minimum).any()):
            wanted = f"> {self.name}_min ({self.minimum.item():g})"
            raise ValueError(bad_argument(self.name, wanted, f"{tensor.min().item():g}"))
        with torch.no_grad():
            self.raw.copy_((tensor - self.minimum).log().expand_as(self.raw))

    def bound(self, minimum: float) -> None:
        """Sets a new lower bound; values at or below it move just above."""
        if not 0 <= minimum < math.inf:
            raise ValueError(bad_argument(f"{self.name}_min", "a finite number ≥ 0", minimum))
        value = self.value.detach()
        with torch.no_grad():
            self.minimum.fill_(minimum)
            self.raw.copy_((value - minimum).clamp_min(_TINY * max(minimum, float(value.min()))).log())

    @property
    def shape(self) -> torch.Size:
        return self.raw.shape

    @property
    def per_component(self) -> bool:
        return len(self.shape) >= 2


class Widened(Bandwidth):
    """A bandwidth with independent noise on top: value² = base² + extra, for every element of a batch.

    Args:
        base: what is widened.
        extra: `(*batch, m, d)`, in squares of the base's unit.
    """

    extra: Tensor

    def __init__(self, base: Bandwidth, extra: Float[Tensor, "*batch m d"]) -> None:
        nn.Module.__init__(self)
        self.name, self.base = base.name, base
        self.register_buffer("minimum", base.minimum, persistent=False)
        self.register_buffer("extra", extra, persistent=False)

    @property
    def value(self) -> Float[Tensor, "*batch m d"]:
        base = self.base.value
        # Where nothing is added, nothing changes, and the root of zero would have no derivative.
        added = self.extra > 0
        root = torch.where(added, self.extra, torch.ones_like(self.extra)).sqrt()
        return torch.where(added, torch.hypot(base, root), base)

    @value.setter
    def value(self, value: Any) -> None:
        raise AttributeError(f"{self.name}: a widened kernel follows the one that it was made from")

    @property
    def shape(self) -> torch.Size:
        return self.extra.shape

    def arranged(self, place: Callable[[Tensor], Tensor]) -> Widened:
        """With other leading dimensions."""
        base = self.base.arranged(place) if isinstance(self.base, Widened) else self.base
        return Widened(base, place(self.extra))

    def __deepcopy__(self, memo: Any) -> Widened:
        # Extra may be a result that carries gradients, which torch does not copy.
        return Widened(copy.deepcopy(self.base, memo), self.extra)
