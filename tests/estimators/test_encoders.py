"""Encoders and decoders: from scratch, of one's own, on images."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import kdmkit as kdm
from estimators.problems import Array, ConvNet, Deconv, bags, blobs, digits, heteroscedastic


@pytest.fixture(scope="module")
def mlp() -> Any:
    """A model of digits behind an encoder from scratch, with a decoder."""
    X, X_test, y, y_test = digits()
    model = kdm.KDMClassifier(encoder="mlp", decoder="mlp", max_epochs=12, random_state=0).fit(X, y)
    return model, X_test, y_test


def images(X: Array) -> Array:
    return X.reshape(-1, 1, 8, 8)


@pytest.fixture(scope="module")
def convolutional() -> Any:
    X, X_test, y, y_test = digits()
    model = kdm.KDMClassifier(encoder=ConvNet(), decoder=Deconv(), max_epochs=6, random_state=0)
    return model.fit(images(X), y), images(X_test), y_test


def test_an_encoder_from_scratch_does_not_collapse(mlp: Any) -> None:
    model, X_test, y_test = mlp
    assert model.score(X_test, y_test) > 0.95
    z = model.module_.encode(torch.from_numpy(X_test))
    # All of the latent dimensions are in use.
    spectrum = torch.linalg.svdvals((z - z.mean(0)) / len(z) ** 0.5)
    assert (spectrum > 0.05 * spectrum[0]).sum() >= 8
    assert len(model.pretraining_history_) > 0


def test_latent_vectors_tell_novel_rows() -> None:
    """Digits 6 and 7 are left out; labels alone would let their latent vectors fall among the others."""
    X, X_test, y, y_test = digits()
    familiar, novel = ~np.isin(y, [6, 7]), np.isin(y_test, [6, 7])
    model = kdm.KDMClassifier(encoder="mlp", max_epochs=40, random_state=0).fit(X[familiar], y[familiar])
    assert roc_auc_score(novel, -model.score_samples(X_test)) > 0.97
    assert model.score(X_test[~novel], y_test[~novel]) > 0.96


def test_decoded_samples_are_read_as_their_label(mlp: Any) -> None:
    model, X_test, _ = mlp
    drawn = model.sample(100, y=3, random_state=0)
    assert drawn.shape == (100, 64)
    assert (model.predict(drawn) == 3).mean() >= 0.9
    # They are images in the units of the data, not latent vectors.
    assert abs(drawn.mean() - X_test.mean()) < 1.5


def test_decoding_undoes_encoding(mlp: Any) -> None:
    model, X_test, _ = mlp
    x = torch.from_numpy(X_test)
    with torch.no_grad():
        back = model.module_.decode(model.module_.encode(x))
    assert (back - x).square().mean() < 0.6 * x.var(0).mean()


def test_density_behind_an_encoder_is_that_of_the_latent_vector(mlp: Any) -> None:
    model, X_test, _ = mlp
    z = model.module_.encode(torch.from_numpy(X_test))
    np.testing.assert_allclose(model.joint_.marginal("x").log_prob(z), model.score_samples(X_test))


def test_convolutional_encoder_of_images(convolutional: Any) -> None:
    model, X_test, y_test = convolutional
    assert model.score(X_test, y_test) > 0.9
    assert model.sample(5, y=0).shape == (5, 1, 8, 8)
    with pytest.warns(UserWarning, match=r"score_samples: log p\(z\) was no part of the fit"):
        assert model.score_samples(X_test).shape == (len(X_test),)


def test_mlp_decoder_behind_an_encoder_of_images() -> None:
    X, _, y, _ = digits()
    model = kdm.KDMClassifier(encoder=ConvNet(), decoder="mlp", max_epochs=1, random_state=0)
    assert model.fit(images(X)[:200], y[:200]).sample(2, y=1).shape == (2, 1, 8, 8)


def test_a_likelihood_behind_an_encoder_does_not_shrink_the_latent_space() -> None:
    X, y = blobs(200, 5)
    model = kdm.KDMClassifier(method="likelihood", encoder=nn.Linear(5, 2), max_epochs=15, random_state=0)
    z = model.fit(X, y).module_.encode(torch.from_numpy(X))
    assert z.std(0).min() > 0.1
    assert model.score(X, y) > 0.9


@pytest.mark.slow
def test_regression_behind_encoders() -> None:
    X, y = heteroscedastic(500, seed=0)
    for encoder in ("mlp", nn.Sequential(nn.Linear(1, 32), nn.GELU(), nn.Linear(32, 4))):
        model = kdm.KDMRegressor(encoder=encoder, max_epochs=25, random_state=0).fit(X, 1e4 * y)
        assert model.score(X, 1e4 * y) > 0.55
        assert model.predict_interval(X).shape == (500, 2)


def test_proportions_behind_an_encoder_of_images() -> None:
    X, ids, proportions, y = bags(600, classes=2)
    wide = np.zeros((len(X), 1, 8, 8))
    wide[:, 0, 0, :2] = X
    torch.manual_seed(0)  # a module's start is its maker's: `random_state` is only the fit's
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 4))
    model = kdm.KDMProportionClassifier(encoder=encoder, max_epochs=20, random_state=0)
    assert model.fit(wide, ids, proportions).score(wide, y) > 0.9


def test_modules_of_other_precisions() -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(encoder=nn.Linear(2, 3).double(), max_epochs=3, random_state=0).fit(X, y)
    assert model.module_.encoder.weight.dtype == torch.float64
    assert model.score(X, y) > 0.9


def test_modules_without_parameters_and_frozen_ones() -> None:
    X, y = blobs()
    frozen = nn.Linear(2, 3).requires_grad_(False)
    for encoder in (nn.Identity(), frozen):
        model = kdm.KDMClassifier(encoder=encoder, max_epochs=5, random_state=0).fit(X, y)
        assert model.score(X, y) > 0.9
    assert torch.equal(model.module_.encoder.weight, frozen.weight)


def test_lazy_modules() -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(encoder=nn.LazyLinear(3), max_epochs=3, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9


def test_the_default_dtype_does_not_matter() -> None:
    X, y = blobs()
    plain = kdm.KDMClassifier(encoder="mlp", decoder="mlp", max_epochs=2, random_state=0)
    wanted = plain.fit(X, y).predict_proba(X)
    torch.set_default_dtype(torch.float64)
    try:
        got = plain.fit(X, y).predict_proba(X)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(got, wanted, atol=1e-3)


class Sideways(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1)


@pytest.mark.parametrize("encoder", [Sideways(), nn.Flatten(0)])
def test_encoders_that_give_no_vectors(encoder: nn.Module) -> None:
    X, y = blobs()
    with pytest.raises(ValueError, match=r"encoder: expected outputs of shape \(2, features\).*got"):
        kdm.KDMClassifier(encoder=encoder, max_epochs=1).fit(X, y)


def test_decoders_that_give_something_else() -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(encoder=nn.Linear(2, 3), decoder=nn.Linear(3, 5), max_epochs=1)
    with pytest.raises(ValueError, match=r"decoder: expected outputs of shape \(64, 2\), got \(64, 5\)"):
        model.fit(X, y)
