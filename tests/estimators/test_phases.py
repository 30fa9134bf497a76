"""The phases of a classifier's fit that users choose."""

from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.problems import blobs, digits

X, y = blobs(150)


def classifier(**parameters: Any) -> Any:
    return kdm.KDMClassifier(**{"max_epochs": 3, "encoder": "mlp", "random_state": 0, **parameters})


def test_the_kdm_alone_before_and_after() -> None:
    plain, model = classifier().fit(X, y), classifier(head_epochs=2).fit(X, y)
    assert plain.head_history_ == []
    assert len(model.head_history_) == 4
    assert len(model.history_) == len(model.pretraining_history_) == 3
    # The first phase is the same, the rest is not.
    assert model.pretraining_history_ == plain.pretraining_history_
    assert model.history_ != plain.history_
    assert np.array_equal(model.predict_proba(X), classifier(head_epochs=2).fit(X, y).predict_proba(X))


def test_the_kdm_alone_lowers_its_loss() -> None:
    X, _, y, _ = digits()
    model = classifier(head_epochs=4, generative_weight=0.0).fit(X, y)
    losses = [entry["loss"] for entry in model.head_history_]
    assert losses[3] < 0.5 * losses[0]
    assert losses[7] < min(losses[4], model.history_[-1]["loss"])


@pytest.mark.parametrize("encoder", [None, "mlp"])
@pytest.mark.parametrize("method", ["discriminative", "likelihood"])
def test_averaged_weights(encoder: Any, method: str) -> None:
    plain, model = (
        classifier(
            method=method, encoder=encoder, trend=None, averaging=averaging, validation_fraction=0.0
        ).fit(X, y)
        for averaging in (None, 0.5)
    )
    assert not np.allclose(model.predict_proba(X), plain.predict_proba(X))
    assert model.score(X, y) > 0.9
    if encoder is None:
        # Steps do not see the average.
        assert [e["loss"] for e in model.history_] == [e["loss"] for e in plain.history_]


def test_numbers_of_numpy() -> None:
    one = classifier(head_epochs=np.int64(2), averaging=np.float64(0.5)).fit(X, y)
    other = classifier(head_epochs=2, averaging=0.5).fit(X, y)
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X))


def test_saved_and_loaded(tmp_path: Any) -> None:
    model = classifier(head_epochs=1, averaging=0.5).fit(X, y)
    kdm.save(model, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    assert loaded.head_history_ == model.head_history_
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_epochs": -1}, "head_epochs: expected a whole number ≥ 0, got -1"),
        ({"head_epochs": 2.5}, "head_epochs: expected a whole number ≥ 0, got 2.5"),
        ({"head_epochs": 2, "encoder": None}, "head_epochs: expected 0 without an encoder, got 2"),
        ({"averaging": 0.0}, "averaging: expected 0 < averaging ≤ 1, or None, got 0.0"),
        ({"averaging": 2}, "averaging: expected 0 < averaging ≤ 1, or None, got 2"),
    ],
)
def test_what_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(**parameters).fit(X, y)


def test_a_users_encoder_comes_back_as_it_was() -> None:
    """Copies are trained, averaged and kept."""
    encoder = torch.nn.Linear(2, 2)
    before = encoder.weight.detach().clone()
    model = classifier(encoder=encoder, head_epochs=1, averaging=0.5).fit(X.astype(np.float32), y)
    assert torch.equal(encoder.weight, before)
    assert not torch.equal(model.module_.encoder.weight, before)
