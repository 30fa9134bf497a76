"""Speed, memory and error of the reductions beside other implementations."""

from kdmlab.bench.history import compare
from kdmlab.bench.run import run, summarize

__all__ = ["compare", "run", "summarize"]
