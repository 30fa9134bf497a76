"""Held-out likelihood of columns and pairs of columns, beside SciPy's density and a Gaussian mixture."""

from kdmlab.columns.measure import run, summarize

__all__ = ["run", "summarize"]
