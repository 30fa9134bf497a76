"""What the estimators share."""

from kdmkit.estimators.common.arrays import split_rows
from kdmkit.estimators.common.base import KDMEstimator, automatic_batch
from kdmkit.estimators.common.joint import JointEstimator
from kdmkit.estimators.common.labels import JointClassifier

__all__ = [
    "JointClassifier",
    "JointEstimator",
    "KDMEstimator",
    "automatic_batch",
    "split_rows",
]
