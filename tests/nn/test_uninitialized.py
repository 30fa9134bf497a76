"""A layer whose components are still random numbers warns once."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdmkit as kdm
from kdmkit.nn import DensityLayer, JointLayer, TreeLayer, Variable
from kdmkit.nn.layer import KDMLayer

X, Y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
MESSAGE = "`initialize` was not called"


def tree() -> TreeLayer:
    return TreeLayer([Variable("x", kdm.RBF(1.0), 2), Variable("y", kdm.Categorical(3, 0.1), ())], 4)


Use = Callable[[Any], object]
#: A new layer, how it is used and how it is initialized.
LAYERS: dict[str, tuple[Callable[[], KDMLayer], Use, Use]] = {
    "joint": (lambda: JointLayer(2, 3, 4), lambda h: h(X), lambda h: h.initialize(X, Y)),
    "reverse": (lambda: JointLayer(2, 3, 4), lambda h: h.reverse(Y), lambda h: h.initialize(X, Y)),
    "density": (lambda: DensityLayer(2, 4), lambda h: h(), lambda h: h.initialize(X)),
    "tree": (tree, lambda h: h(x=X), lambda h: h.initialize(x=X, y=Y)),
}


def caught(function: Callable[..., object], *args: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        function(*args)
    return [str(record.message) for record in records if MESSAGE in str(record.message)]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", LAYERS)
def test_the_first_use_warns(name: str, mode: Callable[[], torch.no_grad]) -> None:
    make, use, _ = LAYERS[name]
    layer = make()
    with mode():
        assert len(caught(use, layer)) == 1
        assert not caught(use, layer)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_values_do_not_warn(name: str) -> None:
    make, use, initialize = LAYERS[name]
    layer = make()
    initialize(layer)
    loaded, wrapped, changed = make(), torch.nn.Sequential(make()), make()
    loaded.load_state_dict(layer.state_dict())
    wrapped.load_state_dict({f"0.{key}": value for key, value in layer.state_dict().items()})
    with torch.no_grad():
        changed.components["x"].copy_(layer.components["x"])
    for one in (layer, loaded, wrapped[0], changed, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert not caught(use, one)


@pytest.mark.usefixtures("unchecked")
def test_estimators_initialize_their_layers() -> None:
    x, y = X.numpy(), Y.numpy()
    for model, target in (
        (kdm.KDMClassifier(random_state=0, max_epochs=2, method="discriminative", trend=None), y),
        (kdm.KDMRegressor(random_state=0, max_epochs=2, trend=None), x[:, 0]),
        (kdm.KDMDensity(method="likelihood", max_epochs=2, random_state=0), None),
    ):
        assert not caught(lambda model, target: model.fit(x, target).score_samples(x), model, target)


@pytest.mark.parametrize("name", LAYERS)
def test_the_warning_names_the_line_of_the_user(name: str, unchecked: None) -> None:
    make, use, _ = LAYERS[name]
    with pytest.warns(UserWarning, match=MESSAGE) as record:
        use(make())
    assert record[0].filename == __file__
