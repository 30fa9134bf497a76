"""The demonstration on a table."""

import pytest

from kdmkit import KDMTable
from kdmlab import table_demo


def test_a_table_is_fitted_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quick(KDMTable):
        def __init__(self, **options: object) -> None:
            super().__init__(**{**options, "n_components": 4, "max_epochs": 3})

    monkeypatch.setattr(table_demo, "KDMTable", Quick)
    said: list[str] = []
    report = table_demo.run(say=said.append)
    assert report.rows[0][0].startswith("P(alcohol")
    assert "class_" in report.rows[1][1]
    assert report.rows[2][1].startswith("probability")
    assert said
