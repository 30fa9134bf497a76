"""Estimators with the API of scikit-learn: adapters between arrays and the modules of `kdmkit.nn`."""

from kdmkit.estimators.classification import KDMClassifier
from kdmkit.estimators.density import KDMDensity, merge
from kdmkit.estimators.proportions import KDMProportionClassifier
from kdmkit.estimators.regression import KDMRegressor
from kdmkit.estimators.sequence import KDMSequence
from kdmkit.estimators.table import KDMTable, join_tables

__all__ = [
    "KDMClassifier",
    "KDMDensity",
    "KDMProportionClassifier",
    "KDMRegressor",
    "KDMSequence",
    "KDMTable",
    "join_tables",
    "merge",
]
