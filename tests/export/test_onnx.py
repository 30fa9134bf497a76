"""Methods of estimators under `torch.export`, and in ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from export.models import CASES, answers, export, fitted, rows

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.* is deprecated:FutureWarning"  # torch's own
)


@pytest.mark.parametrize("name", CASES)
def test_methods_answer_the_same_after_export(name: str, tmp_path: Path) -> None:
    model, method = fitted(CASES[name][0]), CASES[name][1]
    program = export(model, method)
    torch.onnx.export(program, f=tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 7, 1000):
        x = rows(n)
        exported = program.module()(torch.from_numpy(x))
        exported = exported if isinstance(exported, tuple) else (exported,)
        for got in (session.run(None, {"x": x}), exported):
            for one, other in zip(got, answers(model, method, x), strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
