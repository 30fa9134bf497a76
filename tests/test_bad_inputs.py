"""Calls with bad arguments end in an error that names the argument; unusual but legal calls work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
from kdmkit import metrics, plotting, training
from kdmkit.kernels import kernel_from_config
from kdmkit.ops import log_mix

mpl.use("Agg")
pytestmark = pytest.mark.usefixtures("unchecked")

NAN, INF, HUGE = float("nan"), float("inf"), 10**12
C, W = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.full((4,), 0.25)
P = torch.tensor([[0.3, 0.7], [0.6, 0.4]])
X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
BAGS, SHARES = np.arange(40) // 8, np.tile([0.5, 0.5], (5, 1))
DATES = np.arange(120).reshape(40, 3).astype("datetime64[D]")
FOLDER = Path("/proc/nowhere")
FEW: dict[str, Any] = {"max_epochs": 1, "random_state": 0}


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, self.value)


def rho(**options: Any) -> kdm.KDM:
    return kdm.KDM(C, None, kdm.RBF(0.5), **options)


def joint() -> kdm.JointKDM:
    kernels = {"x": kdm.RBF(0.5), "y": kdm.Cosine()}
    return kdm.JointKDM({"x": C, "y": torch.eye(2)[[0, 0, 1, 1]]}, None, kernels)


def plane() -> kdm.KDM:
    return kdm.KDM(torch.eye(2), None, kdm.RBF(0.5))


def bands(**options: Any) -> Any:
    return plotting.plot_predictive_bands(torch.arange(2.0), rho().expand((2,)), **options)


def layer(d: Any = 2, k: Any = 2, m: Any = 3, **options: Any) -> kdm.nn.JointLayer:
    return kdm.nn.JointLayer(d, k, m, **options)


def start(**options: Any) -> Any:
    return layer().initialize(torch.randn(9, 2), torch.arange(9) % 2, **options)


def variable(name: Any = "a", shape: Any = 1) -> Any:
    return kdm.nn.Variable(name, kdm.RBF(1.0), shape)


def rows(n: int = 9) -> training.Rows:
    return training.Rows((torch.randn(n, 2), torch.arange(n) % 2))


def fit(data: Any = None, options: Any = None) -> Any:
    objective = training.ConditionalObjective(None, layer())
    options = training.FitOptions(max_epochs=1) if options is None else options
    return training.fit(objective, rows() if data is None else data, options=options)


def classifier(X: Any = X, y: Any = Y, sample_weight: Any = None, **options: Any) -> kdm.KDMClassifier:
    return kdm.KDMClassifier(**FEW, **options).fit(X, y, sample_weight)


def regressor(X: Any = X, y: Any = Y, sample_weight: Any = None, **options: Any) -> kdm.KDMRegressor:
    return kdm.KDMRegressor(**FEW, **{"trend": None, **options}).fit(X, y, sample_weight)


def density(X: Any = X, sample_weight: Any = None, **options: Any) -> kdm.KDMDensity:
    return kdm.KDMDensity(**FEW, **options).fit(X, sample_weight=sample_weight)


def proportions(X: Any = X, **options: Any) -> kdm.KDMProportionClassifier:
    return kdm.KDMProportionClassifier(**FEW, **options).fit(X, BAGS, SHARES)


@functools.cache
def fitted(make: Callable[[], Any]) -> Any:
    return make()


def term(d: int = 2) -> Any:
    return kdm.RBF(1.0).term(torch.zeros(3, d), torch.zeros(4, 2))


ZEROS = np.zeros(40)

#: By name: a call, and how its error begins.
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    # ---- kernels
    "RBF(True)": (lambda: kdm.RBF(True), "sigma"),
    "RBF shear": (lambda: kdm.RBF((2.0,), shear="a"), "shear"),
    "RBF.from_metric str": (lambda: kdm.RBF.from_metric("a"), "factor"),
    "RBF.from_metric None": (lambda: kdm.RBF.from_metric(None), "factor"),
    "RBF sigma_min": (lambda: kdm.RBF(1.0, sigma_min="a"), "sigma_min"),
    "Categorical smoothing": (lambda: kdm.Categorical(3, "a"), "smoothing"),
    "Composed NaN": (
        lambda: kdm.KDM(C, None, kdm.Composed(Constant(NAN), kdm.RBF(1.0))),
        "encoder",
    ),
    "Composed event_dim": (lambda: kdm.Composed(nn.Linear(2, 2), kdm.RBF(1.0), event_dim=-1), "event_dim"),
    "Composed width": (
        lambda: kdm.KDM(torch.eye(2), None, kdm.Composed(nn.Linear(5, 2), kdm.RBF(1.0))),
        "encoder",
    ),
    "kernel_from_config without sigma": (
        lambda: kernel_from_config({"kernel": "RBF"}),
        "config: expected 'sigma'",
    ),
    "kernel_from_config None": (lambda: kernel_from_config(None), "config"),
    "kernel_from_config str": (lambda: kernel_from_config("RBF"), "config"),
    # ---- KDM
    "KDM d=0": (lambda: kdm.KDM(torch.zeros(3, 0), None, kdm.RBF(1.0)), "components"),
    "KDM complex weights": (lambda: kdm.KDM(C, W + 0j, kdm.RBF(1.0)), "weights"),
    "KDM bool weights": (lambda: kdm.KDM(C, C[:, 0] == 1, kdm.RBF(1.0)), "weights"),
    "KDM sparse": (lambda: kdm.KDM(C.to_sparse(), None, kdm.RBF(1.0)), "components"),
    "KDM strings": (lambda: rho().log_prob([["a"]]), "value"),
    "shifted NaN": (lambda: rho().shifted(NAN), "by"),
    "shifted inf": (lambda: rho().shifted([INF]), "by"),
    "shifted too wide": (lambda: rho().shifted(torch.zeros(2)), "by"),
    "convolved NaN": (lambda: rho().convolved(NAN), "variance"),
    "convolved inf": (lambda: rho().convolved([INF]), "variance"),
    "sample -1": (lambda: rho().sample((-1,)), "sample_shape"),
    "sample 'a'": (lambda: rho().sample(("a",)), "sample_shape"),
    "sample str": (lambda: rho().sample("a"), "sample_shape"),
    "sample 2.5": (lambda: rho().sample((2.5,)), "sample_shape"),
    "sample None": (lambda: rho().sample(None), "sample_shape"),
    "rsample -1": (lambda: rho().rsample((-1,)), "sample_shape"),
    "rsample temperature": (lambda: rho().rsample(method="gumbel", temperature="a"), "temperature"),
    "sample generator": (lambda: rho().sample((2,), generator=0), "generator"),
    "expand": (lambda: rho().expand((3,)).expand((2,)), "batch_shape"),
    "expand str": (lambda: rho().expand("a"), "batch_shape"),
    "to nowhere": (lambda: rho().to("nowhere"), "device"),
    "to int": (lambda: rho().to(torch.int64), "dtype"),
    "coordinates float": (lambda: rho().coordinates(0.5), "index"),
    "icdf str": (lambda: rho().icdf("a"), "value"),
    "joint infer target": (lambda: joint().infer(x=torch.zeros(1), target=3), "target"),
    "joint sample -1": (lambda: joint().sample((-2,)), "sample_shape"),
    "joint sample str": (lambda: joint().sample(("a",)), "sample_shape"),
    # ---- layers
    "layer in str": (lambda: layer("a"), "in_features"),
    "layer in None": (lambda: layer(None), "in_features"),
    "layer in float": (lambda: layer(2.5), "in_features"),
    "layer out negative": (lambda: layer(2, -1), "out_features"),
    "layer m float": (lambda: layer(m=2.5), "n_components"),
    "layer huge m": (lambda: layer(m=HUGE), "n_components"),
    "layer in_kernel": (lambda: layer(in_kernel="RBF"), "in_kernel"),
    "layer out_kernel": (lambda: layer(out_kernel="Cosine"), "out_kernel"),
    "layer dtype int": (lambda: layer(dtype=torch.int64), "dtype"),
    "layer dtype str": (lambda: layer(dtype="float32"), "dtype"),
    "layer device": (lambda: layer(device="nowhere"), "device"),
    "layer sigma (m', 1)": (lambda: layer(in_kernel=kdm.RBF(torch.ones(4, 1))), "kernel of 'x'"),
    "layer NaN": (lambda: layer()(torch.full((3, 2), NAN)), "x"),
    "layer reverse NaN": (lambda: layer().reverse(torch.full((3, 2), NAN)), "y"),
    "layer reverse label": (lambda: layer().reverse(torch.tensor([2])), "y: expected labels in 0 … 1, got 2"),
    "layer log_prob label": (lambda: layer()(torch.zeros(2)).log_prob(torch.tensor(-1)), "value"),
    "layer int": (lambda: layer()(torch.zeros(3, 2, dtype=torch.int64)), "x"),
    "layer initialize sigma": (lambda: start(sigma=None), "sigma"),
    "layer initialize generator": (lambda: start(generator=0), "generator"),
    "density layer kernel": (lambda: kdm.nn.DensityLayer(2, 3, kernel="RBF"), "kernel"),
    "density layer features": (lambda: kdm.nn.DensityLayer("a", 3), "features"),
    "Variable name": (lambda: variable(3), "name"),
    "Variable shape str": (lambda: variable(shape="a"), "shape of 'a'"),
    "Variable shape None": (lambda: variable(shape=None), "shape of 'a'"),
    "Variable shape float": (lambda: variable(shape=2.5), "shape of 'a'"),
    "from_variables strings": (
        lambda: kdm.nn.JointLayer.from_variables(["a", "b"], 3, inputs=["a"]),
        "variables",
    ),
    # ---- estimators
    "standardize": (lambda: proportions(standardize="x"), "standardize"),
    "quantiles none": (lambda: fitted(regressor).predict_quantiles(X, []), "quantiles"),
    "quantiles str": (lambda: fitted(regressor).predict_quantiles(X, ["a"]), "quantiles"),
    "coverage str": (lambda: fitted(regressor).predict_interval(X, "a"), "coverage"),
    "coverage none": (lambda: fitted(regressor).predict_interval(X, []), "coverage"),
    "coverage 1.0": (lambda: fitted(regressor).predict_interval(X, [0.5, 1.0]), "coverage"),
    "classifier encoder": (lambda: classifier(encoder=nn.Linear(7, 2)), "encoder"),
    "regressor encoder": (lambda: regressor(encoder=nn.Linear(7, 2)), "encoder"),
    "proportions encoder": (lambda: proportions(encoder=nn.Linear(7, 2)), "encoder"),
    "classifier decoder": (lambda: classifier(encoder=nn.Linear(3, 2), decoder=nn.Linear(5, 3)), "decoder"),
    "n_members": (lambda: regressor(trend="mlp", n_members=10**9), "n_members"),
    "checkpoint_dir int": (lambda: classifier(checkpoint_dir=3), "checkpoint_dir"),
    "checkpoint_dir unwritable": (lambda: classifier(checkpoint_dir=FOLDER), "checkpoint_dir"),
    "averaging": (lambda: classifier(averaging="a"), "averaging"),
    "n_samples density": (lambda: fitted(density).sample(HUGE), "n_samples"),
    "n_samples classifier": (lambda: fitted(classifier).sample(HUGE, y=0), "n_samples"),
    "n_samples regressor": (lambda: fitted(regressor).sample_y(X, HUGE), "n_samples"),
    "spread": (lambda: fitted(classifier).sample(1, y=0, spread="a"), "spread"),
    "bags": (lambda: fitted(proportions).predict_proportions(X[:2], np.array([0, 10**15])), "bags"),
    **{
        f"{make.__name__} {name}": (functools.partial(make, data), "X")
        for make in (classifier, regressor, density, proportions)
        for name, data in {
            "datetime": DATES,
            "dict": {"a": [1.0]},
        }.items()
    },
    **{
        f"{make.__name__} weights": (functools.partial(make, sample_weight=ZEROS), "sample_weight")
        for make in (classifier, regressor, density)
    },
    # ---- metrics and plotting
    "n_bins 2.5": (lambda: metrics.expected_calibration_error(P, [0, 1], 2.5), "n_bins"),
    "n_bins huge": (lambda: metrics.reliability_curve(P, [0, 1], HUGE), "n_bins"),
    "pit str": (lambda: metrics.pit(rho(), "a"), "y"),
    "levels": (lambda: metrics.quantile_calibration([0.5], "a"), "levels"),
    "density_1d n_grid 0": (lambda: plotting.plot_density_1d(rho(), n_grid=0), "n_grid"),
    "density_1d n_grid str": (lambda: plotting.plot_density_1d(rho(), n_grid="a"), "n_grid"),
    "density_2d levels": (lambda: plotting.plot_density_2d(plane(), levels=[2.0]), "levels"),
    "density_2d levels str": (lambda: plotting.plot_density_2d(plane(), levels="a"), "levels"),
    "density_2d depth": (lambda: plotting.plot_density_2d(plane(), depth=-1), "depth"),
    "density_2d n_grid": (lambda: plotting.plot_density_2d(plane(), n_grid=1), "n_grid"),
    "decision levels": (
        lambda: plotting.plot_decision_regions(lambda x: x, X[:, :2], levels=[2.0]),
        "levels",
    ),
    "bands data": (lambda: bands(data=3), "data"),
    "bands levels": (lambda: bands(levels=[0.5, 1.0]), "levels"),
    "pit n_bins": (lambda: plotting.plot_pit([0.5], 2.5), "n_bins"),
    "images cmap": (lambda: plotting.plot_image_grid(torch.rand(2, 3, 3), cmap="nope"), "cmap"),
    "images range": (
        lambda: plotting.plot_image_grid(torch.rand(2, 3, 3), value_range=("a", 1)),
        "value_range",
    ),
    "images n_columns": (lambda: plotting.plot_image_grid(torch.rand(2, 3, 3), n_columns=2.5), "n_columns"),
    # ---- training, reductions, data sets
    "Rows str": (lambda: training.Rows("abc"), "rows"),
    "fit rows": (lambda: fit("abc"), "train"),
    "fit options": (lambda: fit(options=3), "options"),
    "fit epochs": (
        lambda: training.fit(nn.Linear(1, 1), rows(), options=training.FitOptions(), epochs="a"),
        "epochs",
    ),
    "FitOptions averaging": (lambda: training.FitOptions(averaging="a"), "averaging"),
    "FitOptions learning_rate": (lambda: training.FitOptions(learning_rate=None), "learning_rate"),
    "FitOptions clip_norm": (lambda: training.FitOptions(clip_norm="a"), "clip_norm"),
    "FitOptions checkpoint_dir": (lambda: training.FitOptions(checkpoint_dir=3), "checkpoint_dir"),
    "PhasedFit layer": (
        lambda: training.PhasedFit(None, None, rows(), options=training.FitOptions()).run(),
        "layer",
    ),
    "cross_entropy": (lambda: training.cross_entropy(kdm.KDM.from_probs(P), torch.ones(2, 2)), "probs"),
    "nll": (lambda: training.nll(None, 0), "rho"),
    "generative_weight": (
        lambda: training.hybrid_nll(layer(), torch.zeros(2), 0, generative_weight="a"),
        "generative_weight",
    ),
    "log_mix triton": (
        lambda: log_mix(term(), torch.zeros(4), backend="triton"),
        'backend "triton": expected',
    ),
    "log_mix dimensions": (lambda: log_mix(term(4), torch.zeros(4)), "x"),
    "log_mix str": (lambda: log_mix("a", torch.zeros(4)), "terms"),
    "log_mix list": (lambda: log_mix(term(), [0.25] * 4), "log_weights"),
    "log_mix int": (lambda: log_mix(term(), torch.zeros(4, dtype=torch.int64)), "log_weights"),
    "save None": (lambda: kdm.save(rho(), None), "path"),
    "save int": (lambda: kdm.save(rho(), 3), "path"),
    "save unwritable": (lambda: kdm.save(rho(), FOLDER / "x"), "path"),
    "save NUL": (lambda: kdm.save(rho(), "a\0b"), "path"),
    "save long name": (lambda: kdm.save(rho(), "a" * 5000), "path"),
    "load None": (lambda: kdm.load(None), "path"),
    "load int": (lambda: kdm.load(3), "path"),
    "load NUL": (lambda: kdm.load("a\0b"), "path"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_error_names_the_argument(name: str) -> None:
    call, argument = BAD[name]
    with pytest.raises((ValueError, TypeError, MemoryError, OSError)) as caught:
        call()
    assert str(caught.value).startswith(
        (f"{argument}:", f"{argument}, ") if ":" not in argument else argument
    )


# ---- legal calls


def series(values: Any) -> Any:
    return pytest.importorskip("pandas").Series(values, index=np.arange(len(values))[::-1])


SOFTMAX = torch.linspace(0, 1, 1000).softmax(0).double()
IMAGES = kdm.Composed(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), kdm.RBF(1.0), event_dim=2)

#: By name: a call, and what it returns.
LEGAL: dict[str, tuple[Callable[[], Any], Any]] = {
    "float32 softmax in float64": (
        lambda: kdm.KDM(torch.randn(1000, 2).double(), SOFTMAX, kdm.RBF(1.0)).n_components,
        1000,
    ),
    "weights of whole numbers": (lambda: kdm.KDM(C, [0, 1, 0, 0], kdm.RBF(1.0)).mean.tolist(), [1.0]),
    "NumPy integers as sizes": (lambda: layer(np.int64(2), np.int32(2), np.int64(3)).n_components, 3),
    "a density layer's": (lambda: kdm.nn.DensityLayer(np.int64(2), np.int64(3)).n_components, 3),
    "shape of images": (lambda: tuple(layer((2, 2), in_kernel=IMAGES).components["x"].shape), (3, 2, 2)),
    "sample 3": (lambda: tuple(rho().sample(3).shape), (3, 1)),
    "sample NumPy": (lambda: tuple(rho().sample((np.int64(2), 0)).shape), (2, 0, 1)),
    "joint sample 3": (lambda: tuple(joint().sample(3)["x"].shape), (3, 1)),
    "expand 2": (lambda: tuple(rho().expand(2).batch_shape), (2,)),
    "shifted by a number": (lambda: rho().shifted(2).mean.item(), 3.5),
    "convolved with a number": (lambda: plane().convolved(1.0).variance.tolist(), [1.375, 1.375]),
    "coordinates of a tensor": (lambda: tuple(plane().coordinates(torch.tensor([1])).event_shape), (1,)),
    "coordinates of an array": (lambda: tuple(plane().coordinates(np.array([1, 0])).event_shape), (2,)),
    "a billion categories": (
        lambda: (
            kdm.KDM(torch.tensor([5, 10**12 - 1]), None, kdm.Categorical(10**12)).log_prob(5).exp().item()
        ),
        0.5,
    ),
    "reversed array": (lambda: rho().log_prob(np.zeros((3, 1))[::-1]).shape[0], 3),
    "meta device": (lambda: kdm.KDM(C.to("meta"), None, kdm.RBF(1.0)).log_prob(C).device.type, "meta"),
    "cross_entropy of lists": (
        lambda: training.cross_entropy(kdm.KDM.from_probs(P), [[1.0, 0.0], [1.0, 0.0]]).exp().tolist(),
        pytest.approx([1 / 0.3, 1 / 0.6]),
    ),
    "coverage, several": (lambda: fitted(regressor).predict_interval(X, [0.5, 0.9]).shape, (40, 2, 2)),
    "coverage, one": (lambda: fitted(regressor).predict_interval(X, np.float32(0.9)).shape, (40, 2)),
    "coverage, two outputs": (
        lambda: fitted(two_outputs).predict_interval(X, [0.5, 0.9, 0.99]).shape,
        (40, 2, 3, 2),
    ),
    "quantiles, one": (lambda: fitted(regressor).predict_quantiles(X, 0.5).shape, (40, 1)),
    "one level of bands": (lambda: len(bands(levels=0.5).collections), 1),
    "clip_norm inf": (lambda: training.FitOptions(clip_norm=INF).clip_norm, INF),
    "Series of rows": (lambda: density(series(X[:, 0])).n_features_in_, 1),
    "Series as components": (lambda: metrics.interval_width(series([0.0, 0.0]), [1.0, 2.0]).item(), 1.5),
}


def two_outputs() -> kdm.KDMRegressor:
    return regressor(y=np.stack([Y, -Y], 1))


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    call, wanted = LEGAL[name]
    assert call() == wanted


@pytest.mark.parametrize("make", [classifier, regressor, density])
@pytest.mark.parametrize("scale", [1e308, 1e-320])
def test_weights_of_any_scale(make: Callable[..., Any], scale: float) -> None:
    model, other = make(sample_weight=np.full(40, scale)), fitted(make)
    answers = (m.score_samples(X[:3]) for m in (model, other))
    np.testing.assert_allclose(*answers, rtol=1e-6)


def test_intervals_of_several_levels_are_those_of_each() -> None:
    model = fitted(regressor)
    both = model.predict_interval(X, [0.5, 0.9])
    np.testing.assert_array_equal(both[:, 1], model.predict_interval(X, 0.9))
    assert (both[:, 1, 0] < both[:, 0, 0]).all()


def test_columns_of_dates() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"a": X[:, 0], "b": DATES[:, 0]})
    with pytest.raises(
        ValueError, match="X: expected numbers, for example days since a date, got datetime64"
    ):
        density(frame)


# ---- devices


def test_values_are_moved_to_the_device_of_a_kdm() -> None:
    """The meta device stands for any other: a tensor of it beside one of the CPU raises in torch."""
    far = joint().to("meta")
    assert far.marginal("x").log_prob(C).is_meta
    assert far.infer(x=C).log_prob(torch.tensor([0, 1, 0, 1])).is_meta
    masked = far.infer(x=C, target="y", observed={"x": torch.tensor([True, False, True, True])})
    assert masked.probs.is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("trend", ["auto", None])
def test_answers_of_a_gpu_take_values_of_a_cpu(trend: Any) -> None:
    model = regressor(device="cuda", trend=trend, y=X[:, 0])
    answer, y = model.predict_dist(X), torch.tensor(X[:, :1])
    assert answer.mean.is_cuda
    np.testing.assert_allclose(answer.log_prob(y).cpu(), answer.to("cpu").log_prob(y), rtol=1e-6, atol=1e-6)
    assert answer.cdf(y).is_cuda
    assert classifier(device="cuda").joint_.log_prob(x=torch.tensor(X), y=torch.tensor(Y)).is_cuda
    assert density(device="cuda").kdm_.log_prob(torch.tensor(X)).is_cuda
