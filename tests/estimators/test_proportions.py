"""Learning from label proportions."""

import resource
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import kdmkit as kdm
from estimators.problems import bags
from kdmkit.estimators._bags import Bags

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture(scope="module", params=[2, 3])
def fitted(request: pytest.FixtureRequest) -> Any:
    X, ids, proportions, _ = bags(900, classes=request.param)
    model = kdm.KDMProportionClassifier(max_epochs=40, random_state=0).fit(X, ids, proportions)
    return model, *bags(600, classes=request.param, seed=1)


def test_rows_are_told_apart(fitted: Any) -> None:
    model, X, _, _, y = fitted
    probs = model.predict_proba(X)
    truth, score = (y, probs[:, 1]) if probs.shape[1] == 2 else (y, probs)
    assert roc_auc_score(truth, score, multi_class="ovr") > 0.9
    assert model.score(X, y) > 0.8
    np.testing.assert_array_equal(model.predict(X), probs.argmax(1))


def test_proportions_of_new_bags(fitted: Any) -> None:
    model, X, ids, proportions, _ = fitted
    predicted = model.predict_proportions(X, ids)
    assert predicted.shape == proportions.shape
    np.testing.assert_allclose(predicted.sum(1), 1)
    sizes = np.bincount(ids)
    error = np.abs(predicted - proportions)[sizes >= 10]
    assert error.mean() < 0.1
    probs = model.predict_proba(X)
    np.testing.assert_allclose(predicted[3], probs[ids == 3].mean(0))


def test_a_bag_is_an_input_distribution(fitted: Any) -> None:
    """The mean over rows is inference from a KDM with a component per row (the paper's Algorithm 4)."""
    model, X, ids, _, _ = fitted
    joint = model.module_.joint()
    inside = kdm.KDM.from_samples(torch.from_numpy(X[ids == 0]), joint.kernels["x"])
    np.testing.assert_allclose(joint.infer(x=inside).probs, model.predict_proportions(X, ids)[0], atol=1e-9)


def test_density_in_the_units_of_the_data() -> None:
    X, ids, proportions, _ = bags(300)
    model = kdm.KDMProportionClassifier(max_epochs=3, random_state=0).fit(X * [30.0, 0.1], ids, proportions)
    axes = [30 * np.linspace(-8, 11, 301), 0.1 * np.linspace(-8, 11, 301)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    assert np.exp(model.score_samples(grid)).sum() * cell == pytest.approx(1, abs=1e-3)


def test_the_order_of_rows_does_not_matter() -> None:
    X, ids, proportions, _ = bags(300)
    order = np.random.default_rng(0).permutation(300)
    # Whole batches, no validation and no choice of components: nothing is left to chance.
    model = kdm.KDMProportionClassifier(
        max_epochs=3, n_components=300, batch_size=1000, validation_fraction=0, noise=0, random_state=0
    )
    first = model.fit(X, ids, proportions).predict_proba(X)
    second = model.fit(X[order], ids[order], proportions).predict_proba(X)
    np.testing.assert_allclose(first, second, atol=1e-4)


def test_proportions_written_with_three_digits() -> None:
    X, ids, proportions, _ = bags(200)
    model = kdm.KDMProportionClassifier(max_epochs=2, random_state=0)
    exact = model.fit(X, ids, proportions).predict_proba(X)
    rounded = model.fit(X, ids, proportions.round(4)).predict_proba(X)
    narrow = model.fit(X, ids, proportions.astype(np.float32)).predict_proba(X)
    np.testing.assert_allclose(rounded, exact, atol=1e-2)
    np.testing.assert_allclose(narrow, exact, atol=1e-3)


def test_bags_of_one_row_are_labels() -> None:
    X, _, _, y = bags(200, classes=2)
    model = kdm.KDMProportionClassifier(max_epochs=20, random_state=0).fit(X, np.arange(200), np.eye(2)[y])
    assert model.score(X, y) > 0.95


def test_one_bag_is_not_an_error() -> None:
    X, _, _, _ = bags(50)
    model = kdm.KDMProportionClassifier(max_epochs=5, random_state=0).fit(
        X, np.zeros(50, int), [[0.2, 0.3, 0.5]]
    )
    np.testing.assert_allclose(model.predict_proportions(X, np.zeros(50, int)), [[0.2, 0.3, 0.5]], atol=0.1)


def test_ragged_bags_side_by_side() -> None:
    bags = Bags(torch.arange(5.0).unsqueeze(1), torch.tensor([2, 0, 2, 1, 2]))
    assert bags.first.tolist() == [0, 1, 2]
    assert bags.size.tolist() == [1, 1, 3]
    z, weights = bags.answers(None, bags.first[1:], bags.size[1:])
    assert z.squeeze(-1).tolist() == [[3, 0, 0], [0, 2, 4]]
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3]]))


def test_uneven_bags_take_no_more_memory_than_their_rows() -> None:
    """Side by side, one bag of 20,000 rows and 2,000 of one would be 40 million vectors."""
    n = 20_000
    X = np.random.default_rng(0).normal(size=(n + 2000, 3))
    ids = np.concatenate([np.zeros(n, int), np.arange(1, 2001)])
    model = kdm.KDMProportionClassifier(max_epochs=1, n_components=4, batch_size=200, random_state=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.fit(X, ids, np.full((2001, 2), 0.5))
    # Kilobytes; a batch with the large bag is 4 million vectors and their overlaps.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000
