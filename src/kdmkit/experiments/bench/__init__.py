"""Speed, memory and error of the reductions beside other implementations."""

from kdmkit.experiments.bench.history import compare
from kdmkit.experiments.bench.run import run, summarize

__all__ = ["compare", "run", "summarize"]
