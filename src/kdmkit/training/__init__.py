"""Fitting layers: losses per row and the loop that minimises them."""

from kdmkit.training.loop import fit
from kdmkit.training.losses import cross_entropy, expected_nll, hybrid_nll, joint_nll, nll, squared_error
from kdmkit.training.options import FitOptions
from kdmkit.training.rows import Rows

__all__ = [
    "FitOptions",
    "Rows",
    "cross_entropy",
    "expected_nll",
    "fit",
    "hybrid_nll",
    "joint_nll",
    "nll",
    "squared_error",
]
