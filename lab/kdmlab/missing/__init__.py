"""Missing cells and rare texts of tables: draws, imputation and predictions."""

from kdmlab.missing.run import run, summarize

__all__ = ["run", "summarize"]
