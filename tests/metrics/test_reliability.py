"""Calibration of class probabilities, with torchmetrics as the judge."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from helpers import normal, seeded, simplex
from kdmkit.metrics import expected_calibration_error, reliability_curve


@pytest.mark.parametrize("n_bins", [1, 10, 15])
@pytest.mark.parametrize("k", [2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torchmetrics(n_bins, k, dtype):
    probs = torch.softmax(3 * normal(500, k, seed=0), -1).to(dtype)
    labels = torch.randint(k, (500,), generator=seeded(1))
    wanted = multiclass_calibration_error(probs, labels, num_classes=k, n_bins=n_bins)
    assert expected_calibration_error(probs, labels, n_bins).item() == pytest.approx(wanted.item(), abs=1e-6)
    ours = expected_calibration_error(probs.numpy(), labels.numpy(), n_bins)
    assert ours.item() == pytest.approx(wanted.item(), abs=1e-6)


def test_is_zero_where_confidence_is_accuracy():
    probs = np.tile([0.75, 0.25], (4, 1))
    assert expected_calibration_error(probs, [0, 0, 0, 1]) == 0
    assert expected_calibration_error(np.eye(3), [0, 1, 2]) == 0
    assert expected_calibration_error(np.eye(2), [1, 0]) == 1


def test_draws_from_the_probabilities_are_calibrated():
    probs = simplex(100_000, 4, seed=0)
    labels = torch.multinomial(probs, 1, generator=seeded(1)).squeeze(-1)
    assert expected_calibration_error(probs, labels) < 0.01
    overconfident = torch.softmax(3 * probs.log(), -1)
    assert expected_calibration_error(overconfident, labels) > 0.2


def test_bins_hold_their_lower_edge_and_the_last_one_holds_1():
    probs = [[0.5, 0.5], [0.25, 0.75], [0.0, 1.0], [0.1, 0.9]]
    curve = reliability_curve(probs, [0, 0, 1, 1], n_bins=4)
    assert curve.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.counts.tolist() == [0, 0, 1, 3]
    assert curve.confidence[2:].tolist() == pytest.approx([0.5, (0.75 + 1 + 0.9) / 3])
    assert curve.accuracy[2:].tolist() == pytest.approx([1, 2 / 3])
    assert torch.isnan(curve.accuracy[:2]).all()
    assert torch.isnan(curve.confidence[:2]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_that_rounding_puts_above_1_count_as_1(dtype):
    eps = torch.finfo(torch.float32).eps
    probs = torch.tensor([[1 + 4 * eps, -eps], [1.0, 0.0], [0.5 + eps, 0.5]], dtype=dtype)
    curve = reliability_curve(probs, [0, 1, 0], n_bins=10)
    assert curve.counts.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    assert curve.confidence[-1] == 1
    assert expected_calibration_error(probs, [0, 1, 0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("probs", "labels", "n_bins", "error", "message"),
    [
        (
            [0.5, 0.5],
            [0, 1],
            15,
            ValueError,
            r"probs: expected shape \(n, k\) with k ≥ 2 classes, got \(2,\)",
        ),
        ([[0.5, 0.4]], [0], 15, ValueError, "probs: expected rows that sum to 1, got a sum of 0.9"),
        ([[1.5, -0.5]], [0], 15, ValueError, r"probs: expected values in \[0, 1\], got 1.5"),
        ([[np.nan, 1]], [0], 15, ValueError, "probs: expected finite values"),
        ([[0.5, 0.5]], [2], 15, ValueError, "labels: expected labels in 0 … 1, got 2"),
        ([[0.5, 0.5]], [0.5], 15, TypeError, "labels: expected integer labels in 0 … 1, got torch.float64"),
        ([[0.5, 0.5]], ["a"], 15, TypeError, "labels: expected a tensor or an array of numbers"),
        (
            [[0.5, 0.5]],
            [0, 1],
            15,
            ValueError,
            r"labels: expected shape \(1,\), a label for each row, got \(2,\)",
        ),
        ([[0.5, 0.5]], [0], 0, ValueError, "n_bins: expected a whole number ≥ 1, got 0"),
    ],
)
def test_bad_input_is_named(probs, labels, n_bins, error, message):
    for function in (expected_calibration_error, reliability_curve):
        with pytest.raises(error, match=message):
            function(probs, labels, n_bins)
