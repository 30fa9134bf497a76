"""Trees over every kernel: densities, inference, missing cells, draws, completions and information."""

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import KERNELS, M, close, components, events, normal, seeded, simplex

EDGE, ROOT = simplex(M, 3, seed=1), simplex(M, seed=2)
Y = torch.tensor([0, 1, 2, 1, 0])
DENSITIES = [name for name, make in KERNELS.items() if make().has_density]


def tree_of(name: str) -> tuple[kdm.TreeKDM, Tensor]:
    """x under one of the kernels → y, a code; and values of x."""
    kernel = KERNELS[name]().double()
    parts = {"x": components(kernel, M, seed=3), "y": torch.arange(3)}
    kernels = {"x": kernel, "y": kdm.Categorical(3)}
    tree = kdm.TreeKDM(parts, kernels, {"x": None, "y": "x"}, ROOT, {"y": EDGE})
    return tree, events(kernel, len(Y), seed=4)


def scores(tree: kdm.TreeKDM, x: Tensor) -> Tensor:
    """log f̂(x | c_j), `(n, M)`, pair by pair."""
    kernel, c = tree.kernels["x"], tree.components["x"]
    result = kernel.log_overlap(x.unsqueeze(1), c) + kernel.log_norm(c)
    jacobian = kernel.log_jacobian(x)
    return result if jacobian is None else result + jacobian.unsqueeze(-1)


@pytest.mark.parametrize("name", DENSITIES)
def test_a_tree_over_every_kernel(name: str) -> None:
    tree, x = tree_of(name)
    with torch.no_grad():
        joint = scores(tree, x) + ROOT.log()
        evidence = torch.logsumexp(joint, -1)
        given_y = joint + EDGE.log()[:, Y].mT
        tolerance = {"rtol": 1e-6, "atol": 1e-6}
        close(tree.log_prob(x=x, y=Y), torch.logsumexp(given_y, -1), **tolerance)
        close(tree.marginal("x").log_prob(x), evidence, **tolerance)
        is_possible = ~torch.isneginf(evidence)
        posterior = torch.where(is_possible.unsqueeze(-1), torch.softmax(joint, -1), ROOT)
        rho = tree.infer(x=x)
        close(rho.probs, (posterior @ EDGE).to(rho.probs.dtype), rtol=1e-5, atol=1e-6)
        close(rho.log_evidence, evidence, **tolerance)
        conditional = torch.logsumexp(torch.log_softmax((ROOT * EDGE.mT[Y]).log(), -1) + scores(tree, x), -1)
        close(tree.infer(y=Y).log_prob(x), conditional, **tolerance)


#: One kernel of each class.
SOME = [
    "rbf-per-component",
    "tricube",
    "cosine",
    "categorical-smooth",
    "levels",
    "transformed-log",
    "truncated",
    "rounded",
    "inflated-missing",
    "periodic",
    "periodic-whole",
]


@pytest.mark.parametrize("name", SOME)
def test_missing_cells_draws_and_completions(name: str) -> None:
    tree, x = tree_of(name)
    keep = torch.tensor([True, False, True, False, True])
    with torch.no_grad():
        result = tree.log_prob(x=x, y=Y, observed={"x": keep})
        close(result, torch.where(keep, tree.log_prob(x=x, y=Y), tree.marginal("y").log_prob(Y)), rtol=1e-6)
        drawn = tree.infer(y=Y, target=("x",)).sample((2,), generator=seeded(0))
        assert drawn.shape == (2, len(Y), *tree.event_shapes["x"])
        assert not bool(tree.log_prob(**tree.sample((4,), generator=seeded(1))).isnan().any())
        best = tree.mode(y=Y)
        assert best.values["x"].shape == (len(Y), *tree.event_shapes["x"])
        kernel, c = tree.kernels["x"], tree.components["x"]
        jacobian = kernel.log_jacobian(kernel.mode(c))
        peak = kernel.log_overlap(kernel.mode(c), c) + kernel.log_norm(c)
        peak = peak if jacobian is None else peak + jacobian
        close(best.log_prob, (ROOT.log() + peak + EDGE.log()[:, Y].mT).amax(-1), rtol=1e-6, atol=1e-6)
        information = tree.mutual_information("x", "y", n_samples=50, generator=seeded(2))
        bound = tree.mutual_information("x", "y", of="indices").value
        assert information.value <= bound + 5 * information.standard_error + 1e-6


def test_kernels_without_a_density_raise() -> None:
    kernel = KERNELS["composed"]()
    parts = {"x": normal(2, 4, seed=1), "y": torch.arange(2)}
    tree = kdm.TreeKDM(
        parts, {"x": kernel, "y": kdm.Categorical(2)}, {"x": None, "y": "x"}, None, {"y": torch.eye(2)}
    )
    with pytest.raises(TypeError, match="kernel"):
        tree.log_prob(x=normal(3, 4, seed=2), y=torch.tensor([0, 1, 1]))
