"""Speed, memory and error of the reductions beside every peer, in one run."""

from kdmkit.experiments.bench.run import run

__all__ = ["run"]
