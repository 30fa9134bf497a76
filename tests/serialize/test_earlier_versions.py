"""Models that earlier versions saved still load and give the answers that they gave then.

`models_0_1` was written by kdmkit 0.1.0; `answers.json` holds the inputs and what each model answered.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm

FOLDER = Path(__file__).parent / "models_0_1"
RECORD = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))
INPUTS = {name: np.array(values) for name, values in RECORD["inputs"].items()}
#: The inputs of the models that were not asked about `q`.
OTHER_INPUTS = {"regressor": "tq", "regressor-direct": "tq", "regressor-memory": "bq"}


@pytest.mark.parametrize("name", RECORD["answers"])
def test_models_of_version_0_1_load_with_the_same_answers(name: str) -> None:
    model = kdm.load(FOLDER / name)
    for question, wanted in RECORD["answers"][name].items():
        answer = np.asarray(_ask(model, question, INPUTS[OTHER_INPUTS.get(name, "q")]))
        np.testing.assert_allclose(answer, wanted, rtol=1e-4, atol=1e-6, err_msg=question)


def _ask(model: Any, question: str, x: np.ndarray) -> Any:
    if question == "std":
        return model.predict(x, return_std=True)[1]
    if question == "log_prob":
        return model.log_prob(torch.tensor([[0.5, 0.5]]))
    if question == "probs":
        points = torch.tensor(x, dtype=torch.float32)
        rho = model.infer(x=points) if isinstance(model, kdm.JointKDM) else model(points)
        return rho.probs.detach()
    return getattr(model, question)(x)
