"""Models of mixed tables: generation, copying, prediction, imputation, intervals, questions; with peers."""

from kdmkit.experiments.tables.run import run, summarize

__all__ = ["run", "summarize"]
