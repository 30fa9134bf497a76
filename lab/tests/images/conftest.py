"""A table of a few hundred digits."""

from pathlib import Path

import pytest

from kdmlab.images import Plan, data, plan
from kdmlab.images.data import Pictures


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs see 400 digits to learn from and 100 to be judged by."""
    whole = data.pictures

    def some(*args: object, **options: object) -> Pictures:
        p = whole(*args, **options)  # type: ignore[arg-type]
        return Pictures(p.name, p.x_train[:400], p.y_train[:400], p.x_test[:100], p.y_test[:100])

    monkeypatch.setattr("kdmlab.images.jobs.pictures", some)


@pytest.fixture
def digits(tmp_path: Path) -> Plan:
    return plan(["digits"], data_dir=tmp_path / "data", work_dir=tmp_path / "runs", runs=1, device="cpu")
