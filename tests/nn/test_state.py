"""What a layer leaves behind: parameters under fixed names, a configuration, copies."""

import copy
import io
import json
import pickle

import pytest
import torch
from torch import nn

import kdmkit as kdm
from helpers import close, normal
from kdmkit.nn import DensityLayer, JointLayer, Variable
from nn.layers import LAYERS, answer, classifier, density, mixed, scrambled

KEYS = {
    "mixed": {
        "components.age",
        "components.job",
        "components.income",
        "components.vote",
        "kernels.age.bandwidth.raw",
        "kernels.age.bandwidth.minimum",
        "kernels.job.logit",
        "kernels.income.bandwidth.raw",
        "kernels.income.bandwidth.minimum",
        "logits",
    },
    "density": {
        "components.x",
        "kernels.x.bandwidth.raw",
        "kernels.x.bandwidth.minimum",
        "kernels.x.shear",
        "logits",
    },
}


@pytest.mark.parametrize("name", KEYS)
def test_names_in_the_state(name):
    assert set(LAYERS[name]().state_dict()) == KEYS[name]


@pytest.mark.parametrize("name", LAYERS)
def test_state_round_trip(name):
    layer, other = scrambled(name), LAYERS[name]()
    assert not torch.equal(answer(other), answer(layer))
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(answer(other), answer(layer))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("frozen", ["components", "weights", "kernels"])
def test_configuration_round_trip(name, frozen):
    layer = scrambled(name, **{f"train_{frozen}": False})
    config = json.loads(json.dumps(layer.config()))
    other = type(layer).from_config(config)
    assert other.config() == layer.config()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(answer(other), answer(layer))
    flags = [(key, value.requires_grad) for key, value in layer.named_parameters()]
    assert flags == [(key, value.requires_grad) for key, value in other.named_parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_configuration_keeps_the_precision(dtype):
    layer = classifier(dtype=torch.float32).to(dtype)
    other = JointLayer.from_config(layer.config())
    assert {value.dtype for value in other.parameters()} == {dtype}


def test_configuration_of_a_layer_at_its_bound():
    """Training may press σ onto its lower bound, where σ > σ_min no longer holds in float32."""
    layer = density(dtype=torch.float32).initialize(normal(20, 2, seed=0))
    with torch.no_grad():
        layer.kernels["x"].bandwidth.raw.fill_(-60.0)
    assert bool((layer.kernels["x"].sigma == layer.kernels["x"].bandwidth.minimum).all())
    other = DensityLayer.from_config(json.loads(json.dumps(layer.config())))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(answer(other.double()), answer(layer.double()))


def test_configuration_with_an_encoder_in_a_kernel():
    encoder = nn.Linear(2, 4, dtype=torch.float64)
    kernel = kdm.Composed(encoder, kdm.RBF(1.0))
    layer = JointLayer(2, 3, 5, in_kernel=kernel, dtype=torch.float64)
    config = json.loads(json.dumps(layer.config()))
    with pytest.raises(ValueError, match="encoder: expected the encoder of the Composed kernel"):
        JointLayer.from_config(config)
    other = JointLayer.from_config(config, encoders={"x": nn.Linear(2, 4, dtype=torch.float64)})
    other.load_state_dict(layer.state_dict())
    x = normal(4, 2, seed=0)
    assert torch.equal(other(x).probs, layer(x).probs)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda layer: pickle.loads(pickle.dumps(layer))}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("how", COPIES)
def test_copies_are_equal_and_apart(name, how):
    layer = scrambled(name)
    before = answer(layer)
    other = COPIES[how](layer)
    assert torch.equal(answer(other), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5)
    assert torch.equal(answer(layer), before)
    assert not torch.equal(answer(other), before)


@pytest.mark.parametrize("name", LAYERS)
def test_double(name):
    layer = scrambled(name, dtype=torch.float32)
    wide = copy.deepcopy(layer).double()
    assert answer(wide).dtype == torch.float64
    close(answer(layer).double(), answer(wide), rtol=1e-4, atol=1e-4)
    codes = [value for value in wide.components.values() if not value.is_floating_point()]
    assert all(value.dtype == torch.int64 for value in codes)


def test_default_precision_is_torchs():
    assert {p.dtype for p in JointLayer(2, 3, 4).parameters()} == {torch.float32}
    assert {p.dtype for p in DensityLayer(2, 4, dtype=torch.float64).parameters()} == {torch.float64}


def test_meta_device():
    layer = JointLayer(2, 3, 4, device="meta")
    assert {p.device.type for p in layer.parameters()} == {"meta"}


def test_components_are_a_mapping():
    store = mixed().components
    assert list(store) == ["age", "job", "income", "vote"]
    assert len(store) == 4
    assert "age" in store
    assert "training" not in store
    with pytest.raises(KeyError):
        store["training"]


def test_variable_configuration():
    variable = Variable("x", kdm.Tricube([0.5, 2.0]), 2)
    other = Variable.from_config(json.loads(json.dumps(variable.config())))
    assert other.config() == variable.config()
    assert other.shape == (2,)
