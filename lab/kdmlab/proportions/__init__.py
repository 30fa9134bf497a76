"""Learning with label proportions: the paper's Table 2."""

from kdmlab.proportions.selection import search
from kdmlab.proportions.selection import summarize as summarize_search
from kdmlab.proportions.table2 import run, summarize

__all__ = ["run", "search", "summarize", "summarize_search"]
