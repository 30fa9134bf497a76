"""Terms, the summands of the scores, and reductions over their sum."""

from kdmkit.ops.terms.base import (
    BlockScore,
    Reduction,
    Result,
    Score,
    Term,
    common_dtype,
    result_dtype,
    total_shape,
)
from kdmkit.ops.terms.combined import InDtype, LogSum, Masked, Restricted, Sum, restricted, whole
from kdmkit.ops.terms.discrete import Amplitudes, Lookup
from kdmkit.ops.terms.distance import (
    ComponentDistance,
    LowRankDistance,
    SquaredDistance,
    robust_centre,
    score_dtype,
)

__all__ = [
    "Amplitudes",
    "BlockScore",
    "ComponentDistance",
    "InDtype",
    "LogSum",
    "Lookup",
    "LowRankDistance",
    "Masked",
    "Reduction",
    "Restricted",
    "Result",
    "Score",
    "SquaredDistance",
    "Sum",
    "Term",
    "common_dtype",
    "restricted",
    "result_dtype",
    "robust_centre",
    "score_dtype",
    "total_shape",
    "whole",
]
