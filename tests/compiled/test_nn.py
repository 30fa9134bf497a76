"""Layers and losses under `torch.compile`."""

import copy

import pytest
import torch
from torch import nn

from compiled.conftest import slow_except
from helpers import close, normal
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer
from kdmkit.training import hybrid_nll
from nn.layers import LAYERS, answer, blobs, rows, scrambled


class _Answer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.values = layer, rows(layer)

    def forward(self):
        return answer(self.layer, self.values)


def _same_values_and_gradients(module, compiled, *inputs):
    wanted, got = module(*inputs), compiled(*inputs)
    close(got, wanted)
    parameters = [p for p in module.parameters() if p.requires_grad]
    for one, other in zip(
        torch.autograd.grad(got.sum(), parameters),
        torch.autograd.grad(wanted.sum(), parameters),
        strict=True,
    ):
        close(one, other, rtol=1e-7)


@pytest.mark.parametrize("name", slow_except(LAYERS, "density"))
def test_layers_compile_as_one_graph(name):
    module = _Answer(scrambled(name))
    _same_values_and_gradients(module, torch.compile(module, backend="aot_eager", fullgraph=True))


def test_a_layer_itself_compiles_as_one_graph():
    layer = scrambled("classifier")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, y = blobs(16, 2)
    close(compiled(x).log_prob(y), layer(x).log_prob(y))


class _Hybrid(nn.Module):
    """An encoder, a layer and the loss that trains both."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 2, dtype=torch.float64)
        self.layer = scrambled("classifier")

    def forward(self, x, y):
        z = self.encoder(x)
        return hybrid_nll(self.layer, z, y, generative_weight=0.5, detach_input=True)


@pytest.mark.slow
def test_a_loss_behind_an_encoder_compiles_as_one_graph():
    torch.manual_seed(0)
    module = _Hybrid()
    x, y = blobs(16, 3)
    _same_values_and_gradients(module, torch.compile(module, backend="aot_eager", fullgraph=True), x, y)


class _Probs(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).probs


@pytest.mark.slow  # compiles C++
def test_inductor():
    layer = JointLayer(2, 3, 5, dtype=torch.float64)
    module = _Probs(layer)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True)
    x = normal(16, 2, seed=0)
    close(compiled(x), module(x), rtol=1e-7)


@pytest.mark.slow
def test_new_parameters_are_seen():
    """A compiled layer is not frozen at the parameters it was compiled with."""
    module = _Probs(scrambled("classifier"))
    compiled = torch.compile(module, backend="aot_eager")
    x = normal(4, 2, seed=0)
    before = compiled(x)
    with torch.no_grad():
        module.layer.components["x"].add_(0.5)
    assert not torch.allclose(compiled(x), before)
    close(compiled(x), module(x))


@pytest.mark.slow
def test_a_training_step_of_ordinary_size() -> None:
    """Heap corruption in compiled gradients shows at such sizes only, and only after a few calls."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 128, generator=generator), torch.randint(10, (256,), generator=generator)
    layer = JointLayer(128, 10, 512).initialize(x.repeat(2, 1), y.repeat(2), generator=generator)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -layer(x).log_prob(y).mean()

    compiled = torch.compile(loss)
    for _ in range(5):
        layer.zero_grad()
        compiled(x, y).backward()
    got = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    loss(x, y).backward()
    wanted = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "out_kernel",
    [None, RBF(0.7), RBF(torch.full((16, 1), 0.7))],
)
@pytest.mark.slow
def test_the_last_batch_of_an_epoch_is_smaller(out_kernel) -> None:
    """The compiler makes sizes symbolic at the second size of a batch."""
    generator = torch.Generator().manual_seed(0)
    x, label = torch.randn(64, 4, generator=generator), torch.randint(3, (64,), generator=generator)
    y = label if out_kernel is None else torch.nn.functional.one_hot(label, 3).float()
    head = JointLayer(4, 3, 16, out_kernel=out_kernel).initialize(x, y, generator=generator)

    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -head(z).log_prob(y).mean()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    for n in (64, 37):
        z = x[:n].clone().requires_grad_()
        got, wanted = compiled(z, y[:n]), loss(z, y[:n])
        torch.testing.assert_close(got, wanted)
        inputs = [z, *parameters]
        torch.testing.assert_close(
            torch.autograd.grad(got, inputs), torch.autograd.grad(wanted, inputs), rtol=1e-4, atol=1e-6
        )
