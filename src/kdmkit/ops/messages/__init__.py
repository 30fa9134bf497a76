"""Messages on trees of discrete states: sums and maxima of products over all states, in log space."""

from kdmkit.ops.messages.api import collect, collect_all, collect_everywhere, maximize
from kdmkit.ops.messages.indexed import Indexed, NodeScores
from kdmkit.ops.messages.tables import Tables, smallest_sum

__all__ = [
    "Indexed",
    "NodeScores",
    "Tables",
    "collect",
    "collect_all",
    "collect_everywhere",
    "maximize",
    "smallest_sum",
]
