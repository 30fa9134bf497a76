"""Scores read from a table."""

import pytest
import torch

from helpers import close, normal, seeded
from kdmkit.ops.terms import Lookup

SHAPES = [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (1,))]


@pytest.mark.parametrize(("of_codes", "of_tables"), SHAPES)
def test_the_way_of_a_gpu_gives_the_same_scores_and_gradients(of_codes, of_tables):
    table = normal(*of_tables, 5, 4, seed=0)
    table[..., 0, 0] = -torch.inf
    table.requires_grad_()
    codes = torch.randint(4, (*of_codes, 7, 1), generator=seeded(1))
    term = Lookup(codes, table)
    scores, others = term.matrix(), term._embedded(table.mT)
    assert torch.equal(scores, others)
    result, wanted = (torch.autograd.grad(part.exp().square().sum(), table)[0] for part in (others, scores))
    close(result.nan_to_num(), wanted.nan_to_num())


def test_second_derivatives_of_the_way_of_a_gpu():
    codes = torch.randint(4, (7, 1), generator=seeded(1))
    table = normal(5, 4, seed=0).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: Lookup(codes, t)._embedded(t.mT).square(), (table,))
