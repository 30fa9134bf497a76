"""The reductions that everything uses, and the table of their implementations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import check_choice
from kdmkit._core.runtime import is_exporting
from kdmkit._core.tensors import full_precision
from kdmkit.ops import chunked, chunked_cpu, dense, dense_explicit
from kdmkit.ops.blocks import Block
from kdmkit.ops.terms import Reduction, Result, Term, total_shape
from kdmkit.ops.triton import backend as triton

Backend = Literal["auto", "reference", "torch", "chunked", "triton"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "torch", "chunked", "triton")


def _is_small(reduction: Reduction) -> bool:
    """Whether the matrix of scores is computed at once."""
    if is_exporting():
        return True
    lead, n, m = reduction.shape
    largest = dense.LARGEST_ON_CPU if reduction.device_type == "cpu" else dense.LARGEST_ELSEWHERE
    return math.prod(lead) * n * m <= largest


@dataclass(frozen=True)
class Implementation:
    """One way to compute a reduction.

    Args:
        name: a unique name.
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
        chunked.reduce_given
    )
    supports: Callable[[Reduction], str | None] = lambda reduction: None
    automatic: Callable[[Reduction], bool] = lambda reduction: True


#: In the order of preference. `chunked` supports everything, so `auto` never chooses the reference.
IMPLEMENTATIONS = (
    Implementation(
        "dense, explicit gradients",
        "torch",
        dense_explicit.reduce,
        dense_explicit.reduce_given,
        dense_explicit.supports,
        _is_small,
    ),
    Implementation(
        "chunked, scales per component",
        "chunked",
        chunked_cpu.reduce_per_component,
        supports=chunked_cpu.supports_per_component,
        automatic=chunked_cpu.is_worthwhile_per_component,
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
    check_choice("backend", backend, BACKENDS)
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
        # Importing this imports the compiler, which takes seconds: only if someone compiles.
        from kdmkit.ops.compiled import reduce_in_blocks

        return reduce_in_blocks(reduction)
    return implementation.run(reduction)


def reduce_given(terms: Sequence[Term], more: Sequence[Term], together: Reduction) -> tuple[Tensor, Tensor]:
    """The logsumexp of `terms`, and that of `together`, which has `more` terms, less it."""
    implementation = choose(together)
    if implementation.backend == "chunked" and torch.compiler.is_compiling():
        from kdmkit.ops.compiled import reduce_given_in_blocks

        return reduce_given_in_blocks(terms, more, together.log_weights)
    return implementation.run_given(terms, more, together.log_weights)


def choose_backend(
    terms: Sequence[Term], log_weights: Tensor | None = None, values: Tensor | None = None
) -> Literal["torch", "chunked", "triton"]:
    """The backend that `"auto"` means: whole matrices while they are small, then Triton on a CUDA device.

    Without `log_weights` the answer is by shape alone, never `"triton"`.

    Args:
        terms: the terms of the reduction.
        log_weights: ℓ, of shape `(m,)` or `(*lead, m)`.
        values: the values of `attend`, of shape `(m, v)`; None for `log_mix`.

    Returns:
        The name of a backend.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(9, 1), torch.zeros(4, 1), torch.ones(1, 1))
    >>> choose_backend([term], torch.zeros(4))
    'torch'
    """
    if log_weights is None:
        # On a CPU: Triton supports no weights beside tensors on another device.
        log_weights = torch.zeros(()).expand(total_shape(terms)[2])
    backend = choose(Reduction(terms, log_weights, values)).backend
    return cast(Literal["torch", "chunked", "triton"], backend)


def log_mix(
    terms: Term | Sequence[Term],
    log_weights: Float[Tensor, "*weights m"],
    *,
    backend: Backend = "auto",
    block: Block | None = None,
) -> Float[Tensor, "*lead n"]:
    """log Σ_j exp(log_weights_j + Σ_terms scores_ij) for every query i.

    Args:
        terms: one term, or several whose scores add; queries `(*lead, n, k)`, components `(*lead, m, k)`.
        log_weights: of shape `(m,)`, or `(*lead, 1, m)` per batch, or `(*lead, n, m)` per query. Numbers are
            not checked: NaN gives NaN.
        backend: `"reference"` computes the differences of all pairs and is the oracle of tests; `"torch"`
            is one matrix product; `"chunked"` bounds memory; `"triton"` does too, for squared distances on a
            CUDA device in float32 or less; `"auto"` chooses by shape, dtype and device.
        block: queries and components per block of the chunked backend.

    Returns:
        Of shape `(*lead, n)`; −∞ where all scores of a query are −∞.

    >>> import torch
    >>> import kdmkit as kdm
    >>> x, c = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> log_mix(kdm.RBF(1.0).term(x, c), torch.tensor([0.5, 0.5]).log()).exp()
    tensor([0.6839])
    """
    return _reduce(terms, log_weights, None, backend, block)[1]


def log_mix_given(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Float[Tensor, "*lead n"], Float[Tensor, "*lead n"]]:
    """`log_mix` of `terms`, and that of `terms` and `more` less it: a conditional log-probability.

    The difference of two calls of `log_mix` would be rounded to their size, which far from all components
    exceeds every conditional log-probability. Here the largest score is taken out first.

    Args:
        terms: of the evidence.
        more: of the target.
        log_weights: ℓ, of shape `(m,)` or `(*lead, m)`.

    Returns:
        Both of shape `(*lead, n)`, −∞ where all scores of a query are −∞.

    >>> from kdmkit.ops import SquaredDistance
    >>> components = torch.tensor([[0.0], [1.0]])
    >>> x, y = (SquaredDistance(torch.tensor([[at]]), components, torch.ones(1, 1)) for at in (0.0, 1.0))
    >>> log_evidence, log_conditional = log_mix_given([x], [y], torch.tensor([0.5, 0.5]).log())
    >>> log_conditional.exp()  # 0.7311·exp(−1) + 0.2689
    tensor([0.5379])
    """
    terms, more = _summands(terms), _summands(more)
    together = Reduction([*terms, *more], log_weights)
    with full_precision(together.device_type):
        lse, conditional = reduce_given(terms, more, together)
    return lse.expand(conditional.shape), conditional


def attend(
    terms: Term | Sequence[Term],
    log_weights: Float[Tensor, "*weights m"],
    values: Float[Tensor, "*#lead m v"],
    *,
    backend: Backend = "auto",
    block: Block | None = None,
) -> tuple[Float[Tensor, "*#lead n v"], Float[Tensor, "*#lead n"]]:
    """Averages of `values` under softmax_j(log_weights_j + scores_ij), and the logsumexp of `log_mix`.

    Args:
        terms, log_weights, backend, block: as in `log_mix`.
        values: of shape `(*lead, m, v)`.

    Returns:
        Averages `(*lead, n, v)`, 0 where all scores of a query are −∞, and logsumexps `(*lead, n)`.

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
    block: Block | None,
) -> Result:
    summands = _summands([terms] if isinstance(terms, Term) else terms)
    reduction = Reduction(summands, log_weights, values, block)
    with full_precision(reduction.device_type):
        return reduce(reduction, backend)


def _summands(terms: Sequence[Term]) -> list[Term]:
    """The summands of all terms; `Reduction` refuses objects that are no terms."""
    return [part for term in terms for part in (term.summands() if isinstance(term, Term) else [term])]
