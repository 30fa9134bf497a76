"""Messages on trees of discrete states: sums and maxima of products over all states, in log space."""

from kdmkit.ops.messages.edge_tables import Tables, smallest_sum
from kdmkit.ops.messages.passing import (
    Indexed,
    NodeScores,
    collect,
    collect_all,
    collect_everywhere,
    maximize,
)

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
