"""Layers behind encoders, under autocast and under `torch.func`."""

import pytest
import torch
from torch import nn

from helpers import close, normal, seeded
from kdmkit.nn import JointLayer
from nn.layers import LAYERS, M, answer, blobs, classifier, scrambled


def test_gradients_reach_the_encoder_and_everything_else():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    x, y = blobs(40, 3, dtype=torch.float32)
    layer = JointLayer(2, 3, 8).initialize(encoder(x), y, generator=seeded(0))
    (-layer(encoder(x)).log_prob(y)).mean().backward()
    for name, parameter in [*encoder.named_parameters(), *layer.named_parameters()]:
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    # No component is dead, not even those of labels that a batch lacks.
    assert bool((layer.components["y"].grad.abs() > 0).any(-1).all())


def test_training_lowers_the_loss():
    x, y = blobs()
    layer = classifier().initialize(x, y, method="balanced", generator=seeded(0))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = -layer.joint().log_prob(x=x, y=y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


def test_autocast_computes_in_float32():
    layer, x = scrambled("classifier", dtype=torch.float32), normal(64, 2, seed=0, dtype=torch.float32)
    wanted = layer(x).probs
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rho = layer(x)
        probs, log_prob = rho.probs, rho.log_prob(torch.tensor(1))
    assert probs.dtype == log_prob.dtype == torch.float32
    close(probs, wanted, rtol=1e-5, atol=1e-6)


def test_autocast_behind_an_encoder():
    """The encoder's output is bfloat16: rounded there, and not once more in the KDM."""
    torch.manual_seed(0)
    encoder, layer = nn.Linear(3, 2), scrambled("classifier", dtype=torch.float32)
    x = normal(64, 3, seed=0, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = encoder(x)
        probs = layer(z).probs
        loss = -layer(z).log_prob(torch.tensor(1)).mean()
    assert z.dtype == torch.bfloat16
    close(probs, layer(z.float()).probs, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert encoder.weight.grad.abs().sum() > 0
    assert torch.isfinite(encoder.weight.grad).all()


@pytest.mark.parametrize("name", LAYERS)
def test_functional_call(name):
    layer, other = LAYERS[name](), scrambled(name)
    before = answer(layer).detach()
    got = torch.func.functional_call(
        _Answer(layer), {f"layer.{k}": v for k, v in other.state_dict().items()}, ()
    )
    assert torch.equal(got, answer(other))
    assert torch.equal(answer(layer), before)


class _Answer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return answer(self.layer)


def test_vmap_over_inputs():
    layer, x = scrambled("classifier"), normal(5, 2, seed=0)
    close(torch.func.vmap(lambda x: layer(x).probs)(x), layer(x).probs)


def test_ensembles_by_vmap():
    layers = [scrambled("classifier"), classifier(), classifier()]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = normal(5, 2, seed=0)

    def probs(parameters, buffers, x):
        return torch.func.functional_call(_Probs(layers[0]), _prefixed({**parameters, **buffers}), (x,))

    together = torch.func.vmap(probs, in_dims=(0, 0, None))(parameters, buffers, x)
    assert together.shape == (3, 5, 3)
    close(together, torch.stack([layer(x).probs for layer in layers]))


def test_gradients_per_sample():
    layer, (x, y) = scrambled("classifier"), blobs(4)
    parameters = _prefixed({k: v.detach() for k, v in layer.named_parameters()})

    one_hot = torch.nn.functional.one_hot(y, 3).double()

    def weighted(parameters, x, t):
        return -(torch.func.functional_call(_Probs(layer), parameters, (x,)).log() * t).sum()

    rows = torch.func.vmap(torch.func.grad(weighted), in_dims=(None, 0, 0))(parameters, x, one_hot)
    total = torch.autograd.grad(-layer(x).log_prob(y).sum(), list(layer.parameters()))
    for (name, _), wanted in zip(layer.named_parameters(), total, strict=True):
        assert rows[f"layer.{name}"].shape[0] == 4
        close(rows[f"layer.{name}"].sum(0), wanted, rtol=1e-7)


class _Probs(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).probs


def _prefixed(state):
    return {f"layer.{name}": value for name, value in state.items()}


def test_gradients_are_those_of_finite_differences():
    layer, (x, y) = scrambled("classifier"), blobs(4)
    names, values = zip(*layer.named_parameters(), strict=True)

    def function(*values):
        module = _LogProb(layer)
        return torch.func.functional_call(module, _prefixed(dict(zip(names, values, strict=True))), (x, y))

    leaves = [value.detach().clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(function, leaves)
    assert leaves[0].shape[0] == M


class _LogProb(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, y):
        return self.layer(x).log_prob(y) + self.layer.reverse(y).log_prob(x)
