"""Bases and functions that several estimators share."""

from kdmkit.estimators.common.arrays import split_rows
from kdmkit.estimators.common.base import KDMEstimator, automatic_batch
from kdmkit.estimators.common.joint_estimator import JointClassifier, JointEstimator

__all__ = [
    "JointClassifier",
    "JointEstimator",
    "KDMEstimator",
    "automatic_batch",
    "split_rows",
]
