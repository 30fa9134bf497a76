"""What the estimators share."""

from kdmkit.estimators.common.base import KDMEstimator, automatic_batch
from kdmkit.estimators.common.joint import JointEstimator
from kdmkit.estimators.common.labels import JointClassifier
from kdmkit.estimators.common.rows import split_rows

__all__ = [
    "JointClassifier",
    "JointEstimator",
    "KDMEstimator",
    "automatic_batch",
    "split_rows",
]
