"""Bad input: every complaint names the argument, what was expected and what came."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from torch import nn

import kdmkit as kdm
from estimators.problems import bags, blobs

pytestmark = pytest.mark.usefixtures("unchecked")

X, y = blobs(60)
IDS, PROPORTIONS = np.arange(60) // 4, np.full((15, 2), 0.5)


def density(**parameters: Any) -> Any:
    return kdm.KDMDensity(**parameters).fit(X)


def classifier(**parameters: Any) -> Any:
    return kdm.KDMClassifier(**{"max_epochs": 1, **parameters}).fit(X, y)


def regressor(**parameters: Any) -> Any:
    return kdm.KDMRegressor(**{"max_epochs": 1, **parameters}).fit(X, y)


def proportions(X: Any = X, ids: Any = IDS, shares: Any = PROPORTIONS, **parameters: Any) -> Any:
    return kdm.KDMProportionClassifier(**{"max_epochs": 1, **parameters}).fit(X, ids, shares)


PARAMETERS: dict[str, tuple[Callable[[], Any], str]] = {
    "density method": (lambda: density(method="magic"), "method: expected one of .*got 'magic'"),
    "density covariance": (lambda: density(covariance="tied"), "covariance: expected one of .*got 'tied'"),
    "density sigma name": (
        lambda: density(sigma="magic"),
        "sigma: expected 'auto', a number > 0, 'scott'.*got 'magic'",
    ),
    "density sigma sign": (lambda: density(sigma=-1.0), "sigma: expected 'auto', a number > 0.*got -1.0"),
    "density sigma NaN": (lambda: density(sigma=np.nan), "sigma: expected 'auto', a number > 0.*got nan"),
    "density sigma of likelihood": (
        lambda: density(method="likelihood", sigma="magic"),
        "sigma: expected 'auto', a number > 0.*got 'magic'",
    ),
    "density components": (
        lambda: density(method="likelihood", n_components=0),
        "n_components: expected a whole number ≥ 1 or 'auto', got 0",
    ),
    "density device": (lambda: density(device="tpu"), "device: expected one of .*got 'tpu'"),
    "classifier method": (lambda: classifier(method="magic"), "method: expected one of .*got 'magic'"),
    "classifier encoder": (
        lambda: classifier(encoder="cnn"),
        "encoder: expected None, 'mlp' or an nn.Module, got 'cnn'",
    ),
    "classifier decoder": (
        lambda: classifier(encoder="mlp", decoder=3),
        "decoder: expected None, 'mlp' or an nn.Module, got 3",
    ),
    "decoder without encoder": (
        lambda: classifier(decoder="mlp"),
        "decoder: expected None without an encoder, got 'mlp'",
    ),
    "nonparametric encoder": (
        lambda: classifier(method="nonparametric", encoder="mlp"),
        "encoder: expected None for method='nonparametric', got 'mlp'",
    ),
    "classifier sigma": (
        lambda: classifier(sigma="scott"),
        "sigma: expected 'auto' or a number > 0, got 'scott'",
    ),
    "classifier sigma None": (
        lambda: classifier(sigma=None),
        "sigma: expected 'auto' or a number > 0, got None",
    ),
    "classifier weight": (
        lambda: classifier(generative_weight=-1),
        "generative_weight: expected 'auto' or a number ≥ 0, got -1",
    ),
    "classifier noise": (lambda: classifier(noise=-0.1), "noise: expected a number ≥ 0, got -0.1"),
    "max_epochs": (lambda: classifier(max_epochs=0), "max_epochs: expected a whole number ≥ 1, got 0"),
    "max_epochs of nonparametric": (
        lambda: classifier(method="nonparametric", max_epochs=0),
        "max_epochs: expected a whole number ≥ 1, got 0",
    ),
    "batch_size": (lambda: regressor(batch_size=1.5), "batch_size: expected a whole number ≥ 1, got 1.5"),
    "learning_rate": (lambda: regressor(learning_rate=0), "learning_rate: expected .*> 0, got 0"),
    "patience": (lambda: regressor(patience=0), "patience: expected a whole number ≥ 1, got 0"),
    "validation": (
        lambda: regressor(validation_fraction=1.0),
        "validation_fraction: expected 0 ≤ validation_fraction < 1, got 1.0",
    ),
    "classifier validation": (
        lambda: classifier(validation_fraction=-0.1),
        "validation_fraction: expected 0 ≤ validation_fraction < 1, got -0.1",
    ),
    "regressor loss": (lambda: regressor(loss="mae"), "loss: expected one of .*got 'mae'"),
    "regressor weight": (
        lambda: regressor(generative_weight="auto"),
        "generative_weight: expected a number ≥ 0, got 'auto'",
    ),
    "components": (
        lambda: regressor(n_components=2.5),
        "n_components: expected a whole number ≥ 1 or 'auto', got 2.5",
    ),
    "checkpoints without a seed": (
        lambda: regressor(checkpoint_dir="somewhere"),
        "random_state: expected an integer beside checkpoint_dir.*got None",
    ),
    "random_state": (lambda: regressor(random_state="x"), "'x' cannot be used to seed"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    call, message = PARAMETERS[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("method", ["nonparametric", "discriminative"])
def test_no_cuda(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device: expected 'cpu' or 'auto' .*, got 'cuda'"):
        classifier(method=method, device="cuda")


DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "texts": (
        lambda: kdm.KDMDensity().fit([["red", "1"], ["blue", "2"]]),
        "X: expected numbers .kdmkit.KDMTable takes texts.*, got could not convert string to float: .*red",
    ),
    "one class": (
        lambda: kdm.KDMClassifier().fit(X, np.full(60, "cat")),
        "y: expected at least two classes, got one class, .*'cat'",
    ),
    "one class with weight": (
        lambda: kdm.KDMClassifier().fit(X, y, sample_weight=(y == 0)),
        "y: expected at least two classes, got one class",
    ),
    "no weight": (lambda: kdm.KDMRegressor().fit(X, y, sample_weight=np.zeros(60)), "weight"),
    "negative weight": (
        lambda: kdm.KDMDensity().fit(X, sample_weight=-np.ones(60)),
        "[Nn]egative.*sample_weight",
    ),
    "weights of other rows": (
        lambda: kdm.KDMDensity().fit(X, sample_weight=np.ones(3)),
        r"sample_weight.*\(3,\)",
    ),
    "bags without rows": (
        lambda: proportions(shares=np.full((16, 2), 0.5)),
        "bags: expected at least one row in every bag, got none in bag 15",
    ),
    "proportions that do not sum to 1": (
        lambda: proportions(shares=np.vstack([PROPORTIONS[:14], [[0.5, 0.4]]])),
        "proportions: expected non-negative rows that sum to 1, got a sum of 0.9 in row 14",
    ),
    "negative proportions": (
        lambda: proportions(shares=np.tile([1.5, -0.5], (15, 1))),
        "proportions: expected non-negative rows that sum to 1, got a value of -0.5",
    ),
    "NaN proportions": (
        lambda: proportions(shares=np.full((15, 2), np.nan)),
        "proportions: expected non-negative rows that sum to 1, got a value of nan",
    ),
    "one column of proportions": (
        lambda: proportions(shares=np.ones((15, 1))),
        r"proportions: expected shape \(n_bags, n_classes ≥ 2\), or .* for ranges, got \(15, 1\)",
    ),
    "a bag without proportions": (
        lambda: proportions(ids=IDS + 1),
        "bags: expected ids with proportions, 0 … 14, got 15",
    ),
    "negative bags": (
        lambda: proportions(ids=IDS - 1),
        "bags: expected ids with proportions, 0 … 14, got -1",
    ),
    "bags that are no integers": (
        lambda: proportions(ids=IDS / 2),
        r"bags: expected 60 integer ids, one per row, got float64 of shape \(60,\)",
    ),
    "bags of other rows": (
        lambda: proportions(ids=IDS[:10]),
        r"bags: expected 60 integer ids, one per row, got int64 of shape \(10,\)",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    call, message = DATA[name]
    with pytest.raises(ValueError, match=message):
        call()


ESTIMATORS: dict[str, Callable[[Any], Any]] = {
    "density": lambda X: kdm.KDMDensity().fit(X),
    "likelihood": lambda X: kdm.KDMDensity(method="likelihood").fit(X),
    "classifier": lambda X: kdm.KDMClassifier().fit(X, y),
    "own encoder": lambda X: kdm.KDMClassifier(encoder=nn.Linear(2, 2)).fit(X, y),
    "regressor": lambda X: kdm.KDMRegressor().fit(X, y),
    "proportions": lambda X: proportions(X),
}


@pytest.mark.parametrize(("value", "message"), [(np.nan, "X contains NaN"), (np.inf, "X contains infinity")])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_values_that_are_no_numbers(name: str, value: float, message: str) -> None:
    bad = X.copy()
    bad[3, 1] = value
    with pytest.raises(ValueError, match=message):
        ESTIMATORS[name](bad)


def test_targets_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="y contains NaN"):
        kdm.KDMRegressor().fit(X, np.where(y == 0, np.nan, 1.0))
    with pytest.raises(ValueError, match="continuous"):
        kdm.KDMClassifier().fit(X, X[:, 0])


def test_new_rows_are_checked() -> None:
    for model in (density(), classifier(), regressor(), proportions()):
        with pytest.raises(ValueError, match="X contains NaN"):
            model.score_samples(np.full((2, 2), np.nan))
        with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 2"):
            model.score_samples(np.zeros((2, 3)))


QUESTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "unseen label": (lambda: classifier().sample(y=7), r"y: expected one of \[0, 1\], got 7"),
    "unseen string": (lambda: classifier().sample(y="cat"), r"y: expected one of \[0, 1\], got 'cat'"),
    "probabilities of other classes": (
        lambda: classifier().sample(y=[0.2, 0.3, 0.5]),
        r"y: expected shape \(2,\), got \(3,\)",
    ),
    "probabilities that do not sum to 1": (
        lambda: classifier().sample(y=[0.2, 0.3]),
        "y: expected non-negative values that sum to 1, got a sum of 0.5",
    ),
    "no samples": (lambda: classifier().sample(0, y=0), "n_samples: expected a whole number ≥ 1, got 0"),
    "no draws": (lambda: density().sample(-1), "n_samples: expected a whole number ≥ 1, got -1"),
    "half a draw": (lambda: regressor().sample_y(X, 0.5), "n_samples: expected a whole number ≥ 1, got 0.5"),
    "no spread": (lambda: classifier().sample(y=0, spread=0.0), "spread: expected > 0, got 0.0"),
    "no decoder": (
        lambda: classifier(encoder="mlp").sample(y=0),
        "decoder: expected one that was fitted, to sample behind an encoder, got None",
    ),
    "coverage": (
        lambda: regressor().predict_interval(X, 1.0),
        "coverage: expected numbers strictly between 0 and 1, got 1.0",
    ),
    "quantiles": (
        lambda: regressor().predict_quantiles(X, [0.5, 1.5]),
        r"quantiles: expected numbers strictly between 0 and 1, got \[0.5, 1.5\]",
    ),
    "new bags without rows": (
        lambda: proportions().predict_proportions(X, IDS + 1),
        "bags: expected at least one row in every bag, got none in bag 0",
    ),
    "new bags of other rows": (
        lambda: proportions().predict_proportions(X, [0]),
        r"bags: expected 60 integer ids, one per row, got int64 of shape \(1,\)",
    ),
    "new bags that are no integers": (
        lambda: proportions().predict_proportions(X, X[:, 0]),
        r"bags: expected 60 integer ids, one per row, got float64 of shape \(60,\)",
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name: str) -> None:
    call, message = QUESTIONS[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "model", [kdm.KDMDensity(), kdm.KDMClassifier(), kdm.KDMRegressor(), kdm.KDMProportionClassifier()]
)
def test_questions_before_fit(model: Any) -> None:
    methods = {
        "score_samples": X,
        "score": (X, y),
        "predict": X,
        "predict_proba": X,
        "predict_log_proba": X,
        "predict_dist": X,
        "predict_quantiles": (X, 0.5),
        "predict_interval": X,
        "predict_proportions": (X, IDS),
        "sample_y": X,
    }
    for name, arguments in methods.items():
        if hasattr(model, name):
            with pytest.raises(NotFittedError):
                getattr(model, name)(*(arguments if isinstance(arguments, tuple) else (arguments,)))
    for name in ("kdm_", "joint_"):
        if name in dir(type(model)):
            with pytest.raises(NotFittedError):
                getattr(model, name)
    if hasattr(model, "sample"):
        with pytest.raises(NotFittedError):
            model.sample(**({"y": 0} if isinstance(model, kdm.KDMClassifier) else {}))


def test_a_failed_fit_leaves_the_earlier_one() -> None:
    model = classifier()
    before = model.predict_proba(X)
    for bad in ({"learning_rate": -1.0}, {"sigma": "magic"}, {"n_components": -1}):
        with pytest.raises(ValueError, match="expected"):
            kdm.KDMClassifier.fit(model.set_params(**bad), X, np.array(["a", "b", "c"])[np.arange(60) % 3])
        model.set_params(learning_rate=1e-2, sigma="auto", n_components="auto")
    assert np.array_equal(model.predict_proba(X), before)
    assert model.classes_.tolist() == [0, 1]


# ---- fewer samples than components


@pytest.mark.parametrize(
    "fit",
    [
        lambda: kdm.KDMDensity(method="likelihood", n_components=100, max_epochs=1).fit(X),
        lambda: classifier(n_components=100),
        lambda: regressor(n_components=100),
        lambda: proportions(n_components=100),
    ],
    ids=["density", "classifier", "regressor", "proportions"],
)
def test_fewer_samples_than_components(fit: Callable[[], Any]) -> None:
    with pytest.warns(UserWarning, match=r"n_components: 100 is more than the 60 samples .* 60 are used"):
        model = fit()
    layer = model.module_ if isinstance(model, kdm.KDMDensity) else model.module_.layer
    assert layer.n_components == 60


def test_automatic_numbers_of_components_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 3, 10):
            kdm.KDMClassifier(max_epochs=1).fit(X[:n], y[:n])
            kdm.KDMRegressor(max_epochs=1).fit(X[:n], y[:n])
            kdm.KDMDensity(method="likelihood", max_epochs=1).fit(X[:n])


# ---- checkpoints


def test_a_checkpoint_of_another_configuration(tmp_path: Path) -> None:
    classifier(checkpoint_dir=tmp_path, random_state=0)
    wanted = (
        "checkpoint_dir: expected a checkpoint of this configuration and data, or an empty folder, got one"
    )
    others: list[dict[str, Any]] = [
        {"noise": 0.5},
        {"random_state": 1},
        {"n_components": 3},
        {"batch_size": 5},
    ]
    for other in others:
        with pytest.raises(ValueError, match=re.escape(wanted)):
            classifier(**{"checkpoint_dir": tmp_path, "random_state": 0, **other})
    with pytest.raises(ValueError, match=re.escape(wanted)):
        kdm.KDMClassifier(max_epochs=1, checkpoint_dir=tmp_path, random_state=0).fit(X[::-1], y)
    model = kdm.KDMClassifier(max_epochs=1, checkpoint_dir=tmp_path, random_state=0)
    with pytest.raises(ValueError, match=re.escape(wanted)):
        model.fit(X, y, sample_weight=np.linspace(1, 2, 60))


def test_a_checkpoint_of_other_modules(tmp_path: Path) -> None:
    classifier(encoder=nn.Linear(2, 2), checkpoint_dir=tmp_path, random_state=0)
    with pytest.raises(ValueError, match="checkpoint_dir: expected a checkpoint of this configuration"):
        classifier(encoder=nn.Linear(2, 2), checkpoint_dir=tmp_path, random_state=0)


def test_a_checkpoint_of_other_bags(tmp_path: Path) -> None:
    rows, ids, shares, _ = bags(100)
    options = {"checkpoint_dir": tmp_path, "random_state": 0}
    proportions(rows, ids, shares, **options)
    moved = rows.copy()
    moved[5] += 1
    with pytest.raises(ValueError, match="checkpoint_dir: expected a checkpoint of this configuration"):
        proportions(moved, ids, shares, **options)


def test_targets_in_words() -> None:
    with pytest.raises(ValueError, match=r"y: expected numbers, got <U5"):
        kdm.KDMRegressor(max_epochs=1).fit(X, np.where(y == 0, "small", "large"))
