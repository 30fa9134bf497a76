"""Estimators with scikit-learn's manners."""

from kdmkit.estimators.classifier import KDMClassifier
from kdmkit.estimators.density import KDMDensity
from kdmkit.estimators.proportions import KDMProportionClassifier
from kdmkit.estimators.regressor import KDMRegressor

__all__ = ["KDMClassifier", "KDMDensity", "KDMProportionClassifier", "KDMRegressor"]
