"""What comes back from disk answers as what went there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn import config_context
from sklearn.base import clone
from torch import Tensor, nn

import kdmkit as kdm
from estimators.problems import ConvNet, Deconv, bags, blobs
from kdmkit.kernels import FixedBandwidth
from kdmkit.nn import DensityLayer, JointLayer, Variable

X, y = blobs(80)
QUICK: dict[str, Any] = {"max_epochs": 2, "random_state": 0}


def fit_bags(**parameters: Any) -> Any:
    return kdm.KDMProportionClassifier(**QUICK, **parameters).fit(*bags(120)[:3])


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "density nonparametric": lambda: kdm.KDMDensity(random_state=0).fit(X),
    "density full": lambda: kdm.KDMDensity("likelihood", **QUICK).fit(X),
    "density spherical": lambda: kdm.KDMDensity("likelihood", covariance="spherical", **QUICK).fit(X),
    "classifier nonparametric": lambda: kdm.KDMClassifier("nonparametric").fit(X, y, sample_weight=y + 1.5),
    "classifier": lambda: kdm.KDMClassifier(**QUICK).fit(X, y),
    "classifier without trend": lambda: kdm.KDMClassifier(trend=None, **QUICK).fit(X, y),
    "classifier mlp": lambda: kdm.KDMClassifier(encoder="mlp", decoder="mlp", **QUICK).fit(X, y),
    "regressor": lambda: kdm.KDMRegressor(**QUICK).fit(X, y),
    "regressor of two": lambda: kdm.KDMRegressor(encoder="mlp", **QUICK).fit(X, np.column_stack([y, X])),
    "proportions": fit_bags,
    "proportions mlp": lambda: fit_bags(encoder="mlp"),
}


def answers(model: Any, X: Any = X) -> dict[str, Any]:
    methods = (
        "score_samples",
        "predict",
        "predict_proba",
        "predict_log_proba",
        "predict_interval",
        "sample_y",
    )
    result = {name: getattr(model, name)(X) for name in methods if hasattr(model, name)}
    if hasattr(model, "sample"):
        result["sample"] = model.sample(3, **({"y": 0} if isinstance(model, kdm.KDMClassifier) else {}))
    return result


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], strict=True)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name: str, tmp_path: Path) -> None:
    model = ESTIMATORS[name]()
    kdm.save(model, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model)
    assert not any(p.requires_grad for p in loaded.module_.parameters())
    # Draws included: the stream of random numbers goes on where it was.
    assert_same(answers(model), answers(loaded))
    fitted = {k for k in vars(model) if k.endswith("_")}
    assert fitted == {k for k in vars(loaded) if k.endswith("_")}
    assert loaded.history_ == model.history_


def test_a_loaded_estimator_is_an_estimator(tmp_path: Path) -> None:
    kdm.save(ESTIMATORS["classifier mlp"](), tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    again = clone(loaded).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), loaded.predict_proba(X))
    kdm.save(loaded, tmp_path / "copy")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "copy").read_bytes()


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 10]),
        np.array([-1, 1], dtype=np.int8),
        np.array(["cat", "größer"]),
        np.array(["cat", "dogs"], dtype=object),
        np.array([False, True]),
        np.array([1.0, 2.0]),
    ],
    ids=["int64", "int8", "str", "object", "bool", "float"],
)
def test_labels_keep_their_type(labels: Any, tmp_path: Path) -> None:
    model = kdm.KDMClassifier("nonparametric").fit(X, labels[y])
    kdm.save(model, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X), strict=True)
    assert loaded.sample(2, y=labels[1]).shape == (2, 2)


def test_feature_names(tmp_path: Path) -> None:
    model = ESTIMATORS["regressor"]()
    model.feature_names_in_ = np.array(["width", "height"], dtype=object)
    kdm.save(model, tmp_path / "model")
    names = kdm.load(tmp_path / "model").feature_names_in_
    np.testing.assert_array_equal(names, model.feature_names_in_, strict=True)


def test_feature_names_of_frames(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["width", "height"])
    kdm.save(kdm.KDMClassifier(**QUICK).fit(frame, y), tmp_path / "model")
    with pytest.raises(ValueError, match="feature names should match"):
        kdm.load(tmp_path / "model").predict(frame[["height", "width"]])


@pytest.mark.usefixtures("unchecked")
def test_parameters_of_other_types(tmp_path: Path) -> None:
    parameters: dict[str, Any] = {
        "sigma": np.float64(0.5),
        "n_components": np.int64(4),
        "checkpoint_dir": tmp_path / "checkpoints",
        "patience": None,
        "random_state": np.int64(3),
    }
    kdm.save(kdm.KDMClassifier(max_epochs=1, **parameters).fit(X, y), tmp_path / "model")
    loaded = kdm.load(tmp_path / "model").get_params()
    # A folder for checkpoints belongs to the machine of the fit.
    assert {k: loaded[k] for k in parameters} == {**parameters, "checkpoint_dir": None}


def test_a_random_state_object_stays_with_its_owner(tmp_path: Path) -> None:
    model = kdm.KDMDensity(random_state=np.random.RandomState(0)).fit(X)
    kdm.save(model, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert loaded.random_state is None
    np.testing.assert_array_equal(loaded.sample(3), model.sample(3))


def test_notes_of_scikit_learn_are_not_saved(tmp_path: Path) -> None:
    with config_context(enable_metadata_routing=True):
        model = kdm.KDMRegressor(**QUICK).set_fit_request(sample_weight=True).fit(X, y)
        kdm.save(model, tmp_path / "model")
    assert_same(answers(model), answers(kdm.load(tmp_path / "model")))


def test_infinite_losses_are_json(tmp_path: Path) -> None:
    model = ESTIMATORS["regressor"]()
    model.history_[0]["validation_loss"] = float("inf")
    kdm.save(model, tmp_path / "model")
    assert kdm.load(tmp_path / "model").history_ == model.history_

    def strict(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(description(tmp_path / "model"), parse_constant=strict)


def description(path: Path) -> str:
    with safe_open(path, "pt") as file:
        text: str = file.metadata()["kdmkit"]
        return text


# ---- modules of one's own


def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.uniform(0, 16, (60, 1, 8, 8)), np.arange(60) % 2


def test_own_encoders_and_decoders(tmp_path: Path) -> None:
    rows, labels = images()
    parts = {"encoder": ConvNet(), "decoder": Deconv(), "generative_weight": 1.0}
    model = kdm.KDMClassifier(**parts, **QUICK).fit(rows, labels)
    kdm.save(model, tmp_path / "model")
    encoder, decoder = ConvNet(), Deconv()
    before = encoder.head.weight.clone()
    loaded = kdm.load(tmp_path / "model", encoder=encoder, decoder=decoder)
    assert_same(answers(model, rows), answers(loaded, rows))
    # The caller's modules are lent, not changed; a clone fits from them.
    assert torch.equal(encoder.head.weight, before)
    assert loaded.encoder is encoder
    assert clone(loaded).fit(rows, labels).score(rows, labels) >= 0


def test_own_encoder_with_a_decoder_of_ours(tmp_path: Path) -> None:
    rows, labels = images()
    parts = {"encoder": ConvNet(), "decoder": "mlp", "generative_weight": 1.0}
    model = kdm.KDMClassifier(**parts, **QUICK).fit(rows, labels)
    kdm.save(model, tmp_path / "model")
    assert_same(answers(model, rows), answers(kdm.load(tmp_path / "model", encoder=ConvNet()), rows))


def test_tied_weights(tmp_path: Path) -> None:
    encoder = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    encoder[2].weight = encoder[0].weight
    model = kdm.KDMClassifier(encoder=encoder, **QUICK).fit(X, y)
    kdm.save(model, tmp_path / "model")
    assert_same_proba(model, kdm.load(tmp_path / "model", encoder=encoder))


def assert_same_proba(first: Any, second: Any) -> None:
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


# ---- layers


class Squash(nn.Module):
    """An encoder for a Composed kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


def mixed() -> JointLayer:
    variables = [
        Variable("age", kdm.RBF(torch.full((6, 1), 2.0)), 1),
        Variable("job", kdm.Categorical(4, 0.1), ()),
        Variable("mood", kdm.Cosine(), 3),
        Variable("height", kdm.Epanechnikov(2.0), 2),
    ]
    return JointLayer.from_variables(variables, 6, inputs=["age", "job"], train_kernels=False)


LAYERS: dict[str, Callable[[], Any]] = {
    "joint": lambda: JointLayer(2, 3, 5),
    "joint float64": lambda: JointLayer(2, 3, 5, dtype=torch.float64),
    "mixed": mixed,
    "density": lambda: DensityLayer(2, 4),
    "density metric": lambda: DensityLayer(2, 4, kernel=kdm.RBF(torch.ones(2), shear=torch.zeros(2, 2))),
    "density categorical": lambda: DensityLayer(1, 4, kernel=kdm.Categorical(3, 0.2)),
    "density tricube": lambda: DensityLayer(2, 4, kernel=kdm.Tricube(torch.tensor([1.0, 3.0]))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    layer = LAYERS[name]()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.rand_like(parameter)
    kdm.save(layer, tmp_path / "layer")
    loaded = kdm.load(tmp_path / "layer")
    assert type(loaded) is type(layer)
    assert list(loaded.variables) == list(layer.variables)
    assert loaded.extra_repr() == layer.extra_repr()
    state, other = layer.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys()
    for key in state:
        assert torch.equal(state[key], other[key])
        assert state[key].dtype == other[key].dtype
    trainable = {name: p.requires_grad for name, p in layer.named_parameters()}
    assert trainable == {name: p.requires_grad for name, p in loaded.named_parameters()}


def test_layers_learn_on(tmp_path: Path) -> None:
    layer = JointLayer(2, 2, 4).initialize(torch.from_numpy(X).float(), torch.from_numpy(y))
    kdm.save(layer, tmp_path / "layer")
    loaded = kdm.load(tmp_path / "layer")
    loaded(torch.from_numpy(X).float()).log_prob(torch.from_numpy(y)).sum().backward()
    assert loaded.logits.grad is not None


def test_layers_with_encoders_in_their_kernels(tmp_path: Path) -> None:
    layer = JointLayer(2, 3, 5, in_kernel=kdm.Composed(Squash(), kdm.RBF(1.0)))
    kdm.save(layer, tmp_path / "layer")
    loaded = kdm.load(tmp_path / "layer", encoder=Squash())
    x = torch.randn(4, 2)
    assert torch.equal(loaded(x).probs, layer(x).probs)


# ---- distributions


def joint() -> kdm.JointKDM:
    generator = torch.Generator().manual_seed(0)
    components = {
        "x": torch.randn(5, 2, generator=generator),
        "y": torch.rand(5, 3, generator=generator),
        "code": torch.tensor([0, 1, 2, 1, 0]),
    }
    kernels = {"x": kdm.RBF(0.3), "y": kdm.Cosine(), "code": kdm.Categorical(3, 0.0)}
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0])
    return kdm.JointKDM(components, weights, kernels)


def test_joint_distributions(tmp_path: Path) -> None:
    rho = joint()
    kdm.save(rho, tmp_path / "rho")
    loaded = kdm.load(tmp_path / "rho")
    assert loaded.variables == rho.variables
    assert torch.equal(loaded.log_weights, rho.log_weights)
    values = rho.sample((10,), generator=torch.Generator().manual_seed(1))
    values["y"] = values["y"].argmax(-1)
    assert torch.equal(loaded.log_prob(**values), rho.log_prob(**values))
    x = values["x"]
    assert torch.equal(loaded.infer(x=x, target="y").probs, rho.infer(x=x, target="y").probs)


def _inferred() -> kdm.KDM:
    layer = JointLayer(2, 2, 5, out_kernel=kdm.RBF(torch.rand(5, 2) + 0.1))
    rho: kdm.KDM = layer.joint().infer(x=torch.randn(4, 2), target="y")
    return rho


KDMS: dict[str, Callable[[], kdm.KDM]] = {
    "rbf": lambda: kdm.KDM(torch.randn(5, 2), None, kdm.RBF(torch.tensor([0.1, 3.0]))),
    "float64": lambda: kdm.KDM(torch.randn(5, 2, dtype=torch.float64), None, kdm.RBF(1 / 3)),
    "metric": lambda: kdm.KDM(torch.randn(5, 2), None, kdm.RBF.from_metric(torch.tensor([[1.0, 0], [3, 2]]))),
    "batch of weights": lambda: kdm.KDM(
        torch.randn(5, 2), torch.softmax(torch.randn(3, 5), -1), kdm.RBF(1.0)
    ),
    "batch of components": lambda: kdm.KDM(torch.randn(3, 5, 2), None, kdm.Tricube(4.0)),
    "categorical": lambda: kdm.KDM(torch.tensor([0, 2]), None, kdm.Categorical(3, 0.25)),
    "fixed bandwidth": lambda: kdm.KDM(torch.randn(5, 2), None, kdm.RBF(FixedBandwidth("sigma", [0.1, 3.0]))),
    "batch of bandwidths": lambda: kdm.KDM(
        torch.randn(5, 2), None, kdm.Epanechnikov(FixedBandwidth("h", 1 + torch.rand(3, 5, 2)))
    ),
    "inferred by a layer": lambda: _inferred(),
    "shifted": lambda: _inferred().shifted(torch.randn(4, 2)),
    "convolved": lambda: _inferred().convolved(torch.rand(4, 2)),
    "convolved with gradients": lambda: _inferred().convolved(torch.rand(4, 2, requires_grad=True) * 2),
    "shifted, convolved, moved": lambda: (
        _inferred().shifted(torch.randn(4, 2)).convolved(torch.rand(4, 2)).to(torch.float64)
    ),
    "coordinates": lambda: _inferred().convolved(torch.rand(4, 2)).coordinates(1),
    "coordinates of a metric": lambda: kdm.KDM(
        torch.randn(5, 2), None, kdm.RBF.from_metric(torch.tensor([[1.0, 0], [3, 2]]))
    ).coordinates([1, 0]),
    "expanded": lambda: _inferred().convolved(torch.rand(4, 2)).expand((3, 4)),
    "inferred": lambda: joint().infer(x=torch.randn(4, 2), target="y"),
    "marginal": lambda: joint().marginal("x"),
}


@pytest.mark.parametrize("name", KDMS)
def test_distributions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    rho = KDMS[name]()
    kdm.save(rho, tmp_path / "rho")
    loaded = kdm.load(tmp_path / "rho")
    assert loaded.batch_shape == rho.batch_shape
    assert loaded.event_shape == rho.event_shape
    assert torch.equal(loaded.log_weights, rho.log_weights)
    assert torch.equal(loaded.components, rho.components)
    draws = [k.sample((6,), generator=torch.Generator().manual_seed(0)) for k in (rho, loaded)]
    assert torch.equal(*draws)
    torch.testing.assert_close(loaded.log_prob(draws[0]), rho.log_prob(draws[0]))


def test_a_composed_kernel(tmp_path: Path) -> None:
    rho = kdm.KDM(torch.randn(5, 2), None, kdm.Composed(Squash(), kdm.RBF(1.0)))
    kdm.save(rho, tmp_path / "rho")
    loaded = kdm.load(tmp_path / "rho", encoder=Squash())
    x = torch.randn(3, 2)
    assert torch.equal(loaded.log_projection(x), rho.log_projection(x))


# ---- what is on disk


def test_one_file_and_nothing_executable(tmp_path: Path) -> None:
    kdm.save(ESTIMATORS["classifier mlp"](), tmp_path / "model")
    assert {p.name for p in tmp_path.iterdir()} == {"model"}
    config = json.loads(description(tmp_path / "model"))
    assert config["format"] == 2
    assert config["kdmkit"] == kdm.__version__
    assert config["class"] == "KDMClassifier"
    assert config["parameters"]["encoder"] == "mlp"
    with safe_open(tmp_path / "model", "pt") as file:
        assert {"layer.logits", "layer.components.x", "scaler.shift"} <= set(file.keys())


def test_files_are_small(tmp_path: Path) -> None:
    kdm.save(ESTIMATORS["classifier without trend"](), tmp_path / "model")
    assert (tmp_path / "model").stat().st_size < 10_000


def test_views_are_saved_without_what_they_are_views_of(tmp_path: Path) -> None:
    kdm.save(kdm.KDM(torch.randn(100_000, 2)[:3], None, kdm.RBF(1.0)), tmp_path / "rho")
    assert (tmp_path / "rho").stat().st_size < 5000


@pytest.mark.slow
def test_long_histories(tmp_path: Path) -> None:
    """The description may be much longer than the tensors."""
    model = ESTIMATORS["classifier"]()
    model.history_ = [{"epoch": float(i), "loss": 1 / (1 + i)} for i in range(10_000)]
    kdm.save(model, tmp_path / "model")
    assert kdm.load(tmp_path / "model").history_ == model.history_


def test_many_bandwidths(tmp_path: Path) -> None:
    rho = kdm.KDM(torch.randn(20_000, 2), None, kdm.RBF(0.1 + torch.rand(20_000, 2)))
    kdm.save(rho, tmp_path / "rho")
    loaded = kdm.load(tmp_path / "rho")
    torch.testing.assert_close(loaded.kernel.sigma, rho.kernel.sigma)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["classifier mlp", "density full", "regressor"])
def test_devices(name: str, tmp_path: Path) -> None:
    model = ESTIMATORS[name]()
    assert model._device.type == "cuda"
    kdm.save(model, tmp_path / "model")
    here, there = kdm.load(tmp_path / "model"), kdm.load(tmp_path / "model", device="cuda")
    assert (here._device.type, there._device.type) == ("cpu", "cuda")
    np.testing.assert_array_equal(there.score_samples(X), model.score_samples(X))
    np.testing.assert_allclose(here.score_samples(X), model.score_samples(X), rtol=1e-4, atol=1e-4)
