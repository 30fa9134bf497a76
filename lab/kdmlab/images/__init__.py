"""The paper's experiment with images: one model classifies and generates."""

from kdmlab.images import heads
from kdmlab.images.plans import Plan, plan, search_space
from kdmlab.images.table1 import run, search, summarize

__all__ = ["Plan", "heads", "plan", "run", "search", "search_space", "summarize"]
