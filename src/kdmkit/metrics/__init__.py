"""How good a predictive distribution is: scores, coverage and calibration, of tensors or NumPy arrays."""

from kdmkit.metrics.calibration import (
    QuantileCalibration,
    pit,
    quantile_calibration,
    quantile_calibration_error,
)
from kdmkit.metrics.coverage import interval_coverage, interval_width
from kdmkit.metrics.crps import crps
from kdmkit.metrics.likelihood import mean_nll
from kdmkit.metrics.reliability import ReliabilityCurve, expected_calibration_error, reliability_curve

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
