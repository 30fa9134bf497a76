"""Sequences of rows, each with a key and a time."""

from kdmkit.estimators.sequence.forecast import Forecast
from kdmkit.estimators.sequence.kdm_sequence import KDMSequence

__all__ = ["Forecast", "KDMSequence"]
