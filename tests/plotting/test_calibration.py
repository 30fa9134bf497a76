"""Reliability diagrams, histograms of the probability integral transform, calibration curves."""

import numpy as np
import pytest
import torch

from helpers import normal, seeded
from kdmkit.metrics import expected_calibration_error, quantile_calibration, reliability_curve
from kdmkit.plotting import plot_calibration_curve, plot_pit, plot_reliability

PROBS = torch.softmax(2 * normal(400, 3, seed=0), -1)
LABELS = torch.randint(3, (400,), generator=seeded(1))
PIT = torch.rand(300, generator=seeded(2), dtype=torch.float64)


def title(ax):
    return ax.get_legend().get_title().get_text()


def test_bars_are_the_accuracy_of_the_bins():
    ax = plot_reliability(PROBS, LABELS, n_bins=10)
    curve = reliability_curve(PROBS, LABELS, 10)
    filled = curve.counts > 0
    accuracy, gap = ax.containers
    np.testing.assert_allclose([bar.get_height() for bar in accuracy], curve.accuracy[filled])
    np.testing.assert_allclose([bar.get_x() for bar in accuracy], curve.edges[:-1][filled])
    tops = [bar.get_y() + bar.get_height() for bar in gap]
    np.testing.assert_allclose(tops, curve.confidence[filled])
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[0, 0], [1, 1]])
    assert title(ax) == f"ECE {expected_calibration_error(PROBS, LABELS, 10).item():.3f}"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("confidence", "accuracy")


def test_the_strip_counts_the_rows_of_the_bins():
    ax = plot_reliability(PROBS.numpy(), LABELS.numpy())
    (strip,) = ax.child_axes
    counts = [bar.get_height() for bar in strip.patches]
    assert counts == reliability_curve(PROBS, LABELS).counts.tolist()
    assert sum(counts) == 400
    assert strip.get_ylabel() == "rows"


def test_the_pit_histogram_has_area_one_around_the_uniform_line():
    ax = plot_pit(PIT.reshape(3, 100), n_bins=10)
    heights, edges, _ = ax.patches[0].get_data()
    wanted = torch.histc(PIT, 10, 0, 1).numpy() / 30
    np.testing.assert_allclose(heights, wanted)
    np.testing.assert_allclose(edges, np.linspace(0, 1, 11))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 1)
    band = ax.patches[1].get_extents().transformed(ax.transData.inverted())
    spread = 1.96 * np.sqrt(9 / 300)
    assert (band.y0, band.y1) == pytest.approx((1 - spread, 1 + spread))


def test_the_band_holds_what_it_says():
    """The heights of calibrated bars, over many samples."""
    values = torch.rand(2_000, 200, generator=seeded(0))
    heights = torch.stack([torch.histc(row, 10, 0, 1) / 20 for row in values])
    inside = ((heights - 1).abs() <= 1.96 * np.sqrt(9 / 200)).double().mean().item()
    assert inside == pytest.approx(0.95, abs=0.02)


def test_the_calibration_curve_is_the_observed_frequency():
    ax = plot_calibration_curve(PIT)
    (line,) = [line for line in ax.lines if line.get_label() == "observed"]
    levels, observed = quantile_calibration(PIT)
    np.testing.assert_allclose(line.get_xdata(), levels)
    np.testing.assert_allclose(line.get_ydata(), observed)
    assert title(ax) == f"mean error {(observed - levels).abs().mean().item():.3f}"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("quantile level", "observed frequency")
    few = plot_calibration_curve(PIT, [0.9, 0.1])
    np.testing.assert_allclose(few.lines[1].get_xdata(), [0.1, 0.9])


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="probs: expected rows that sum to 1"):
        plot_reliability([[0.5, 0.1]], [0])
    for plot in (plot_pit, plot_calibration_curve):
        with pytest.raises(ValueError, match=r"pit_values: expected values in \[0, 1\], got 1.5"):
            plot([1.5])
        with pytest.raises(ValueError, match="pit_values: expected at least one value"):
            plot([])
    with pytest.raises(ValueError, match="n_bins: expected a whole number ≥ 1, got 0"):
        plot_pit([0.5], n_bins=0)
