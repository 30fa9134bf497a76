"""Speed, memory and error of the reductions beside other implementations."""

from kdmkit.experiments.bench.run import run, summarize

__all__ = ["run", "summarize"]
