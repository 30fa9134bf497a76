"""Terms: the summands of the scores."""

from kdmkit.ops.terms.base import Term, total_shape
from kdmkit.ops.terms.distance import ComponentDistance, SquaredDistance, robust_centre
from kdmkit.ops.terms.lookup import Lookup
from kdmkit.ops.terms.masked import Masked
from kdmkit.ops.terms.score import Score

__all__ = [
    "ComponentDistance",
    "Lookup",
    "Masked",
    "Score",
    "SquaredDistance",
    "Term",
    "robust_centre",
    "total_shape",
]
