"""Generated odd frames and files: a table works with them, or a clear error says what is wrong.

`scripts/odd_inputs.py` measures the time and the memory until a refusal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.estimators.table.odd_data import odd_file, odd_frame

import kdmkit as kdm


def works_or_refuses(data: Callable[[], Any], folder: Path) -> None:
    """A table of the data draws, is saved and is loaded; or it is refused with a clear error."""
    text = "expected nothing"
    try:
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(data())
        table.sample(5, random_state=0)
        kdm.save(table, folder / "model")
        kdm.load(folder / "model").sample(2, random_state=0)
    except (ValueError, TypeError) as error:
        text = str(error)
    assert "expected" in text


@pytest.fixture(autouse=True)
def _quiet(unchecked: None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("seed", range(24))
def test_odd_frames(seed: int, tmp_path: Path) -> None:
    works_or_refuses(lambda: odd_frame(seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 524))
def test_many_odd_frames(seed: int, tmp_path: Path) -> None:
    works_or_refuses(lambda: odd_frame(seed), tmp_path)


# ---- files


@pytest.mark.parametrize("seed", range(16))
def test_odd_files(seed: int, tmp_path: Path) -> None:
    works_or_refuses(lambda: odd_file(seed, tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 216))
def test_many_odd_files(seed: int, tmp_path: Path) -> None:
    works_or_refuses(lambda: odd_file(seed, tmp_path), tmp_path)
