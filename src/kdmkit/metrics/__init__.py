"""The quality of predictive distributions: scores, coverage and calibration, for tensors or NumPy arrays."""

from kdmkit.metrics.calibration_errors import (
    QuantileCalibration,
    ReliabilityCurve,
    expected_calibration_error,
    interval_coverage,
    interval_width,
    pit,
    quantile_calibration,
    quantile_calibration_error,
    reliability_curve,
)
from kdmkit.metrics.proper_scores import crps, mean_nll

__all__ = [
    "QuantileCalibration",
    "ReliabilityCurve",
    "crps",
    "expected_calibration_error",
    "interval_coverage",
    "interval_width",
    "mean_nll",
    "pit",
    "quantile_calibration",
    "quantile_calibration_error",
    "reliability_curve",
]
