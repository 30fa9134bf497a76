"""Scores of variables that are computed together are those of each by itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.distributions.component_scores import _alike, relative_scores, scores_of_each
from kdmkit.distributions.mixing import Entry

N, M = 70, 60


def rbf(seed: int, dtype: torch.dtype, size: float = 0.4) -> kdm.RBF:
    return kdm.RBF((size * normal(M, 1, seed=seed).exp()).to(dtype), trainable=True)


def entries(dtype: torch.dtype, masked: bool, n: int = N) -> list[Entry]:
    """Columns of which four can be stacked, one of them with components that need differences."""
    kernels: list[kdm.Kernel] = [rbf(seed, dtype) for seed in range(3)]
    kernels += [kdm.RBF(0.5, trainable=True).to(dtype), rbf(3, dtype, 1e-5), kdm.Levels(4, 0.1)]
    found = []
    for i, kernel in enumerate(kernels):
        is_code = kernel.discrete
        value = torch.arange(n) % 4 if is_code else normal(n, 1, seed=10 + i).to(dtype)
        components = normal(M, 4 if is_code else 1, seed=20 + i).to(dtype).requires_grad_()
        keep = torch.rand(n, generator=seeded(i)) < 0.7 if masked else None
        found.append(Entry(kernel, value, components, keep=keep))
    return found


def leaves(several: list[Entry]) -> list[Tensor]:
    parameters = [p for entry in several for p in entry.kernel.parameters() if p.requires_grad]
    return [*(entry.components for entry in several), *parameters]


def gradients(found: Any, several: list[Entry]) -> Any:
    total = sum((torch.logsumexp(scores.double(), -1) + tops).sum() for scores, tops in found)
    return torch.autograd.grad(total, leaves(several))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("narrow", [False, True])
def test_scores_agree_with_those_of_each(dtype: torch.dtype, masked: bool, narrow: bool) -> None:
    several = entries(dtype, masked)
    if not narrow:
        del several[4]
    together = scores_of_each(several)
    # Four variables, one of them with components that need differences.
    assert [len(places) for places in _alike(several)] == [3 + narrow, 1, 1]
    alone = [relative_scores([entry]) for entry in several]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for (scores, tops), (wanted, wanted_tops) in zip(together, alone, strict=True):
        assert scores.dtype == wanted.dtype
        close(scores, wanted, rtol=tolerance, atol=tolerance)
        close(tops, wanted_tops, rtol=tolerance, atol=tolerance)
    for one, other in zip(gradients(together, several), gradients(alone, several), strict=True):
        close(one, other, rtol=tolerance, atol=tolerance * float(1 + other.abs().max()))


@pytest.mark.parametrize(
    "other",
    [
        kdm.RBF(0.5),
        kdm.RBF(torch.ones(4, 1)),
        kdm.RBF(torch.ones(2, 5, 1)),
        kdm.RBF.from_metric(torch.eye(2)),
        kdm.Epanechnikov(torch.ones(5, 1)),
    ],
)
def test_kernels_that_cannot_be_stacked(other: kdm.Kernel) -> None:
    first = kdm.RBF(torch.ones(5, 1))
    stack = first.stacked([first])
    assert stack is not None
    assert stack.batch_shape == (2,)
    assert first.stacked([other]) is None
    assert other.stacked([first]) is None


def test_many_scores_are_not_stacked() -> None:
    """Above 2¹⁸ scores the time of a call does not count."""
    largest = (1 << 18) // M
    assert [len(places) for places in _alike(entries(torch.float32, masked=False, n=largest))] == [4, 1, 1]
    many = entries(torch.float32, masked=False, n=largest + 1)
    assert [len(places) for places in _alike(many)] == [1] * 6


def test_no_rows() -> None:
    several = [replace(entry, value=entry.value[:0]) for entry in entries(torch.float32, masked=False)]
    for scores, tops in scores_of_each(several):
        assert scores.shape == (0, M)
        assert tops.shape == (0,)


class Counted(TorchDispatchMode):
    """Counts operations, those of the backward pass as well."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(columns: int) -> int:
    """The log-density of a tree in which all columns have the same parent, and its gradients."""
    names = [f"x{i}" for i in range(columns)]
    parents = {name: None if i == 0 else names[0] for i, name in enumerate(names)}
    components = {name: normal(M, 1, seed=i).requires_grad_() for i, name in enumerate(names)}
    kernels = {name: rbf(i, torch.float64) for i, name in enumerate(names)}
    edges = {name: torch.full((M, M), 1 / M, dtype=torch.float64) for name in names[1:]}
    tree = kdm.TreeKDM(components, kernels, parents, edge_weights=edges, validate_args=False)
    values = {name: normal(N, 1, seed=100 + i) for i, name in enumerate(names)}
    with Counted() as counted:
        tree.log_prob(**values).sum().backward()
    return counted.count


def test_a_column_more_takes_few_operations() -> None:
    """Its product and its message; columns by themselves take three times as many."""
    assert operations(12) - operations(6) <= 6 * 60
