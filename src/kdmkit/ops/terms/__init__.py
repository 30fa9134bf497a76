"""Terms: the summands of the scores."""

from kdmkit.ops.terms.amplitudes import Amplitudes
from kdmkit.ops.terms.base import Term, common_dtype, total_shape
from kdmkit.ops.terms.combined import InDtype, LogSum, Restricted, Sum, restricted, whole
from kdmkit.ops.terms.distance import ComponentDistance, SquaredDistance, robust_centre, score_dtype
from kdmkit.ops.terms.lookup import Lookup
from kdmkit.ops.terms.masked import Masked
from kdmkit.ops.terms.score import Score

__all__ = [
    "Amplitudes",
    "ComponentDistance",
    "InDtype",
    "LogSum",
    "Lookup",
    "Masked",
    "Restricted",
    "Score",
    "SquaredDistance",
    "Sum",
    "Term",
    "common_dtype",
    "restricted",
    "robust_centre",
    "score_dtype",
    "total_shape",
    "whole",
]
