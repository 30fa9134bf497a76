"""Fitting layers: losses per row and the loop that minimises them."""

from kdmkit.training.checkpoint import fingerprint
from kdmkit.training.loop import fit
from kdmkit.training.losses import cross_entropy, expected_nll, hybrid_nll, joint_nll, nll, squared_error
from kdmkit.training.options import Device, FitOptions, Precision, Schedule
from kdmkit.training.rows import Rows

__all__ = [
    "Device",
    "FitOptions",
    "Precision",
    "Rows",
    "Schedule",
    "cross_entropy",
    "expected_nll",
    "fingerprint",
    "fit",
    "hybrid_nll",
    "joint_nll",
    "nll",
    "squared_error",
]
