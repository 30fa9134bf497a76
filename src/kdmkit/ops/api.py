"""The two reductions that everything uses, and the choice of a backend."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import check_choice
from kdmkit._core.tensors import full_precision
from kdmkit.ops.blocks import Block
from kdmkit.ops.implementations import BACKENDS, Backend, choose, reduce, reduce_given
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import Term, total_shape


def choose_backend(
    terms: Sequence[Term], log_weights: Tensor | None = None, values: Tensor | None = None
) -> Literal["torch", "chunked", "triton"]:
    """The backend that `"auto"` means: whole matrices while they are small, then Triton on a CUDA device.

    Without `log_weights` the answer is by shape alone, never `"triton"`.

    Args:
        terms: of the reduction.
        log_weights: ℓ, of shape `(m,)` or `(*lead, m)`.
        values: of `attend`, of shape `(m, v)`; None for `log_mix`.

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
        terms: of what is known.
        more: of what is asked for.
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
    together.check()
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
    check_choice("backend", backend, BACKENDS)
    summands = _summands([terms] if isinstance(terms, Term) else terms)
    reduction = Reduction(summands, log_weights, values, block)
    reduction.check()
    with full_precision(reduction.device_type):
        return reduce(reduction, backend)


def _summands(terms: Sequence[Term]) -> list[Term]:
    """The summands of all terms; what is no term is left for `Reduction.check` to refuse."""
    return [part for term in terms for part in (term.summands() if isinstance(term, Term) else [term])]
