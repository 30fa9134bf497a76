"""Regression on the UCI sets with their standard splits, beside a GP, NGBoost and a deep ensemble."""

from kdmlab.regression.run import run, summarize

__all__ = ["run", "summarize"]
