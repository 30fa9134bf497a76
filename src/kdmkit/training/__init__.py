"""Fitting layers: losses per row, the loop that minimises them, and fits in phases."""

from kdmkit.training.calibration import Calibrated, calibrate, fit_temperature
from kdmkit.training.checkpoint import fingerprint
from kdmkit.training.flat import FlatObjective, fit_joint
from kdmkit.training.loop import fit
from kdmkit.training.objectives import (
    ConditionalObjective,
    DecoderObjective,
    DenseObjective,
    cross_entropy,
    hybrid_nll,
    joint_nll,
    nll,
    squared_error,
)
from kdmkit.training.options import Device, FitOptions, Precision, Schedule
from kdmkit.training.packing import Packing, Table
from kdmkit.training.phases import PhasedFit, Phases, encode_rows
from kdmkit.training.rows import Rows
from kdmkit.training.seeds import derive_seed
from kdmkit.training.tree_fit import edge_concentrations, fit_tree, tree_options
from kdmkit.training.tree_objective import TREE_RECIPE, Targets, TreeObjective, TreeRecipe

__all__ = [
    "TREE_RECIPE",
    "Calibrated",
    "ConditionalObjective",
    "DecoderObjective",
    "DenseObjective",
    "Device",
    "FitOptions",
    "FlatObjective",
    "Packing",
    "PhasedFit",
    "Phases",
    "Precision",
    "Rows",
    "Schedule",
    "Table",
    "Targets",
    "TreeObjective",
    "TreeRecipe",
    "calibrate",
    "cross_entropy",
    "derive_seed",
    "edge_concentrations",
    "encode_rows",
    "fingerprint",
    "fit",
    "fit_joint",
    "fit_temperature",
    "fit_tree",
    "hybrid_nll",
    "joint_nll",
    "nll",
    "squared_error",
    "tree_options",
]
