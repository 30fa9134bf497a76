"""Gradients of the chunked reductions: terms block by block, each differentiated by autograd."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kdmkit._core.tensors import at_least_float32, compute_dtype
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.terms import Term, total_shape


def rebuild(terms: Sequence[Term], tensors: Sequence[Tensor]) -> list[Term]:
    """The terms on other tensors, prepared for blocks."""
    rebuilt, start = [], 0
    for term in terms:
        stop = start + len(term.tensors)
        rebuilt.append(term.with_tensors(tensors[start:stop]).prepared())
        start = stop
    return rebuilt


def pairs_of_blocks(terms: Sequence[Term], block: Block) -> Iterator[tuple[slice, slice]]:
    """The queries and the components of every block of scores."""
    _, n, m = total_shape(terms)
    return itertools.product(slices(n, block[0]), slices(m, block[1]))


def weights_block(log_weights: Tensor, rows: slice, columns: slice) -> Tensor:
    """The log-weights of some queries and some components."""
    if log_weights.ndim >= 2 and log_weights.shape[-2] != 1:
        log_weights = log_weights[..., rows, :]
    return log_weights[..., columns]


def accumulator(tensor: Tensor) -> Tensor:
    """Zeros to add gradients to, in float32 at least: autograd rounds the sum, not every block."""
    return torch.zeros_like(tensor, dtype=compute_dtype(tensor.dtype))


def accumulate(target: Tensor, gradient: Tensor) -> None:
    """Adds a gradient to a slice that may have been broadcast along leading dimensions."""
    target.add_(gradient.sum_to_size(target.shape))


def summed(blocks: Sequence[Term]) -> Tensor:
    """The sum of the blocks' scores, with a graph."""
    with torch.enable_grad():
        scores = blocks[0].matrix()
        for block in blocks[1:]:
            scores = scores + block.matrix()
        return scores


class TermGradients:
    """Sums of the gradients by every tensor of some terms, None where no gradient is needed."""

    def __init__(self, terms: Sequence[Term], tensors: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.terms, self.needs = terms, needs
        self.roles = [role for term in terms for role in term.roles]
        pairs = zip(tensors, needs, strict=True)
        self.gradients = [accumulator(tensor) if need else None for tensor, need in pairs]

    def leaves(self, rows: slice, columns: slice) -> tuple[list[Term], list[Tensor]]:
        """A block's terms on fresh leaves, so that a gradient stops at the slices."""
        blocks, leaves, position = [], [], 0
        for term in self.terms:
            part = term.queries(rows).columns(columns)
            fresh = []
            for tensor in part.tensors:
                fresh.append(at_least_float32(tensor.detach()).requires_grad_(self.needs[position]))
                position += 1
            blocks.append(part.with_tensors(fresh))
            leaves.extend(fresh)
        return blocks, leaves

    def add(
        self, pairs: Sequence[tuple[Tensor, Tensor]], leaves: list[Tensor], rows: slice, columns: slice
    ) -> None:
        """Adds the gradients of a block.

        Args:
            pairs: sums of the block's scores, and the gradients by them.
            leaves: of the block's terms.
        """
        pairs = [(scores, slopes) for scores, slopes in pairs if scores.requires_grad]
        if not pairs:
            return
        wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
        # The weights may have leading dimensions that the terms lack.
        slopes = [slopes.sum_to_size(scores.shape).to(scores.dtype) for scores, slopes in pairs]
        scores = [scores for scores, _ in pairs]
        found = torch.autograd.grad(scores, [leaves[i] for i in wanted], slopes, allow_unused=True)
        for i, gradient in zip(wanted, found, strict=True):
            target = self.gradients[i]
            if gradient is None or target is None:
                continue
            if self.roles[i] == "query":
                target = target[..., rows, :]
            elif self.roles[i] == "component":
                target = target[..., columns, :]
            target.add_(gradient)
