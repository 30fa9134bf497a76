"""Scores of some queries only: a sum of two simple terms, and a product of two factors."""

import pytest
import torch
from torch import Tensor

from helpers import close, normal, real
from kdmkit.ops import Restricted, SquaredDistance, attend, log_mix
from kdmkit.ops.api import choose, log_mix_given
from kdmkit.ops.dense import RelativeScores
from kdmkit.ops.terms import Masked, Reduction

KEEP = torch.tensor([[True], [False], [True], [True], [False]])
WEIGHTS = torch.log_softmax(normal(4, seed=1), 0)


def made() -> tuple[Restricted, list[Tensor]]:
    leaves = [normal(5, 2, seed=2), normal(4, 2, seed=3), real([[0.7, 1.3]])]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    return Restricted(SquaredDistance(*leaves), KEEP), leaves


@pytest.mark.parametrize("backend", ["auto", "torch", "chunked"])
def test_reductions_equal_the_reference(backend: str) -> None:
    answers = []
    for each in (backend, "reference"):
        term, leaves = made()
        averages, lse = attend(term, WEIGHTS, normal(4, 3, seed=4), backend=each)  # type: ignore[arg-type]
        loss = averages.square().sum() + lse[KEEP.squeeze(1)].sum()
        answers.append([averages, lse, *torch.autograd.grad(loss, leaves)])
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)
    assert torch.equal(torch.isneginf(answers[0][1]), ~KEEP.squeeze(1))


def test_the_fast_path_stays_open() -> None:
    terms = made()[0].summands()
    assert choose(Reduction(terms, WEIGHTS)).name == "dense, explicit gradients"


def test_conditionals() -> None:
    (term, _), (other, leaves) = made(), made()
    lse, conditional = log_mix_given([term], [other], WEIGHTS)
    close(lse, log_mix(term, WEIGHTS))
    kept = KEEP.squeeze(1)
    close(conditional[kept], (log_mix([term, other], WEIGHTS) - lse)[kept])
    (slope,) = torch.autograd.grad(conditional[kept].sum(), leaves[0])
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("masked", [False, True])
def test_relative_scores_by_one_product(masked: bool) -> None:
    answers = []
    for with_factor in (True, False):
        term, leaves = made()
        whole = Masked(term, normal(4, 1, seed=5), KEEP.flip(0)) if masked else term
        scores = RelativeScores.of([whole], WEIGHTS)
        assert scores.factor is not None
        if not with_factor:
            scores = RelativeScores(scores.terms, WEIGHTS, None, scores.dtype)
        relative, tops = scores.compute()
        dead = torch.isneginf(relative).all(-1, keepdim=True)
        loss = torch.where(dead, 0.0, relative).exp().square().sum()
        answers.append([relative, tops, *torch.autograd.grad(loss, leaves)])
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted, rtol=1e-9, atol=1e-9)
    assert torch.isneginf(answers[0][0]).any()
