"""Learning with label proportions: the paper's Table 2."""

from kdmkit.experiments.proportions.selection import search
from kdmkit.experiments.proportions.selection import summarize as summarize_search
from kdmkit.experiments.proportions.table2 import run, summarize

__all__ = ["run", "search", "summarize", "summarize_search"]
