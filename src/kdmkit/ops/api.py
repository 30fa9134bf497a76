"""The two reductions that everything uses, and the choice of a backend."""

import math
from collections.abc import Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice
from kdmkit._core.precision import full_precision
from kdmkit.ops.by_hand import applies, both_by_hand, reduce_by_hand
from kdmkit.ops.chunked import chunked
from kdmkit.ops.dense import dense, dense_both, reference
from kdmkit.ops.terms import Term, total_shape
from kdmkit.ops.triton_backend import (
    KernelError,
    check_usable,
    fused,
    give_up,
    usable_or_warn,
    why_unsupported,
)

Backend = Literal["auto", "reference", "torch", "chunked", "triton"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "torch", "chunked", "triton")

# Beyond this many pairs the matrix of scores costs more in memory traffic than recomputing it does.
_DENSE_PAIRS = {"cpu": 1 << 22}
_DENSE_PAIRS_DEFAULT = 1 << 24


def choose_backend(
    terms: Sequence[Term], log_weights: Tensor | None = None, values: Tensor | None = None
) -> Literal["torch", "chunked", "triton"]:
    """The backend that `auto` means: whole matrices while they are small, then Triton on a CUDA device.

    Without `log_weights` the answer is by shape alone, never `"triton"`.
    """
    lead, n, m = total_shape(terms)
    device = terms[0].tensors[0].device.type
    if math.prod(lead) * n * m <= _DENSE_PAIRS.get(device, _DENSE_PAIRS_DEFAULT):
        return "torch"
    if (
        log_weights is not None
        and log_weights.device.type == "cuda"
        and why_unsupported(terms, log_weights, values) is None
        and usable_or_warn("cuda")
    ):
        return "triton"
    return "chunked"


def log_mix(
    terms: Term | Sequence[Term],
    log_weights: Float[Tensor, "*weights m"],
    *,
    backend: Backend = "auto",
    block: tuple[int, int] | None = None,
) -> Float[Tensor, "*lead n"]:
    """log Σ_j exp(log_weights_j + Σ_terms scores_ij) for every query i.

    Args:
        terms: one term, or several whose scores add; queries `(*lead, n, k)`, components `(*lead, m, k)`.
        log_weights: of shape `(m,)`, or `(*lead, 1, m)` per batch, or `(*lead, n, m)` per query.
        backend: `"reference"` materialises differences of all pairs and is the oracle; `"torch"` is one
            matrix product; `"chunked"` bounds memory; `"triton"` does too, for squared distances on a CUDA
            device in float32 or less; `"auto"` chooses by shape, dtype and device.
        block: queries and components per block of the chunked backend.

    Returns:
        Of shape `(*lead, n)`; −∞ where a query meets no component.

    >>> import torch
    >>> import kdmkit as kdm
    >>> x, c = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> log_mix(kdm.RBF(1.0).term(x, c), torch.tensor([0.5, 0.5]).log()).exp()
    tensor([0.6839])
    """
    return _reduce(terms, log_weights, None, backend, block)[1]


def log_mix_both(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Float[Tensor, "*lead n"], Float[Tensor, "*lead n"]]:
    """`log_mix` of some terms, and of those and more: what a conditional log-probability is made of.

    Small problems compute the common scores once.
    """
    together = [*terms, *more]
    _check_shapes(together, log_weights, None)
    if choose_backend(together, log_weights) != "torch":
        return log_mix(terms, log_weights), log_mix(together, log_weights)
    with full_precision(log_weights.device.type):
        both = both_by_hand if applies(together, log_weights) else dense_both
        return both(terms, more, log_weights)


def attend(
    terms: Term | Sequence[Term],
    log_weights: Float[Tensor, "*weights m"],
    values: Float[Tensor, "*#lead m v"],
    *,
    backend: Backend = "auto",
    block: tuple[int, int] | None = None,
) -> tuple[Float[Tensor, "*#lead n v"], Float[Tensor, "*#lead n"]]:
    """Averages of `values` under softmax_j(log_weights_j + scores_ij), and the logsumexp of `log_mix`.

    Args:
        terms, log_weights, backend, block: as in `log_mix`.
        values: of shape `(*lead, m, v)`.

    Returns:
        Averages `(*lead, n, v)`, 0 where a query meets no component, and logsumexps `(*lead, n)`.

    >>> import torch
    >>> import kdmkit as kdm
    >>> x, c = torch.zeros(1, 1), torch.tensor([[-1.0], [1.0]])
    >>> attend(kdm.RBF(1.0).term(x, c), torch.zeros(2), torch.tensor([[0.0], [8.0]]))[0]
    tensor([[4.]])
    """
    averages, lse = _reduce(terms, log_weights, values, backend, block)
    assert averages is not None
    return averages, lse


def _reduce(
    terms: Term | Sequence[Term],
    log_weights: Tensor,
    values: Tensor | None,
    backend: Backend,
    block: tuple[int, int] | None,
) -> tuple[Tensor | None, Tensor]:
    terms = [terms] if isinstance(terms, Term) else list(terms)
    check_choice("backend", backend, BACKENDS)
    _check_shapes(terms, log_weights, values)
    if block is not None and min(block) < 1:
        raise ValueError(bad_argument("block", "two positive numbers", block))
    if backend == "triton":
        check_usable(terms, log_weights, values)
    with full_precision(log_weights.device.type):
        if backend == "auto":
            return _automatic(terms, log_weights, values, block)
        if backend == "triton":
            return fused(terms, log_weights, values)
        if backend == "reference":
            return reference(terms, log_weights, values)
        if backend == "torch":
            return _dense(terms, log_weights, values)
        return chunked(terms, log_weights, values, block)


def _dense(terms: Sequence[Term], log_weights: Tensor, values: Tensor | None) -> tuple[Tensor | None, Tensor]:
    whole = reduce_by_hand if applies(terms, log_weights, values) else dense
    return whole(terms, log_weights, values)


def _automatic(
    terms: Sequence[Term], log_weights: Tensor, values: Tensor | None, block: tuple[int, int] | None
) -> tuple[Tensor | None, Tensor]:
    backend = choose_backend(terms, log_weights, values)
    if backend == "torch":
        return _dense(terms, log_weights, values)
    if backend == "triton":
        try:
            return fused(terms, log_weights, values)
        except KernelError as error:
            give_up(log_weights.device.type, error)
    return chunked(terms, log_weights, values, block)


def _check_shapes(terms: Sequence[Term], log_weights: Tensor, values: Tensor | None) -> None:
    if not terms:
        raise ValueError(bad_argument("terms", "at least one", "none"))
    _, n, m = total_shape(terms)
    if m == 0:
        raise ValueError(bad_argument("terms", "at least one component", 0))
    if log_weights.shape[-1:] != (m,) or (log_weights.ndim > 1 and log_weights.shape[-2] not in (1, n)):
        raise ValueError(
            bad_argument("log_weights", f"shape ({m},) or (..., 1 or {n}, {m})", tuple(log_weights.shape))
        )
    if values is not None and (values.ndim < 2 or values.shape[-2] != m):
        raise ValueError(bad_argument("values", f"shape (..., {m}, v)", tuple(values.shape)))
