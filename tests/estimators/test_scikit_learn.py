"""Estimators among scikit-learn's: pipelines, searches, clones, pickles, weights, frames."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import kdmkit as kdm
from estimators.problems import bags, blobs

QUICK: dict[str, Any] = {"max_epochs": 3, "random_state": 0}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "density nonparametric": lambda: kdm.KDMDensity(random_state=0),
    "density likelihood": lambda: kdm.KDMDensity(method="likelihood", **QUICK),
    "classifier nonparametric": lambda: kdm.KDMClassifier(method="nonparametric", random_state=0),
    "classifier likelihood": lambda: kdm.KDMClassifier(method="likelihood", **QUICK),
    "classifier discriminative": lambda: kdm.KDMClassifier(**QUICK),
    "classifier mlp": lambda: kdm.KDMClassifier(encoder="mlp", decoder="mlp", **QUICK),
    "regressor": lambda: kdm.KDMRegressor(**QUICK),
    "regressor mlp": lambda: kdm.KDMRegressor(encoder="mlp", **QUICK),
    "proportions": lambda: kdm.KDMProportionClassifier(**QUICK),
    "proportions mlp": lambda: kdm.KDMProportionClassifier(encoder="mlp", **QUICK),
}
LEARNED_WITH_WEIGHTS = [n for n in ESTIMATORS if "proportions" not in n and "nonparametric" not in n]
X, y = blobs(120)


@pytest.fixture(params=ESTIMATORS)
def estimator(request: pytest.FixtureRequest) -> Any:
    return ESTIMATORS[request.param]()


@pytest.fixture(scope="module", params=ESTIMATORS)
def model(request: pytest.FixtureRequest) -> Any:
    """A fitted estimator that several tests ask."""
    return fitted(ESTIMATORS[request.param]())


def fitted(estimator: Any, X: Any = X) -> Any:
    if isinstance(estimator, kdm.KDMProportionClassifier):
        ids = np.arange(len(X)) // 4
        share = np.bincount(ids, y) / 4
        return estimator.fit(X, ids, np.column_stack([1 - share, share]))
    return estimator.fit(X, y)


def answers(estimator: Any, X: Any = X) -> dict[str, Any]:
    """Everything an estimator says about rows."""
    methods = ("score_samples", "predict_proba", "predict_log_proba", "predict", "predict_interval")
    return {name: getattr(estimator, name)(X) for name in methods if hasattr(estimator, name)}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def test_the_same_seed_gives_the_same_answers_bit_by_bit(estimator: Any) -> None:
    before = torch.get_rng_state()
    first = answers(fitted(estimator))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first, answers(fitted(clone(estimator))))


def test_another_seed_gives_other_answers() -> None:
    first, second = (kdm.KDMClassifier(max_epochs=2, random_state=s).fit(X, y) for s in (0, 1))
    assert not same(answers(first), answers(second))


def test_a_random_state_object_moves_on() -> None:
    rng = np.random.RandomState(0)
    first, second = (kdm.KDMRegressor(max_epochs=2, random_state=rng).fit(X, y) for _ in range(2))
    assert not same(answers(first), answers(second))


def test_pickles_answer_alike(model: Any) -> None:
    assert same(answers(model), answers(pickle.loads(pickle.dumps(model))))


def test_clones_are_unfitted_and_equal(model: Any) -> None:
    copy = clone(model)
    assert repr(copy) == repr(model)
    with pytest.raises(NotFittedError):
        copy.score_samples(X)


def test_clone_takes_modules_along() -> None:
    encoder = torch.nn.Linear(2, 4)
    copy = clone(kdm.KDMClassifier(encoder=encoder))
    assert copy.encoder is not encoder
    assert torch.equal(copy.encoder.weight, encoder.weight)


def test_a_users_module_is_left_alone() -> None:
    encoder = torch.nn.Linear(2, 4)
    before = encoder.weight.clone()
    kdm.KDMClassifier(encoder=encoder, **QUICK).fit(X, y)
    assert torch.equal(encoder.weight, before)
    assert encoder.weight.requires_grad


def test_answers_are_float64_whatever_comes(model: Any) -> None:
    wide, narrow = answers(model), answers(model, X.astype(np.float32))
    for name in wide:
        if name != "predict":
            assert wide[name].dtype == narrow[name].dtype == np.float64
            np.testing.assert_allclose(narrow[name], wide[name], rtol=1e-4, atol=1e-4)


def test_fit_on_float32_is_fit_on_float64(estimator: Any) -> None:
    narrow = X.astype(np.float32)
    first, second = (
        answers(fitted(estimator, narrow)),
        answers(fitted(clone(estimator), narrow.astype(float))),
    )
    assert all(np.allclose(first[k], second[k], rtol=1e-6, atol=1e-6) for k in first)


def test_integers_and_lists_are_rows() -> None:
    model = kdm.KDMClassifier(method="nonparametric").fit([[0, 1], [5, 6], [1, 0], [6, 5]], [0, 1, 0, 1])
    assert model.predict([[0, 0], [6, 6]]).tolist() == [0, 1]


def test_shown_in_notebooks() -> None:
    model = kdm.KDMClassifier(encoder=torch.nn.Linear(2, 2), **QUICK).fit(X, y)
    assert "KDMClassifier" in model._repr_html_()


def test_kinds() -> None:
    assert is_classifier(kdm.KDMClassifier())
    assert is_classifier(kdm.KDMProportionClassifier())
    assert is_regressor(kdm.KDMRegressor())


def test_pipelines() -> None:
    for model in (kdm.KDMClassifier(**QUICK), kdm.KDMRegressor(**QUICK), kdm.KDMDensity(random_state=0)):
        pipe = make_pipeline(StandardScaler(), model).fit(X, y)
        assert np.isfinite(pipe.score(X, y))
        assert pipe.score_samples(X).shape == (len(X),)


def test_set_output_goes_through_a_pipeline() -> None:
    pipe = make_pipeline(StandardScaler(), kdm.KDMClassifier(method="nonparametric"))
    assert pipe.set_output(transform="default").fit(X, y).predict(X).shape == (len(X),)


def test_searches_find_parameters_of_numpy_types() -> None:
    grid = {"n_components": np.array([2, 8]), "batch_size": np.array([32]), "sigma": ["auto", 0.5]}
    search = GridSearchCV(kdm.KDMClassifier(max_epochs=2, random_state=0), grid, cv=2, error_score="raise")
    assert search.fit(X, y).best_score_ > 0.9


def test_search_over_methods() -> None:
    grid = {"method": ["nonparametric", "likelihood"], "sigma": ["loo", 1.0]}
    search = GridSearchCV(kdm.KDMDensity(max_epochs=2, random_state=0), grid, cv=2, error_score="raise")
    assert np.isfinite(search.fit(X).best_score_)


def test_scorers_of_proper_scores() -> None:
    score = cross_val_score(
        kdm.KDMClassifier(**QUICK), X, y, scoring="neg_log_loss", cv=2, error_score="raise"
    )
    assert np.isfinite(score).all()


# ---- weights


@pytest.mark.parametrize("sigma", ["auto", "scott", "silverman", "loo", 0.7])
def test_weights_are_repetitions_of_nonparametric_densities(sigma: Any) -> None:
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = kdm.KDMDensity(sigma=sigma).fit(X, sample_weight=weights)
    repeated = kdm.KDMDensity(sigma=sigma).fit(np.repeat(X, weights, 0))
    np.testing.assert_allclose(weighted.score_samples(X), repeated.score_samples(X), rtol=1e-9)


@pytest.mark.parametrize("sigma", ["auto", "scott", 0.7])
def test_weights_are_repetitions_of_nonparametric_classifiers(sigma: Any) -> None:
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = kdm.KDMClassifier(method="nonparametric", sigma=sigma).fit(X, y, sample_weight=weights)
    repeated = kdm.KDMClassifier(method="nonparametric", sigma=sigma).fit(
        np.repeat(X, weights, 0), np.repeat(y, weights)
    )
    for method in ("predict_log_proba", "score_samples"):
        np.testing.assert_allclose(
            getattr(weighted, method)(X), getattr(repeated, method)(X), rtol=1e-8, atol=1e-13
        )


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if "proportions" not in name])
def test_only_ratios_of_weights_matter(name: str) -> None:
    weights = np.random.default_rng(0).random(len(X))
    first, second = (ESTIMATORS[name]().fit(X, y, sample_weight=scale * weights) for scale in (1.0, 1000.0))
    wanted = answers(second)
    for method, answer in answers(first).items():
        np.testing.assert_allclose(answer, wanted[method], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sigma", ["scott", "loo"])
def test_equal_weights_are_no_weights(sigma: Any) -> None:
    for model, targets in (
        (kdm.KDMDensity(sigma=sigma), ()),
        (kdm.KDMClassifier(method="nonparametric", sigma=sigma), (y,)),
    ):
        wanted = clone(model).fit(X, *targets).score_samples(X)
        for weight in (1e-3, 1.0, 1000.0):
            weighted = model.fit(X, *targets, sample_weight=np.full(len(X), weight))
            np.testing.assert_array_equal(weighted.score_samples(X), wanted)


@pytest.mark.parametrize("rule", ["scott", "loo"])
def test_the_size_of_fractional_weights_does_not_matter(rule: str) -> None:
    weights = np.random.default_rng(0).random(len(X)) / 100
    first = kdm.KDMDensity(sigma=rule).fit(X, sample_weight=weights)
    second = kdm.KDMDensity(sigma=rule).fit(X, sample_weight=weights / weights.sum())
    np.testing.assert_allclose(first.score_samples(X), second.score_samples(X))
    # Nor do they make a bandwidth of hardly any sample.
    assert first.score(X) > kdm.KDMDensity(sigma=rule).fit(X).score(X) - 0.3


@pytest.mark.parametrize("name", LEARNED_WITH_WEIGHTS)
def test_weight_zero_means_absent(name: str) -> None:
    weights = np.where(np.arange(len(X)) % 5 == 0, 0.0, 1.5)
    here = weights > 0
    weighted = ESTIMATORS[name]().fit(X, y, sample_weight=weights)
    absent = ESTIMATORS[name]().fit(X[here], y[here], sample_weight=weights[here])
    assert same(answers(weighted), answers(absent))


def test_weights_move_learned_classifiers() -> None:
    rng = np.random.default_rng(0)
    Z, labels = rng.normal(size=(400, 1)), rng.integers(2, size=400)
    weights = np.where(labels == 1, 9.0, 1.0)
    model = kdm.KDMClassifier(max_epochs=40, n_components=4, random_state=0).fit(
        Z, labels, sample_weight=weights
    )
    # The labels are noise: what is left to learn is their weighted share.
    assert abs(model.predict_proba(Z)[:, 1].mean() - 0.9) < 0.05


def test_weights_move_learned_densities() -> None:
    model = kdm.KDMDensity(method="likelihood", max_epochs=20, random_state=0)
    model.fit(X, sample_weight=np.where(y == 1, 9.0, 1.0))
    shares = [np.exp(model.kdm_.log_weights[_near(model, label)].numpy()).sum() for label in (0, 1)]
    assert shares[1] == pytest.approx(0.9, abs=0.05)


def _near(model: kdm.KDMDensity, label: int) -> Any:
    centres = model.kdm_.components.numpy()
    distances = [np.linalg.norm(centres - X[y == k].mean(0), axis=1) for k in (0, 1)]
    return torch.from_numpy(distances[label] < distances[1 - label])


# ---- frames


def test_frames_give_feature_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["width", "height"])
    model = kdm.KDMClassifier(**QUICK).fit(frame, pandas.Series(np.array(["no", "yes"])[y]))
    assert list(model.feature_names_in_) == ["width", "height"]
    assert set(model.predict(frame)) == {"no", "yes"}
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["height", "width"]])
    with pytest.warns(UserWarning, match="valid feature names"):
        model.predict(X)


def test_frames_from_pipelines() -> None:
    pytest.importorskip("pandas")
    pipe = make_pipeline(StandardScaler(), kdm.KDMRegressor(**QUICK)).set_output(transform="pandas")
    assert pipe.fit(X, y).predict(X).shape == (len(X),)


def test_frames_of_bags() -> None:
    pandas = pytest.importorskip("pandas")
    rows, ids, proportions, _ = bags(200)
    frame = pandas.DataFrame(rows, columns=["a", "b"])
    model = kdm.KDMProportionClassifier(**QUICK).fit(frame, pandas.Series(ids), pandas.DataFrame(proportions))
    assert list(model.feature_names_in_) == ["a", "b"]
    assert model.predict_proportions(frame, pandas.Series(ids)).shape == proportions.shape


def test_proportions_have_parameters_like_all_estimators() -> None:
    model = kdm.KDMProportionClassifier(n_components=7).set_params(max_epochs=2)
    assert model.get_params()["n_components"] == 7
    assert clone(model).max_epochs == 2
    assert model.fit(*bags(100)[:3]).n_features_in_ == 2
