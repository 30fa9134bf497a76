"""The paper's experiment with images: one model classifies and generates."""

from kdmkit.experiments.images.table1 import Wanted, run, search, varied, wanted, write

__all__ = ["Wanted", "run", "search", "varied", "wanted", "write"]
