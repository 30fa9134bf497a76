"""Regression."""

from kdmkit.estimators.regression.regressor import KDMRegressor

__all__ = ["KDMRegressor"]
