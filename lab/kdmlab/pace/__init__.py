"""The time of default fits beside their quality, compared with version 0.2.0 and with scikit-learn."""

from kdmlab.pace.run import run, summarize

__all__ = ["run", "summarize"]
