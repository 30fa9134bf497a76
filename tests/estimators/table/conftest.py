"""A small table with columns of many kinds, and a model of it."""

from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
import typecheck

pd = pytest.importorskip("pandas")
pytest.importorskip("narwhals")


def shop_frame(n: int = 400, seed: int = 0) -> Any:
    """Parcels: their size tells their weight; most have no fee; some cells are missing."""
    rng = np.random.default_rng(seed)
    size = rng.choice(["small", "large", "huge"], n, p=[0.5, 0.3, 0.2])
    frame = pd.DataFrame(
        {
            "size": pd.Categorical(size, ["small", "large", "huge", "giant"]),
            "weight": np.select([size == "small", size == "large"], [1.0, 4.0], 9.0) + rng.normal(0, 0.4, n),
            "fee": np.where(rng.random(n) < 0.6, 0.0, rng.exponential(20, n)),
            "items": rng.poisson(np.where(size == "small", 2, 6)),
            "fragile": rng.random(n) < np.where(size == "huge", 0.7, 0.2),
            "sent": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, n), unit="D"),
            "id": [f"parcel-{i}" for i in range(n)],
        },
        index=np.arange(n) + 1000,
    )
    frame.loc[frame.index[rng.random(n) < 0.1], "weight"] = np.nan
    frame.loc[frame.index[rng.random(n) < 0.1], "size"] = None
    return frame


@pytest.fixture(scope="session")
def parcels() -> Any:
    return shop_frame()


@pytest.fixture(scope="session")
def table(parcels: Any) -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=6, max_epochs=12, batch_size=64, random_state=0).fit(parcels)
