"""Bases and functions that several estimators share."""

from kdmkit.estimators.common.base import KDMEstimator

__all__ = ["KDMEstimator"]
