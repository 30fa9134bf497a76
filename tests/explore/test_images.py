"""What the page shows of a classifier of images."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter
from sklearn.datasets import load_digits
from starlette.testclient import TestClient

import kdmkit as kdm
from kdmkit.explore import endpoints as r
from kdmkit.explore.page_models import wrap

pytestmark = pytest.mark.usefixtures("unchecked")


def test_the_description_of_the_images(client: TestClient) -> None:
    view = r.ImageView.model_validate(client.get("/api/models/digits").json())
    assert (view.height, view.width, view.low, view.high) == (8, 8, 0, 16)
    assert view.classes == list(range(10))
    top, left, bottom, right = view.box
    assert (top, bottom) == (0, 7)
    assert 0 < left < right < 7
    assert view.ink == pytest.approx(load_digits().data[:300].mean() / 16, abs=0.01)


def test_an_image_is_read_as_the_library_reads_it(client: TestClient, classifier: kdm.KDMClassifier) -> None:
    X = load_digits().data[300:301]
    body = {"pixels": X[0].tolist()}
    found = r.ImageReading.model_validate(client.post("/api/models/digits/read", json=body).json())
    np.testing.assert_allclose(found.probabilities, classifier.predict_proba(X)[0])
    assert found.log_density == f"{classifier.score_samples(X)[0]:.4g}"
    assert found.usual > 0.01
    noise = {"pixels": np.random.default_rng(0).uniform(0, 16, 64).tolist()}
    assert client.post("/api/models/digits/read", json=noise).json()["usual"] == 0


def test_images_of_a_label(client: TestClient, classifier: kdm.KDMClassifier) -> None:
    body = {"label": 3, "n": 20, "spread": 0.3, "seed": 0}
    answer = client.post("/api/models/digits/images", json=body).json()
    images = np.asarray(TypeAdapter(r.DrawnImages).validate_python(answer)["images"])
    assert images.shape == (20, 64)
    assert images.min() >= 0
    assert images.max() <= 16
    assert (classifier.predict(images) == 3).mean() > 0.9


@pytest.mark.parametrize("body", [{"pixels": [0] * 63}, {"pixels": ["a"] * 64}, {"pixels": []}, {}])
def test_images_that_cannot_be_read(client: TestClient, body: object) -> None:
    assert client.post("/api/models/digits/read", json=body).status_code == 422


def test_unknown_labels_are_refused(client: TestClient) -> None:
    response = client.post("/api/models/digits/images", json={"label": "three"})
    assert response.status_code == 422
    assert "expected one of" in response.json()["error"]


def test_models_that_the_page_cannot_show(classifier: kdm.KDMClassifier) -> None:
    X, y = load_digits(return_X_y=True)
    with pytest.raises(ValueError, match="a classifier of square images"):
        wrap("rows", kdm.KDMClassifier("nonparametric", sigma=1.0).fit(X[:50, :5], y[:50]))
    with pytest.raises(TypeError, match="expected a KDMTable or a KDMClassifier, got str"):
        wrap("text", "model")
