"""The two reductions of kernel density matrices, `log_mix` and `attend`, and what they reduce."""

from kdmkit.ops.api import attend, choose_backend, log_mix, log_mix_given
from kdmkit.ops.background import attend_beside
from kdmkit.ops.block_order import block_order
from kdmkit.ops.combine import combine
from kdmkit.ops.dense import log_posterior, score_matrix
from kdmkit.ops.implementations import BACKENDS, Backend
from kdmkit.ops.labels import log_labels_given
from kdmkit.ops.prepared import PreparedSum
from kdmkit.ops.pruned import PrunedSum
from kdmkit.ops.relative import RelativeScores
from kdmkit.ops.terms import (
    Amplitudes,
    ComponentDistance,
    InDtype,
    LogSum,
    Lookup,
    Masked,
    Restricted,
    Score,
    SquaredDistance,
    Sum,
    Term,
    common_dtype,
    restricted,
    score_dtype,
    whole,
)

__all__ = [
    "BACKENDS",
    "Amplitudes",
    "Backend",
    "ComponentDistance",
    "InDtype",
    "LogSum",
    "Lookup",
    "Masked",
    "PreparedSum",
    "PrunedSum",
    "RelativeScores",
    "Restricted",
    "Score",
    "SquaredDistance",
    "Sum",
    "Term",
    "attend",
    "attend_beside",
    "block_order",
    "choose_backend",
    "combine",
    "common_dtype",
    "log_labels_given",
    "log_mix",
    "log_mix_given",
    "log_posterior",
    "restricted",
    "score_dtype",
    "score_matrix",
    "whole",
]
