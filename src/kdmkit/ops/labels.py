"""log p(label | x): one distance, one table of labels, one function: the training steps of classifiers.

The time of small steps is that of the calls, so there are few operations. On a CPU, numbers are read to see
whether float32 is enough. On other devices nothing is read, since reading waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.runtime import compiles_reverse_mode, only_reverse_mode
from kdmkit._core.tensors import full_precision
from kdmkit.ops import dense
from kdmkit.ops.dense import reduce_scores_given, sum_scores
from kdmkit.ops.recomputed import differentiable_gradients
from kdmkit.ops.scaled_points import ScaledPoints, narrow_product_transposed
from kdmkit.ops.terms import Amplitudes, Lookup, SquaredDistance, Term, robust_centre

# p(x, y) uses the exponentials of p(x), which are exact to 1e-38 of the largest, if p(y|x) is above this.
MIN_LABEL_PROBABILITY = 1e-12
# With more labels than this, selecting one score per query is cheaper than a product with all of them.
MAX_LABELS = 64
# Squares of amplitudes lose no digits, and do not overflow, while their sums are between these.
_LEAST_SQUARES, _LARGEST_SQUARES = 1e-20, 1e30


def log_labels_given(
    distance: Term, labels: Term, log_weights: Float[Tensor, "*weights m"]
) -> Float[Tensor, " n"] | None:
    """log Σ_j w_j p_j(label) / Σ_j w_j with w_j = exp(log_weights_j + distance_j): the second sum of
    `log_mix_given` for usual arguments.

    Args:
        distance: a squared distance of points `(n, d)`.
        labels: a `Lookup` or `Amplitudes` of labels `(n, 1)`.
        log_weights: of shape `(m,)`.

    Returns:
        None if the arguments are not usual, or float32 loses digits.

    >>> x = SquaredDistance(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]]), torch.ones(1, 1))
    >>> labels = Amplitudes(torch.tensor([[1]]), torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    >>> log_labels_given(x, labels, torch.zeros(2)).exp()  # 0.7311·0.64
    tensor([0.4679])
    """
    if not isinstance(distance, SquaredDistance) or not isinstance(labels, Amplitudes | Lookup):
        return None
    are_amplitudes, codes = isinstance(labels, Amplitudes), labels.codes
    table = labels.amplitudes if isinstance(labels, Amplitudes) else labels.table
    query, components, on_cpu = distance.query, distance.components, distance.query.device.type == "cpu"
    largest = dense.LARGEST_ON_CPU if on_cpu else dense.LARGEST_ELSEWHERE
    is_usual = (
        # First: while others trace, comparisons of sizes would become conditions.
        (only_reverse_mode() or (not on_cpu and compiles_reverse_mode()))
        and query.dtype == components.dtype == table.dtype == log_weights.dtype == torch.float32
        and query.device.type == components.device.type == table.device.type
        and query.ndim == components.ndim == distance.scale.ndim == table.ndim == codes.ndim == 2
        and log_weights.ndim == 1
        and not distance.metric
        and table.shape[1] <= MAX_LABELS
        and 0 < query.shape[0] * components.shape[0] <= largest
    )
    if not is_usual or (on_cpu and torch.is_autocast_enabled("cpu")):
        return None
    log_probs: Tensor | None = (_LogLabels if on_cpu else _QueuedLabels).apply(
        are_amplitudes, query, components, distance.scale, log_weights, table, codes
    )
    return log_probs


class _LogLabels(torch.autograd.Function):
    """(are_amplitudes, query, components, scale, log_weights, table, codes) → log p(code | query), or None.

    `table` has a row per component: log-probabilities of labels, or amplitudes.
    """

    @staticmethod
    def forward(ctx: Any, are_amplitudes: bool, *inputs: Any) -> Tensor | None:
        query, components, scale, log_weights, table, codes = inputs
        points, norms = ScaledPoints.near(query, components, scale), None
        if points is None:
            return None
        if are_amplitudes:
            likelihood = table.square()
            norms = likelihood.sum(-1, keepdim=True)
            low, high = norms.aminmax()
            # False for NaN.
            if not (low.item() > _LEAST_SQUARES and high.item() < _LARGEST_SQUARES):
                return None
            likelihood.div_(norms)
        else:
            likelihood = table.exp()
        weights = torch.softmax(points.scores(log_weights), -1)
        probs = (likelihood.mT @ weights.mT).gather(0, codes.mT).squeeze(0)
        if not probs.amin().item() > MIN_LABEL_PROBABILITY:
            return None
        points.save(ctx, *inputs, likelihood, norms, weights, probs)
        return probs.log()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        points, (*inputs, likelihood, norms, weights, probs) = ScaledPoints.saved(ctx)
        needs, (table, codes) = ctx.needs_input_grad[1:], inputs[4:]
        if torch.is_grad_enabled():
            outputs = _differentiable_labels(norms is not None, *inputs)
            return None, *differentiable_gradients(outputs, inputs, needs, (gradient,))
        by_chosen, by_table = (gradient / probs).unsqueeze(-1), None
        chosen = scatter_by_code(codes, by_chosen, table)
        with full_precision("cpu"):
            if needs[4]:
                by_table = narrow_product_transposed(weights, chosen)
                by_table = _by_table(by_table, likelihood, norms, table)
            slopes = torch.addmm(gradient.unsqueeze(-1), chosen, likelihood.mT, beta=-1).mul_(weights)
            by_weights = slopes.sum(0)
            by_points = points.gradients(slopes, needs[:3], by_weights, rows_cancel=True)
        return None, *by_points, by_weights, by_table, None


class _QueuedLabels(torch.autograd.Function):
    """`_LogLabels` without a number that is read: labels may be as rare as they are.

    A device waits for every operation to be queued, so there are few, however small.
    """

    @staticmethod
    def forward(ctx: Any, are_amplitudes: bool, *inputs: Any) -> Tensor:
        query, components, scale, log_weights, table, codes = inputs
        with full_precision(query.device.type):
            centre = robust_centre(components)
            x, c = (query - centre).mul_(scale), (components - centre).mul_(scale)
            lengths = torch.linalg.vector_norm(c, dim=-1)
            bias = torch.addcmul(log_weights, lengths, lengths, value=-1)
            log_prior = torch.log_softmax(torch.addmm(bias, x, c.mT, alpha=2), -1)
            log_likelihood = torch.log_softmax(torch.xlogy(2, table.abs()), -1) if are_amplitudes else table
            together = log_likelihood.mT.index_select(0, codes.squeeze(-1)).add_(log_prior)
            posterior = torch.softmax(together, -1)
            # The largest entry of a softmax is 1 over the sum; NaN if the label is impossible.
            largest = posterior.amax(-1).nan_to_num_(1.0)
            log_probs = together.amax(-1).sub_(largest.log_())
        likelihood = log_likelihood if are_amplitudes else None
        ctx.save_for_backward(*inputs, x, c, log_prior, posterior, likelihood)
        return log_probs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        *inputs, x, c, log_prior, posterior, log_likelihood = ctx.saved_tensors
        needs, (scale, _, table, codes) = ctx.needs_input_grad[1:], inputs[2:]
        if torch.is_grad_enabled():
            outputs = _differentiable_labels(log_likelihood is not None, *inputs)
            return None, *differentiable_gradients(outputs, inputs, needs, (gradient,))
        by_query = by_components = by_scale = by_table = None
        with full_precision(gradient.device.type):
            # An impossible label, with NaN in its posterior, gives no gradient.
            by_joint = (posterior * gradient.unsqueeze(-1)).nan_to_num_(0.0)
            slopes = _log_softmax_gradient(by_joint, log_prior)
            if needs[4] and log_likelihood is None:
                by_table = by_joint.mT @ scatter_by_code(codes, 1.0, table)
            elif needs[4]:
                # log p is twice log |a|, and an amplitude of 0 stays.
                by_table = by_joint.mT @ scatter_by_code(codes, 2.0, table)
                by_table = _log_softmax_gradient(by_table, log_likelihood).div_(table)
                by_table.nan_to_num_(0.0, 0.0, 0.0)
            by_weights = slopes.sum(0)
            if needs[0]:
                # Slopes of a query add up to 0: its own distance to the centre drops out.
                by_query = (slopes @ c).mul_(2 * scale)
            if needs[1] or needs[2]:
                # Twice Σ_i slopes_ij x_i: with a factor of 0, `addmm` ignores its first argument.
                pulled = torch.addmm(c, slopes.mT, x, beta=0, alpha=2)
                column = by_weights.unsqueeze(-1)
                by_components = torch.addcmul(pulled, column, c, value=-2).mul_(scale)
                moments = torch.addcmul(pulled, column, c, value=-1).mul_(c)
                by_scale = moments.sum_to_size(scale.shape).div_(scale).mul_(2)
        return None, by_query, by_components, by_scale, by_weights, by_table, None


def _log_softmax_gradient(gradient: Tensor, log_softmax: Tensor) -> Tensor:
    """The gradient by scores, from that by their `log_softmax`, in one operation."""
    return torch._log_softmax_backward_data(gradient, log_softmax, -1, gradient.dtype)


def _by_table(by_likelihood: Tensor, likelihood: Tensor, norms: Tensor | None, table: Tensor) -> Tensor:
    """The gradient by log-probabilities, or, with norms, by amplitudes a: the likelihood is a²/norm."""
    if norms is None:
        return by_likelihood.mul_(likelihood)
    mean = (by_likelihood * likelihood).sum(-1, keepdim=True)
    return by_likelihood.sub_(mean).mul_(table).div_(norms).mul_(2)


def scatter_by_code(
    codes: Tensor, values: Float[Tensor, "n 1"] | float, table: Tensor
) -> Float[Tensor, "n k"]:
    """A matrix with value i in the column of code i, and zeros."""
    dtype = values.dtype if isinstance(values, Tensor) else table.dtype
    return codes.new_zeros(len(codes), table.shape[-1], dtype=dtype).scatter_(1, codes.long(), values)


def _differentiable_labels(are_amplitudes: bool, *inputs: Any) -> tuple[Tensor]:
    query, components, scale, log_weights, table, codes = inputs
    labels = Amplitudes(codes, table) if are_amplitudes else Lookup(codes, table)
    scores = sum_scores([SquaredDistance(query, components, scale).prepared()], log_weights)
    return (reduce_scores_given(scores, scores + labels.matrix())[1].to(query.dtype),)
