"""Models that version 0.2.0 saved load and answer as they did then.

`make_models.py` wrote the files, with the answers in `answers.json`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
from serialize.hostile import contents
from serialize.make_models import ENCODERS, MODELS, answers, plain

FOLDER = Path(__file__).parent / "models_0_2"
RECORD = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))["answers"]


# Parts of answers that later versions added.
ADDED = {"support"}


def test_every_model_has_answers() -> None:
    assert RECORD.keys() == MODELS.keys()
    assert {file.name for file in FOLDER.iterdir()} == {*MODELS, "answers.json"}


@pytest.mark.parametrize("name", RECORD)
def test_models_of_version_0_2_load_and_answer_as_before(name: str) -> None:
    modules = {"encoder": ENCODERS[name]()} if name in ENCODERS else {}
    model, expected = kdm.load(FOLDER / name, **modules), RECORD[name]
    replies = plain(answers(name, model, expected.get("events")))
    assert replies.keys() == expected.keys()
    assert_close(replies, expected, rtol(name), name)


#: Answers that 0.2.0 computed by quadrature across the kinks of a piecewise linear transform, right to 1e-5.
APPROXIMATIONS = ["kdm-transformed-quantile: mean", "kdm-transformed-quantile: variance"]


def rtol(name: str) -> float:
    """Relative to the largest number of an answer.

    CPUs sum in different orders. A rounding is 1e-16 in float64 and 6e-8 in float32, and the sums of networks
    in float32 have up to 256 terms: 1e-5 allows 160 roundings. In float64, 1e-6 is far above rounding errors.
    """
    tensors = contents(FOLDER / name)[1].values()
    return 1e-6 if all(t.dtype.itemsize == 8 or not t.is_floating_point() for t in tensors) else 1e-5


def assert_close(reply: Any, expected: Any, rtol: float, place: str) -> None:
    if isinstance(expected, dict):
        assert reply.keys() - ADDED == expected.keys()
        for key, value in expected.items():
            assert_close(reply[key], value, rtol, f"{place}: {key}")
    elif np.asarray(expected).dtype.kind == "f":
        finite = np.array(expected)[np.isfinite(expected)]
        rtol = 1e-4 if place in APPROXIMATIONS else rtol
        atol = rtol * np.abs(finite).max()
        np.testing.assert_allclose(reply, expected, rtol=rtol, atol=atol, err_msg=place)
    else:
        assert reply == expected, place
