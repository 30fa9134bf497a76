"""The paper's experiment with images: one model classifies and generates."""

from kdmkit.experiments.images import heads
from kdmkit.experiments.images.plans import Plan, plan, search_space
from kdmkit.experiments.images.table1 import run, search, summarize

__all__ = ["Plan", "heads", "plan", "run", "search", "search_space", "summarize"]
