"""The table of implementations, and the choice of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kdmkit._core.runtime import is_exporting
from kdmkit.ops import chunked, chunked_components, chunked_cpu, chunked_given, dense, dense_explicit
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import Term
from kdmkit.ops.triton import backend as triton

Backend = Literal["auto", "reference", "torch", "chunked", "triton"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "torch", "chunked", "triton")

# Beyond this many pairs the matrix of scores costs more in memory traffic than recomputing it does.
_DENSE_PAIRS = {"cpu": 1 << 22}
_DENSE_PAIRS_DEFAULT = 1 << 24


def fits_dense(pairs: int, device_type: str) -> bool:
    """Whether a matrix of so many scores is computed at once."""
    return pairs <= _DENSE_PAIRS.get(device_type, _DENSE_PAIRS_DEFAULT)


def _is_small(reduction: Reduction) -> bool:
    if is_exporting():
        return True
    lead, n, m = reduction.shape
    return fits_dense(math.prod(lead) * n * m, reduction.device_type)


@dataclass(frozen=True)
class Implementation:
    """One way to compute a reduction.

    Args:
        name: tells the implementations of one backend apart.
        backend: the argument `backend` that selects it.
        run: computes the reduction.
        run_given: computes `log_mix_given` of terms, more terms and log-weights.
        supports: returns why the implementation cannot compute a reduction, None if it can.
        automatic: whether `"auto"` takes the implementation for a reduction that it supports.
    """

    name: str
    backend: Backend
    run: Callable[[Reduction], Result]
    run_given: Callable[[Sequence[Term], Sequence[Term], Tensor], tuple[Tensor, Tensor]] = (
        chunked_given.reduce
    )
    supports: Callable[[Reduction], str | None] = lambda reduction: None
    automatic: Callable[[Reduction], bool] = lambda reduction: True


#: In the order of preference. `chunked` supports everything, so that `auto` never comes to the reference.
IMPLEMENTATIONS = (
    Implementation(
        "chunked, scales per component",
        "chunked",
        chunked_components.reduce,
        supports=chunked_components.supports,
        automatic=chunked_components.is_worthwhile,
    ),
    Implementation(
        "dense, explicit gradients",
        "torch",
        dense_explicit.reduce,
        dense_explicit.reduce_given,
        dense_explicit.supports,
        _is_small,
    ),
    Implementation("dense", "torch", dense.reduce, dense.reduce_given, automatic=_is_small),
    Implementation("triton", "triton", triton.reduce, supports=triton.supports, automatic=triton.is_usable),
    Implementation("chunked on a CPU", "chunked", chunked_cpu.reduce, supports=chunked_cpu.supports),
    Implementation("chunked", "chunked", chunked.reduce),
    Implementation("reference", "reference", dense.reduce_exact),
)


def choose(reduction: Reduction, backend: Backend = "auto") -> Implementation:
    """The first implementation of the backend that supports the reduction; raises the reason if none does."""
    reason = None
    for implementation in IMPLEMENTATIONS:
        if backend in ("auto", implementation.backend):
            reason = implementation.supports(reduction)
            if reason is None and (backend != "auto" or implementation.automatic(reduction)):
                return implementation
    raise ValueError(f'backend "{backend}": {reason}')


def reduce(reduction: Reduction, backend: Backend) -> Result:
    """The result of the chosen implementation; `"auto"` does without Triton once a kernel has failed."""
    implementation = choose(reduction, backend)
    if backend == "auto" and implementation.backend == "triton":
        try:
            return implementation.run(reduction)
        except triton.KernelError as error:
            triton.give_up(reduction.device_type, error)
        implementation = choose(reduction)
    if implementation.backend == "chunked" and torch.compiler.is_compiling():
        # Importing this imports the compiler, which takes seconds: only where someone compiles.
        from kdmkit.ops.untraced import reduce_in_blocks

        return reduce_in_blocks(reduction)
    return implementation.run(reduction)


def reduce_given(terms: Sequence[Term], more: Sequence[Term], together: Reduction) -> tuple[Tensor, Tensor]:
    """The logsumexp of `terms`, and that of `together`, which has `more` terms, less it."""
    implementation = choose(together)
    if implementation.backend == "chunked" and torch.compiler.is_compiling():
        from kdmkit.ops.untraced import reduce_given_in_blocks

        return reduce_given_in_blocks(terms, more, together.log_weights)
    return implementation.run_given(terms, more, together.log_weights)
