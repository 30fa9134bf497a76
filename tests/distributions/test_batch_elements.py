"""Indexing and expanding batches of KDMs, joint KDMs and trees."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, seeded, simplex

M, B = 5, (2, 3)


def points() -> Tensor:
    return normal(*B, 2, seed=5)


def joint(**kernels: kdm.Kernel) -> kdm.JointKDM:
    components = {"x": normal(M, 2, seed=0), "y": torch.arange(M) % 3, "s": normal(M, 1, seed=1)}
    every = {"x": kdm.RBF([0.7, 1.2]), "y": kdm.Categorical(3, 0.1), "s": kdm.Epanechnikov(2.0)} | kernels
    return kdm.JointKDM(components, simplex(M, seed=2), every)


def tree(batch: tuple[int, ...] = ()) -> kdm.TreeKDM:
    components = {"x": normal(M, 2, seed=0), "y": torch.arange(3), "s": normal(4, 1, seed=1)}
    kernels = {"x": kdm.RBF(0.9), "y": kdm.Categorical(3), "s": kdm.RBF(1.0)}
    edges = {"y": simplex(*batch, M, 3, seed=3), "s": simplex(M, 4, seed=4)}
    return kdm.TreeKDM(components, kernels, {"x": None, "y": "x", "s": "x"}, edge_weights=edges)


def uncertain() -> kdm.KDM:
    return kdm.KDM(normal(4, 2, seed=7), simplex(*B, 4, seed=8), kdm.RBF(0.3))


def per_component() -> kdm.KDM:
    return kdm.KDM(normal(*B, M, 2, seed=0), None, kdm.RBF(normal(*B, M, 2, seed=9).exp()))


CASES: dict[str, Callable[[], Any]] = {
    "weights": lambda: kdm.KDM(normal(M, 2, seed=0), simplex(*B, M, seed=1), kdm.RBF(0.8)),
    "components": lambda: kdm.KDM(normal(*B, M, 2, seed=0), simplex(M, seed=1), kdm.RBF(0.8)),
    "both": lambda: kdm.KDM(normal(3, M, 2, seed=0), simplex(2, 1, M, seed=1), kdm.Tricube(4.0)),
    "bandwidths": per_component,
    "inferred": lambda: joint().infer(x=points(), target="s"),
    "some missing": lambda: joint().infer(
        x=points(), y=torch.tensor([0, 2, 1]), observed={"y": torch.tensor([True, False, True])}, target="s"
    ),
    "of a KDM": lambda: joint().infer(x=uncertain(), target="s"),
    "noisy": lambda: joint().infer(x=uncertain(), target="s", noisy=True),
    "of regions": lambda: joint().infer(y=kdm.OneOf([0, 1]), x=points(), target="s"),
    "chained": lambda: joint().infer(x=joint().infer(s=normal(*B, 1, seed=3), target="x"), target="y"),
    "shifted": lambda: joint().infer(x=points(), target="s").shifted(normal(*B, 1, seed=6)),
    "joint": lambda: joint().infer(x=points()),
    "expanded": lambda: joint().infer(x=points()[0]).expand(B),
    "tree node": lambda: tree().infer(x=points(), target="s"),
    "tree": lambda: tree().infer(x=points()),
    "tree of a KDM": lambda: tree().infer(x=uncertain(), target=["y", "s"]),
    "tree of weights": lambda: tree(B).infer(s=normal(3, 1, seed=2)),
    "tree without evidence": lambda: tree(B),
    "tree, twice": lambda: tree().infer(x=points()).infer(y=torch.tensor([0, 1, 2])),
}
INDICES: dict[str, Any] = {
    "one": (1, 2),
    "row": 1,
    "last": (Ellipsis, -1),
    "slice": (slice(None), slice(0, 2)),
    "list": [0, 1, 1],
    "numpy": (slice(None), np.array([2, 0])),
    "tensors": (torch.tensor([0, 1]), torch.tensor([2, 2])),
    "mask": torch.tensor([[True, False, True], [False, True, True]]),
    "new dimension": (None, Ellipsis, slice(1, 2)),
    "everything": Ellipsis,
}


def numbers(rho: Any) -> list[Tensor]:
    """Numbers of a distribution that have the shape of its batch."""
    if isinstance(rho, kdm.KDM):
        value = torch.zeros((), dtype=torch.long) if rho.kernel.discrete else torch.zeros(rho.event_shape)
        value = value if rho.kernel.discrete else value.double()
        evidence = [rho.log_evidence] if hasattr(rho, "log_evidence") else []
        return [rho.log_prob(value).expand(rho.batch_shape), rho.log_weights[..., 0], *evidence]
    values = {
        name: torch.zeros(rho.event_shapes[name], dtype=torch.long if kernel.discrete else torch.float64)
        for name, kernel in rho.kernels.items()
    }
    evidence = [rho.log_evidence] if hasattr(rho, "log_evidence") else []
    return [rho.log_prob(**values).expand(rho.batch_shape), *evidence]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("case", CASES)
def test_elements_are_those_of_the_numbers(case: str, index: str) -> None:
    rho, place = CASES[case](), INDICES[index]
    assert rho.batch_shape == B
    chosen = rho[place]
    assert type(chosen) is type(rho)
    assert chosen.batch_shape == torch.zeros(B)[place].shape
    for part, whole in zip(numbers(chosen), numbers(rho), strict=True):
        close(part, whole[place], rtol=1e-12)


@pytest.mark.parametrize("case", ["inferred", "joint", "tree", "weights"])
def test_expanded_distributions_repeat(case: str) -> None:
    rho = CASES[case]()[0]
    repeated = rho.expand((4, 3))
    assert repeated.batch_shape == (4, 3)
    for part, whole in zip(numbers(repeated), numbers(rho), strict=True):
        close(part, whole.expand(4, 3), rtol=1e-12)
    with pytest.raises(ValueError, match=r"batch_shape: expected a shape that \(3,\) expands to"):
        rho.expand((2, 4))


def test_an_element_leaves_weights_uncomputed() -> None:
    rho = joint().infer(x=points(), target="s")
    chosen = rho[0]
    assert chosen.log_prob(torch.zeros(1, dtype=torch.float64)).shape == (3,)
    assert not any("log_weights" in key for key in vars(chosen._weights))
    assert not any("log_weights" in key for key in vars(rho._weights))


def test_gradients_reach_only_the_chosen() -> None:
    x = points().requires_grad_()
    joint().infer(x=x, target="s")[0, 1].mean.sum().backward()
    assert x.grad is not None
    used = x.grad.abs().sum(-1) > 0
    assert used.tolist() == [[False, True, False], [False, False, False]]


def test_batches_iterate() -> None:
    rho = joint().infer(x=points()[0], target="y")
    close(torch.stack([one.probs for one in rho]), rho.probs)
    with pytest.raises(IndexError):
        rho[3]
    with pytest.raises(IndexError, match=r"index: expected one for a batch of shape \(3,\)"):
        rho[0, 0]


@pytest.mark.parametrize("case", CASES)
def test_detached_distributions_stay(case: str) -> None:
    rho = CASES[case]()
    before = [value.clone() for value in numbers(rho)]
    for value, old in zip(numbers(rho.detach()), before, strict=True):
        close(value, old, rtol=1e-12)


def test_detached_distributions_have_no_gradients() -> None:
    layer = kdm.nn.JointLayer(2, 3, 4, generator=seeded(0))
    rho = layer(torch.zeros(2))
    kept = rho.detach()
    before = kept.probs.clone()
    assert rho.probs.requires_grad
    assert not kept.probs.requires_grad
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(1.5)
    assert torch.equal(kept.probs, before)
