"""Checks of user input: what passes, what does not, and the messages."""

import math

import numpy as np
import pytest
import torch

from helpers import simplex
from kdmkit._core import checks

HALF = (torch.float16, torch.bfloat16)
FLOATING = (*HALF, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("m", [1, 7, 1000])
def test_softmax_weights_pass_in_any_precision(m: int, dtype: torch.dtype) -> None:
    weights = simplex(3, m, seed=0).to(dtype)
    checks.check_weights("weights", weights)
    checks.check_log_weights("log_weights", simplex(3, m, seed=0).log().to(dtype))


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("total", [0.7, 1.3])
def test_wrong_sums_fail_in_any_precision(total: float, dtype: torch.dtype) -> None:
    weights = torch.full((10,), total / 10, dtype=dtype)
    with pytest.raises(
        ValueError, match=r"^weights: expected non-negative values that sum to 1, got a sum of "
    ):
        checks.check_weights("weights", weights)
    with pytest.raises(ValueError, match=r"^w: expected logarithms of weights that sum to 1, got a sum of "):
        checks.check_log_weights("w", weights.log())


def test_a_million_weights_sum_to_one() -> None:
    m = 10**6
    uniform, softmax = (
        torch.full((m,), 1 / m),
        torch.randn(m, generator=torch.Generator().manual_seed(0)).softmax(0),
    )
    for weights in (uniform, softmax, softmax * softmax.sum().reciprocal()):
        checks.check_weights("weights", weights)
        checks.check_log_weights("log_weights", weights.log())
    with pytest.raises(ValueError, match=r"got a sum of 0\.999"):
        checks.check_weights("weights", uniform * 0.999)


def test_zeros_are_legal_weights() -> None:
    checks.check_weights("weights", torch.tensor([0.0, 1.0]))
    checks.check_log_weights("log_weights", torch.tensor([-math.inf, 0.0]))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.5, -0.5], r"non-negative values that sum to 1, got a value of -0\.5"),
        ([math.nan, 1.0], r"finite values, got 1 that are not \(nan\)"),
        ([math.inf, 1.0], r"finite values, got 1 that are not \(inf\)"),
        ([0.0, 0.0], r"non-negative values that sum to 1, got a sum of 0"),
    ],
)
def test_bad_weights(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^weights: expected {message}$"):
        checks.check_weights("weights", torch.tensor(weights))
    with pytest.raises(TypeError, match=r"^weights: expected a floating-point tensor, got torch\.int64$"):
        checks.check_weights("weights", torch.tensor([1, 0]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_log_weights(value: float) -> None:
    with pytest.raises(ValueError, match=r"^log_weights: expected values below \+∞, got NaN or \+∞$"):
        checks.check_log_weights("log_weights", torch.tensor([value, 0.0]))


def test_one_bad_row_among_many_is_the_one_named() -> None:
    weights = torch.full((5, 2), 0.5)
    weights[3] = 0.75
    with pytest.raises(ValueError, match=r"got a sum of 1\.5$"):
        checks.check_weights("weights", weights)


@pytest.mark.parametrize("value", [0.1, [0.1, 0.2], np.array([0.1], dtype=np.float32), np.float64(0.1)])
@pytest.mark.parametrize("dtype", FLOATING)
def test_numbers_take_the_dtype_of_their_model(value: object, dtype: torch.dtype) -> None:
    got = checks.as_tensor("x", value, like=torch.zeros((), dtype=dtype))
    assert got.dtype == dtype
    wanted = torch.as_tensor(np.asarray(value, dtype=np.float64)).to(dtype)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=0)


def test_integers_stay_integers_and_tensors_themselves() -> None:
    like = torch.zeros(())
    assert checks.as_tensor("x", [1, 2], like=like).dtype == torch.int64
    x = torch.zeros(2, dtype=torch.float64)
    assert checks.as_tensor("x", x, like=like) is x


@pytest.mark.parametrize("value", ["text", object(), [[1.0], [1.0, 2.0]], None])
def test_no_tensor(value: object) -> None:
    with pytest.raises(
        TypeError, match=f"^x: expected a tensor or an array of numbers, got {type(value).__name__}$"
    ):
        checks.as_tensor("x", value)


def test_choices() -> None:
    checks.check_choice("method", "a", ["a", "b"])
    with pytest.raises(ValueError, match=r"^method: expected one of 'a', 'b', got 'c'$"):
        checks.check_choice("method", "c", ["a", "b"])


def test_is_integer() -> None:
    integers = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
    others = {torch.bool, torch.complex64, *FLOATING}
    assert {d for d in integers | others if checks.is_integer(torch.zeros(1, dtype=d))} == integers
