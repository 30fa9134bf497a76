"""Random questions to tables with columns of all kinds satisfy the laws of probability.

`scripts/laws.py` asks more of them, also about real tables.
"""

import functools
import zlib
from pathlib import Path

import pytest
import torch

pytest.importorskip("pandas")
pytest.importorskip("narwhals")

import typecheck
from laws.checks import Laws, fitted, saved_and_loaded
from laws.frames import MAKERS, MISSING_MAKERS, LawFrame, random_frame

_N_FRAMES = 6
_NEWER = ["list of 60 with missing", "dollars", "decimal commas", "texts among numbers", "city", "area"]
_NEWER += ["ordered band", "band with missing", "number of band", "days", "at least"]
_LAWS = sorted(name.removeprefix("law_") for name in dir(Laws) if name.startswith("law_"))
pytestmark = pytest.mark.filterwarnings("ignore")


def shared_frame(place: int) -> LawFrame:
    """One of some frames that have all kinds of columns together: then missing cells, then functions."""
    step = _N_FRAMES - 2
    others = [[*MISSING_MAKERS, "step 1e-1", "category"], _NEWER]
    return random_frame(place, sources=sorted(MAKERS)[place::step] if place < step else others[place - step])


@functools.cache
def shared_laws(place: int) -> Laws:
    with typecheck.off():
        frame = shared_frame(place)
        dtype = torch.float64 if place % 2 else torch.float32
        return Laws(fitted(frame, max_epochs=1, dtype=dtype), frame, place)


def check(laws: Laws, law: str, n: int) -> None:
    for _ in range(n):
        deviation = laws.laws[law]()
        assert deviation is None or deviation <= laws.tolerance, (law, deviation, laws.question)


@pytest.mark.parametrize("law", [law for law in _LAWS if law != "saved"])
@pytest.mark.parametrize("place", range(_N_FRAMES))
def test_laws(place: int, law: str) -> None:
    laws = shared_laws(place)
    laws.rng.seed(zlib.crc32(law.encode()))
    check(laws, law, 1 if law == "pairs" else 2)


@pytest.mark.parametrize("place", range(_N_FRAMES))
def test_draws_satisfy_their_event_as_often_as_it_says(place: int) -> None:
    laws = shared_laws(place)
    laws.rng.seed(place)
    for _ in range(2):
        p_value, n_bad = laws.violations(500)
        assert n_bad == 0, laws.question
        assert p_value is None or p_value > 1e-6, laws.question
    laws.rng.seed(7 + place)
    p_value, n_bad = laws.violations(200, with_pair=True)
    assert n_bad == 0, laws.question
    assert p_value is None or p_value > 1e-6, laws.question


def test_saved_tables_satisfy_the_same(tmp_path: Path) -> None:
    laws = shared_laws(0)
    laws.again = saved_and_loaded(laws.table, tmp_path)
    check(laws, "saved", 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_laws_of_many_tables(seed: int, tmp_path: Path) -> None:
    frame = random_frame(seed)
    table = fitted(frame)
    laws = Laws(table, frame, seed, saved_and_loaded(table, tmp_path))
    for law in _LAWS:
        check(laws, law, 2 if law == "pairs" else 10)
    p_values = []
    for _ in range(10):
        p_value, n_bad = laws.violations(2000)
        assert n_bad == 0, laws.question
        p_values += [] if p_value is None else [p_value]
    assert min(p_values, default=1) > 1e-7
