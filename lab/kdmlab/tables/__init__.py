"""Models of mixed tables: generation, copying, prediction, imputation, intervals, questions; with peers."""

from kdmlab.tables.run import is_current, run, summarize

__all__ = ["is_current", "run", "summarize"]
