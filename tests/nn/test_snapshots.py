"""What a layer returns without gradients is a snapshot of its parameters."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kdmkit as kdm
from helpers import seeded
from kdmkit.nn import DensityLayer, JointLayer, TreeLayer, Variable
from kdmkit.nn.layer import KDMLayer

N = 5


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(2, 2))
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.linear(x))
        return y


def x() -> Tensor:
    return torch.randn(N, 2, generator=seeded(0))


def tree() -> TreeLayer:
    variables = [
        Variable("x", kdm.RBF([0.5, 2.0]), 2),
        Variable("y", kdm.Levels(3, 0.1, trainable=True), ()),
        Variable("z", kdm.Epanechnikov(50.0), 1),
    ]
    return TreeLayer(variables, 4)


def composed() -> JointLayer:
    layer = JointLayer(2, 3, 4, in_kernel=kdm.Composed(Encoder(), kdm.RBF(1.0)))
    assert layer(x()).probs.requires_grad  # the encoder's weight is the result of a computation now
    return layer


def metric() -> JointLayer:
    return JointLayer(2, 3, 4, in_kernel=kdm.RBF.from_metric(torch.tensor([[1.0, 0.0], [0.4, 2.0]])))


#: A layer, its answer, and numbers of the answer.
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], list[Tensor]]]] = {
    "density": (
        lambda: DensityLayer(2, 4),
        lambda layer: layer(),
        lambda rho: [rho.log_prob(x()), rho.mean, rho.variance, rho.weights],
    ),
    "forward": (
        lambda: JointLayer(2, 3, 4),
        lambda layer: layer(x()),
        lambda rho: [rho.probs, rho.logits, rho.log_weights, rho.log_evidence],
    ),
    "metric": (metric, lambda layer: layer(x()), lambda rho: [rho.probs]),
    "of a KDM": (
        lambda: JointLayer(2, 3, 4),
        lambda layer: layer(DensityLayer(2, 4, generator=seeded(1))()),
        lambda rho: [rho.probs],
    ),
    "composed": (composed, lambda layer: layer.eval()(x()), lambda rho: [rho.probs]),
    "joint": (
        lambda: JointLayer(2, 3, 4),
        lambda layer: layer.joint(),
        lambda rho: [rho.infer(x=x()).probs, rho.log_prob(x=x(), y=torch.zeros(N, dtype=torch.long))],
    ),
    "reverse": (
        lambda: JointLayer(2, 3, 4),
        lambda layer: layer.reverse(torch.arange(3)),
        lambda rho: [rho.mean, rho.variance],
    ),
    "tree": (
        tree,
        lambda layer: layer.tree(),
        lambda rho: [rho.infer(x=x(), target="y").probs, rho.infer(y=torch.arange(3), target="z").mean],
    ),
    "tree forward": (tree, lambda layer: layer(x=x()), lambda rho: [rho.marginal("y").probs]),
}
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def train(layer: nn.Module) -> None:
    """Moves every parameter: by a step of an optimizer, and in place."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=seeded(2)).to(parameter)
    torch.optim.SGD(parameters, lr=0.1).step()
    for parameter in parameters:
        parameter.data.mul_(1.5)
    for module in layer.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.add_(1.0)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_distribution_without_gradients_stays(case: str, mode: str, is_prepared: bool) -> None:
    make, ask, numbers = CASES[case]
    layer = make()
    if is_prepared:
        if not hasattr(layer, "prepare"):
            pytest.skip("only mixtures are prepared")
        layer.prepare()
    with MODES[mode]():
        read, unread = ask(layer), ask(layer)
        before = [value.clone() for value in numbers(read)]
    train(layer)
    for value, old in itertools.chain(
        zip(numbers(read), before, strict=True), zip(numbers(unread), before, strict=True)
    ):
        assert not value.requires_grad
        assert torch.equal(value, old)
    with MODES[mode]():
        changed = numbers(ask(layer))
    assert not all(torch.equal(new, old) for new, old in zip(changed, before, strict=True))


@pytest.mark.parametrize("case", ["density", "forward", "joint", "reverse", "tree"])
def test_inside_a_graph_gradients_flow(case: str) -> None:
    make, ask, numbers = CASES[case]
    layer = make()
    with torch.no_grad():
        expected = numbers(ask(layer))
    given = numbers(ask(layer))
    for value, same in zip(given, expected, strict=True):
        torch.testing.assert_close(value, same)
    sum(value.sum() for value in given).backward()
    assert any(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("make", [lambda: JointLayer(2, 3, 4), tree], ids=["joint", "tree"])
def test_frozen_parameters_are_shared(make: Callable[[], Any]) -> None:
    layer = make().requires_grad_(False)
    with torch.no_grad():
        rho = layer.joint() if isinstance(layer, JointLayer) else layer.tree()
    for name in layer.variables:
        assert rho.components[name] is layer.components[name]
        assert rho.kernels[name] is layer.kernel(name)


def test_a_frozen_part_of_a_kernel_is_shared() -> None:
    kernel = kdm.Composed(nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 2)), kdm.RBF(1.0))
    layer = JointLayer(2, 3, 4, in_kernel=kernel)
    frozen = layer.kernel("x").encoder[0].requires_grad_(False)
    with torch.no_grad():
        copied = layer.joint().kernels["x"].encoder
    assert copied[0].weight is frozen.weight
    assert copied[1].weight is not layer.kernel("x").encoder[1].weight


def test_batch_norm_still_counts() -> None:
    layer = JointLayer(2, 3, 4, in_kernel=kdm.Composed(nn.BatchNorm1d(2), kdm.RBF(1.0)))
    norm = layer.kernel("x").encoder
    before = norm.num_batches_tracked.item()
    with torch.no_grad():
        assert layer(x()).probs.isfinite().all()
    assert norm.num_batches_tracked.item() > before


@pytest.mark.parametrize("layer", [JointLayer(2, 3, 4), tree()], ids=["joint", "tree"])
def test_evidence_with_gradients_is_kept(layer: KDMLayer) -> None:
    point = x().requires_grad_()
    with torch.no_grad():
        rho = layer(x=point, target="y")
        before = layer(x=point, target="y").probs
        point += 1.0
    assert torch.equal(rho.probs, before)
    assert not rho.probs.requires_grad


def test_a_prepared_snapshot_is_made_once() -> None:
    layer = JointLayer(2, 3, 4).prepare()
    with torch.no_grad():
        first, second = layer.joint(), layer.joint()
        assert first._weights is second._weights
        assert first.components["x"] is second.components["x"]
        layer.kernel("x").sigma = 0.3
        assert layer.joint()._weights is not first._weights


@pytest.mark.parametrize("case", [name for name in CASES if name != "composed"])
def test_inside_a_graph_a_distribution_stays(case: str) -> None:
    make, ask, numbers = CASES[case]
    layer = make()
    read, unread = ask(layer), ask(layer)
    before = [value.clone() for value in numbers(read)]
    train(layer)
    for rho in (read, unread):
        for value, old in zip(numbers(rho), before, strict=True):
            assert torch.equal(value, old)
    assert not all(torch.equal(new, old) for new, old in zip(numbers(ask(layer)), before, strict=True))


@pytest.mark.parametrize("case", ["density", "forward", "joint", "reverse", "tree"])
def test_gradients_of_a_distribution_are_those_of_its_call(case: str) -> None:
    make, ask, numbers = CASES[case]

    def gradients(layer: Any, rho: Any) -> list[Tensor | None]:
        parameters = [p for p in layer.parameters() if p.requires_grad]
        total = sum((value**2).sum() for value in numbers(rho))
        return list(torch.autograd.grad(total, parameters, allow_unused=True))

    layer = make()
    rho, same = ask(layer), ask(layer)
    expected = gradients(layer, same)
    train(layer)
    for gradient, old in zip(gradients(layer, rho), expected, strict=True):
        assert (gradient is None) == (old is None)
        if old is not None:
            torch.testing.assert_close(gradient, old)
