"""The table of densities that choose for themselves."""

from typing import Any

import numpy as np
import pytest

from kdmlab import density_choice
from kdmlab.density_choice import FOLDS, KDE, KDM, MIXTURE, TABLES


def rows(values: dict[str, float], name: str) -> list[dict[str, Any]]:
    here = {"machine": {"cpu": "x", "cores": 1, "threads": 1, "accelerator": "none"}, "versions": {}}
    return [
        {
            "part": "test",
            "data": name,
            "fold": fold,
            "method": method,
            "log_density": value,
            "fit": 2.0 if method == KDM else 1.0,
            "shape": [100, 2],
            "seconds": 1.0,
            "finished": "2026-01-01T00:00:00+00:00",
            **here,
        }
        for method, value in values.items()
        for fold in range(FOLDS)
    ]


def test_claims_compare_with_the_best() -> None:
    first, second = TABLES["test"][:2]
    done = rows({KDM: 1.0, MIXTURE: 0.5, KDE: 0.0}, first) + rows({KDM: 1.0, MIXTURE: 1.4, KDE: 0.0}, second)
    report = density_choice.report(done)
    assert [row[1] for row in report.rows] == [first, second]
    claims = str(report.notes[0])
    for what in (
        "mean rank less the best peer's | ≤ 0 | 0 | yes",
        ".05 of the best | ≥ 0.8 | 0.5 | no",
        "| 0.4 | yes",
    ):
        assert what in claims
    assert "time over the mixtures' | ≤ 5 | 2 | yes" in claims


def test_the_tables_are_twenty_different_ones() -> None:
    assert len({name for names in TABLES.values() for name in names}) == 20


@pytest.mark.parametrize("method", [KDM, MIXTURE, KDE])
def test_every_method_has_densities(method: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    assert np.isfinite(density_choice.fitted(method, X).score_samples(X)).all()
