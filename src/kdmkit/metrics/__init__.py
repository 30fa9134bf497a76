"""The quality of predictive distributions: scores, coverage and calibration, for tensors or NumPy arrays.

Also how synthetic rows compare with real ones.
"""

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
from kdmkit.metrics.synthetic_rows import (
    boosting_score,
    c2st,
    column_similarity,
    dcr_share,
    level_auc,
    pair_similarity,
)

__all__ = [
    "QuantileCalibration",
    "ReliabilityCurve",
    "boosting_score",
    "c2st",
    "column_similarity",
    "crps",
    "dcr_share",
    "expected_calibration_error",
    "interval_coverage",
    "interval_width",
    "level_auc",
    "mean_nll",
    "pair_similarity",
    "pit",
    "quantile_calibration",
    "quantile_calibration_error",
    "reliability_curve",
]
