"""Paired differences between a KDM and another head, from lines of other experiments."""

from kdmlab.adds.run import summarize

__all__ = ["summarize"]
