"""Evidence on a tree: posteriors of its states, weights of one node's components, conditional densities."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import finite_max, log_normalize, safe_log, safe_logsumexp
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.arguments import BatchIndex
from kdmkit.distributions.base import PartMap, cached_per_grad_mode
from kdmkit.distributions.component_scores import Values
from kdmkit.distributions.evidence import with_rank
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.tree.sources import (
    Pieces,
    RowFunction,
    ScorePieces,
    ScoreSource,
    Source,
    all_scores,
    in_blocks,
    paired,
)
from kdmkit.distributions.tree.states import (
    Scores,
    States,
    add_scores,
    log_conditional,
    log_total,
    may_be_true,
    possible,
    with_shift,
)
from kdmkit.distributions.weights import Given, Weights, mix_points


class Conditioned:
    """A tree and evidence on it; answers are computed when they are first needed.

    Evidence of probability zero changes nothing: the distribution stays the prior one, and `log_evidence`
    is −∞.

    Args:
        states: the tree before the evidence.
        pieces: the evidence.
        log_evidence: given if it is not that of the pieces under `states`.
        all_nodes: whether posteriors of all nodes are computed together when one is needed.
    """

    def __init__(
        self,
        states: States,
        pieces: Pieces,
        log_evidence: Float[Tensor, "*batch"] | None = None,
        all_nodes: bool = False,
    ) -> None:
        self.states, self.pieces, self._log_evidence = states, pieces, log_evidence
        self._all_nodes = all_nodes
        self.batch_shape = broadcast(states.batch_shape, pieces.batch_shape)

    def in_blocks(self, function: RowFunction, rank: int = 0, *more: Sequence[Source]) -> tuple[Tensor, ...]:
        """`function` of the scores of the evidence and a constant per row, for blocks of rows.

        Args:
            rank: the least number of dimensions after the one that counts pieces.
            more: groups of other sources, whose scores `function` takes too.
        """
        rank = max(rank, self.pieces.rank, len(self.states.batch_shape))
        groups = [self.pieces.sources(rank), *more]
        return in_blocks(function, groups, self.states.sizes, self.states.batch_shape)

    @cached_per_grad_mode
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l p(evidence_l)."""
        if self._log_evidence is not None:
            return self._log_evidence
        (totals,) = self.in_blocks(lambda scores, tops: (log_total(self.states, scores, tops),))
        return self._evidence(totals)

    # ---- the distribution of states and of values

    def log_posterior(self, node: int) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch"]]:
        """log Σ_l p_l p(z_node | evidence_l), and log p(evidence), from one pass of messages."""
        if self._all_nodes and not torch.is_grad_enabled() and not self.states.batch_shape:
            log_evidence, *posteriors = self._everywhere
            return posteriors[node], log_evidence

        def both(scores: Scores, tops: Any) -> tuple[Tensor, Tensor]:
            beta, shift = self.states.collect(scores, node)
            return log_normalize(beta), with_shift(safe_logsumexp(beta), shift + tops)

        log_posteriors, totals = self.in_blocks(both)
        return self._posterior(node, log_posteriors), self._evidence(totals)

    @cached_per_grad_mode
    def _everywhere(self) -> list[Float[Tensor, "..."]]:
        """log p(evidence), and log p(z | evidence) of every node."""

        def every(scores: Scores, tops: Any) -> tuple[Tensor, ...]:
            betas, shift = self.states.collect_everywhere(scores)
            total = with_shift(safe_logsumexp(betas[0]), shift + tops)
            return total, *[log_normalize(beta) for beta in betas]

        totals, *log_posteriors = self.in_blocks(every)
        posteriors = [self._posterior(node, one) for node, one in enumerate(log_posteriors)]
        return [self._evidence(totals), *posteriors]

    def _evidence(self, totals: Float[Tensor, "l *values"]) -> Float[Tensor, "*batch"]:
        if self._log_evidence is not None:
            return self._log_evidence
        return mix_points(totals, self.pieces.log_weights).expand(self.batch_shape)

    def _posterior(
        self, node: int, log_posteriors: Float[Tensor, "l *values k"]
    ) -> Float[Tensor, "*batch k"]:
        """The mixture of posteriors over the pieces; a piece of probability zero gives the prior."""
        missed = torch.isneginf(log_posteriors).all(-1, keepdim=True)
        if may_be_true(missed):
            prior = self.states.log_prior(node).to(log_posteriors.dtype)
            log_posteriors = torch.where(missed, prior, log_posteriors)
        weights = self.pieces.log_weights
        mixed = log_posteriors.squeeze(0) if weights is None else mix_pieces(log_posteriors, weights)
        return mixed.expand(*self.batch_shape, mixed.shape[-1])

    def for_all_nodes(self) -> Conditioned:
        """The same, for questions about several nodes."""
        return Conditioned(self.states, self.pieces, self._log_evidence, all_nodes=True)

    def log_prob(self, sources: Sequence[Source]) -> Float[Tensor, "*lead"]:
        """log Σ_l p_l p(values | evidence_l) of values with leading dimensions `lead`."""

        def conditional(given: Scores, _: Any, scores: Scores, tops: Any) -> tuple[Tensor]:
            return (log_conditional(self.states, given, scores, tops),)

        # The dimension that counts pieces comes in front of every leading dimension of the values.
        rank = max(len(source.lead) for source in sources)
        (log_probs,) = self.in_blocks(conditional, rank, sources)
        return mix_points(log_probs, self.pieces.log_weights)

    # ---- the evidence as numbers

    @cached_per_grad_mode
    def factors(self) -> list[Float[Tensor, "..."] | None]:
        """log p(evidence_l | z) of every node up to constants; 0 for pieces of probability zero."""
        return possible(self.states, self._scores()[0])

    def point_sources(self) -> tuple[list[Source], Float[Tensor, "*batch"]]:
        """The evidence of one piece, without the dimension of pieces, and its log-probability."""
        if self.pieces.log_weights is not None or self.states.batch_shape:
            got = "weighted points, or a batch of trees"
            raise ValueError(bad_argument("evidence of the tree", "points or regions of one tree", got))
        factors = enumerate(self.factors)
        sources: list[Source] = [ScoreSource.of(node, f.squeeze(0)) for node, f in factors if f is not None]
        return sources, log_total(self.states, *all_scores(len(self.factors), sources))

    def _scores(self) -> tuple[list[Tensor | None], Tensor | float]:
        rank = max(self.pieces.rank, len(self.states.batch_shape))
        return all_scores(len(self.states.topology.nodes), self.pieces.sources(rank))

    def and_then(self, pieces: Pieces) -> Conditioned:
        """The tree with later evidence in addition to this.

        The weight of each piece of the earlier evidence changes by the factor p(later | earlier).
        """
        later = Conditioned(self.states, pieces)
        scores, tops = later._scores()
        old, new = paired(self.factors, scores)
        rank = max(score.ndim for score in (*old, *new) if score is not None)
        added = with_rank(torch.as_tensor(tops), rank - 2).unsqueeze(0)
        likelihoods = log_conditional(self.states, old, new, added)
        batch = broadcast(self.batch_shape, later.batch_shape)
        pairs = likelihoods.expand(*likelihoods.shape[:2], *batch)
        first = _in_front(self.pieces.log_weights, batch, pairs).unsqueeze(1)
        second = _in_front(pieces.log_weights, batch, pairs)
        given_second = safe_logsumexp((pairs + first).movedim(0, -1))
        missed = torch.isneginf(given_second)
        changed = pairs + first - torch.where(missed, 0.0, given_second)
        weights = (torch.where(missed, first, changed) + second).flatten(0, 1).movedim(0, -1)
        impossible = torch.isneginf(likelihoods).unsqueeze(-1)
        factors = {}
        for node, (a, b) in enumerate(zip(old, new, strict=True)):
            both = add_scores(a, None if b is None else torch.where(impossible, torch.zeros_like(b), b))
            if both is not None:
                factors[node] = both.expand(*pairs.shape[:2], *both.shape[2:]).flatten(0, 1)
        log_evidence = safe_logsumexp((given_second + second).movedim(0, -1))
        one = self.pieces.log_weights is None and pieces.log_weights is None
        return Conditioned(self.states, ScorePieces(factors, None if one else weights), log_evidence)

    # ---- copies

    def pruned(self, nodes: Collection[int], variables: Sequence[str]) -> Conditioned:
        """The same on a tree without leaves that have neither evidence nor one of the variables."""
        states, order = self.states.subtree({*nodes, *self.pieces.nodes}, variables)
        position = {old: new for new, old in enumerate(order)}
        return Conditioned(states, self.pieces.renumbered(position), self._log_evidence, self._all_nodes)

    def mapped(self, function: PartMap) -> Conditioned:
        states, pieces = self.states.mapped(function), self.pieces.mapped(function)
        log_evidence = None if self._log_evidence is None else function(self._log_evidence)
        return Conditioned(states, pieces, log_evidence, self._all_nodes)

    def at(self, index: BatchIndex) -> Conditioned:
        log_evidence = None if self._log_evidence is None else index.choose(self._log_evidence, 0)
        return Conditioned(self.states.at(index), self.pieces.at(index), log_evidence, self._all_nodes)

    def expand(self, batch_shape: torch.Size) -> Conditioned:
        log_evidence = None if self._log_evidence is None else self._log_evidence.expand(batch_shape)
        return Conditioned(self.states, self.pieces.expand(batch_shape), log_evidence, self._all_nodes)

    def __reduce__(self) -> tuple[type[Conditioned], tuple[object, ...]]:
        """For pickle: without cached values, whose gradients would lead nowhere."""
        return Conditioned, (self.states, self.pieces, self._log_evidence, self._all_nodes)


def mix_pieces(
    log_values: Float[Tensor, "l *values k"], log_weights: Float[Tensor, "*batch l"]
) -> Float[Tensor, "*both k"]:
    """log Σ_l p_l exp(log_values_l): one product if all elements of the batch share the pieces.

    Sums that underflow in float64 are computed by logsumexp.
    """
    k = log_values.shape[-1]
    if log_values[0].numel() == k:
        values, weights = log_values.reshape(-1, k).double(), log_weights.double()
        top, most = finite_max(values.mT).squeeze(-1), finite_max(weights)
        product = torch.matmul((weights - most).exp(), (values - top).exp())
        if not may_be_true((product == 0) & ~torch.isneginf(values).all(0)):
            return (safe_log(product) + top + most).to(log_values.dtype)
    weights = log_weights.unsqueeze(-2).to(log_values.dtype)
    return safe_logsumexp(log_values.movedim(0, -1) + weights)


def _in_front(
    log_weights: Float[Tensor, "*batch l"] | None, batch: torch.Size, like: Tensor
) -> Float[Tensor, "l *batch"]:
    """Log-weights with the dimension of the pieces in front; None stands for one piece."""
    if log_weights is None:
        return like.new_zeros(1, *batch)
    return log_weights.to(like.dtype).expand(*batch, log_weights.shape[-1]).movedim(-1, 0)


class NodeWeights(Weights):
    """The weights of one node's components, p(z_node | evidence), computed when they are first read.

    Args:
        tree: the states of the tree, or a condition on them.
        node: the position of the node.
        shape: the batch, if it is larger than the tree's.
    """

    def __init__(self, tree: States | Conditioned, node: int, shape: torch.Size | None = None) -> None:
        self._tree, self._node = tree, node
        self.batch_shape = tree.batch_shape if shape is None else shape

    @property
    def log_weights(self) -> Float[Tensor, "*batch k"]:
        log_weights = self._posterior[0]
        return log_weights.expand(*self.batch_shape, log_weights.shape[-1])

    @cached_per_grad_mode
    def _posterior(self) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch"] | None]:
        """log p(z_node | evidence) and log p(evidence); without evidence, log p(z_node) and None."""
        if isinstance(self._tree, Conditioned):
            return self._tree.log_posterior(self._node)
        return self._tree.log_prior(self._node), None

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        log_evidence = self._posterior[1] if isinstance(self._tree, Conditioned) else None
        return super().log_evidence if log_evidence is None else log_evidence.expand(self.batch_shape)

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        return Given(self.log_weights).average(values)

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return self.mix(entries)[1]

    def mapped(self, function: PartMap) -> NodeWeights:
        return NodeWeights(self._tree.mapped(function), self._node, self.batch_shape)

    def at(self, index: BatchIndex) -> NodeWeights:
        return NodeWeights(self._tree.at(index), self._node, index.of_shape(self.batch_shape))

    def expand(self, batch_shape: torch.Size) -> NodeWeights:
        return NodeWeights(self._tree, self._node, batch_shape)

    def __reduce__(self) -> tuple[type[NodeWeights], tuple[object, ...]]:
        """For pickle: without cached values, whose gradients would lead nowhere."""
        return NodeWeights, (self._tree, self._node, self.batch_shape)
