"""A small table, a small classifier of images, and a client of the server that shows them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from starlette.testclient import TestClient

import kdmkit as kdm
import typecheck
from kdmkit.explore import PageModel, create_app
from kdmkit.explore.page_models import ThreadModels

TOKEN = "secret"
HEADERS = {"X-Kdmkit-Token": TOKEN}


def parcels(n: int = 120) -> dict[str, Any]:
    """Parcels: numbers with and without a grid, levels with and without an order, dates, missing cells."""
    rng = np.random.default_rng(0)
    size = rng.choice(["small", "large", "huge"], n).astype(object)
    weight = np.select([size == "small", size == "large"], [1.0, 4.0], 9.0) + rng.normal(0, 0.4, n)
    weight[::11] = np.nan
    size[::13] = None
    return {
        "size": size,
        "weight": weight,
        "items": rng.poisson(20, n),
        "stars": rng.integers(1, 6, n),
        "fragile": rng.random(n) < 0.3,
        "sent": np.datetime64("2024-01-01") + rng.integers(0, 90, n).astype("timedelta64[D]"),
        "note": np.array([f"parcel {i}" for i in range(n)], dtype=object),
    }


@pytest.fixture(scope="session")
def table() -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=4, max_epochs=4, batch_size=64, random_state=0).fit(parcels())


def saved_model(table: kdm.KDMTable, folders: pytest.TempPathFactory) -> Path:
    """Where a model to measure is: the one that KDMKIT_EXPLORE_MODEL names, or a small table."""
    if "KDMKIT_EXPLORE_MODEL" in os.environ:
        return Path(os.environ["KDMKIT_EXPLORE_MODEL"])
    path = folders.mktemp("models") / "parcels"
    kdm.save(table, path)
    return path


@pytest.fixture(scope="session")
def classifier() -> kdm.KDMClassifier:
    X, y = load_digits(return_X_y=True)
    with typecheck.off():
        return kdm.KDMClassifier("nonparametric", sigma=2.0).fit(X[:300], y[:300])


@pytest.fixture(scope="session")
def client(table: kdm.KDMTable, classifier: kdm.KDMClassifier) -> Iterator[TestClient]:
    with typecheck.off():
        models = ThreadModels({"parcels": PageModel("parcels", table, path="parcels"), "digits": classifier})
        models.prepare()
        with TestClient(
            create_app(models, token=TOKEN), base_url="http://127.0.0.1", headers=HEADERS
        ) as client:
            yield client
