"""Classification from label proportions."""

from kdmkit.estimators.proportions.bags import BagPretraining, Bags
from kdmkit.estimators.proportions.classifier import KDMProportionClassifier
from kdmkit.estimators.proportions.likelihood import CountLikelihood, Labels, RowLikelihood, predicted_labels

__all__ = [
    "BagPretraining",
    "Bags",
    "CountLikelihood",
    "KDMProportionClassifier",
    "Labels",
    "RowLikelihood",
    "predicted_labels",
]
