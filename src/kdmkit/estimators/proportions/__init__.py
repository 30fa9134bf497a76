"""Classification from label proportions."""

from kdmkit.estimators.proportions.bags import BagPretraining, Bags
from kdmkit.estimators.proportions.classifier import KDMProportionClassifier

__all__ = ["BagPretraining", "Bags", "KDMProportionClassifier"]
