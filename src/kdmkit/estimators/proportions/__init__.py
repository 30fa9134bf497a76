"""Classification from label proportions."""

from kdmkit.estimators.proportions.proportion_classifier import KDMProportionClassifier

__all__ = ["KDMProportionClassifier"]
