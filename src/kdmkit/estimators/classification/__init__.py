"""Classification."""

from kdmkit.estimators.classification.classifier import KDMClassifier

__all__ = ["KDMClassifier"]
