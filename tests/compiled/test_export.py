"""Methods of estimators under `torch.export`, with a dynamic batch."""

import numpy as np
import pytest
import torch

from compiled.conftest import slow_except
from export.models import CASES, answers, export, fitted, rows


# `make test-export` runs all cases.
@pytest.mark.parametrize(
    "name",
    [
        "density, score_samples",
        *slow_except(["classifier behind an encoder, predict_proba", "regressor with a memory, predict"]),
    ],
)
def test_methods_export_with_a_dynamic_batch(name):
    model, method = fitted(CASES[name][0]), CASES[name][1]
    program = export(model, method).module()
    # 5,000 rows are more than the estimator answers at once.
    for n in (1, 7, 5000):
        x = rows(n)
        got = program(torch.from_numpy(x))
        got = got if isinstance(got, tuple) else (got,)
        for one, other in zip(got, answers(model, method, x), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_module_owns_its_parameters():
    model = fitted("classifier")
    module, x = model.to_module("predict_proba"), torch.from_numpy(rows(5))
    before = model.predict_proba(rows(5))
    for parameter in module.parameters():
        parameter.data.zero_()
    np.testing.assert_array_equal(model.predict_proba(rows(5)), before)
    assert not np.allclose(module(x), before)


def test_other_methods_are_refused():
    with pytest.raises(ValueError, match="method: expected one of"):
        fitted("density").to_module("sample")
