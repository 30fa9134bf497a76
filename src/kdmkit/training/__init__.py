"""Fitting layers: losses per row, the loop that minimises them, and fits in phases."""

from typing import Any

from kdmkit.training.bags import Bags, log_count_likelihood
from kdmkit.training.calibration import Calibrated, calibrate, fit_temperature
from kdmkit.training.chain_fit import SequenceLayout, chain_options, fit_chain
from kdmkit.training.fit_arguments import Device, FitOptions, Precision, Rows
from kdmkit.training.loop import fit
from kdmkit.training.objectives import ConditionalObjective, cross_entropy, hybrid_nll, joint_nll, nll
from kdmkit.training.packing import Table
from kdmkit.training.phases import PhasedFit, encode_rows
from kdmkit.training.tree_fit import TABLE_RECIPE, TARGET_RECIPE, fit_tree, tree_options
from kdmkit.training.tree_objective import TREE_RECIPE, Targets

__all__ = [
    "TABLE_RECIPE",
    "TARGET_RECIPE",
    "TREE_RECIPE",
    "Bags",
    "Calibrated",
    "ConditionalObjective",
    "Device",
    "FitOptions",
    "PhasedFit",
    "Precision",
    "Rows",
    "SequenceLayout",
    "Table",
    "Targets",
    "calibrate",
    "chain_options",
    "cross_entropy",
    "encode_rows",
    "fit",
    "fit_chain",
    "fit_temperature",
    "fit_tree",
    "hybrid_nll",
    "joint_nll",
    "log_count_likelihood",
    "nll",
    "tree_options",
]

#: Names that earlier versions had, and what to use instead.
_REMOVED = {
    "DecoderObjective": "fit a module that returns one loss per row",
    "DenseObjective": "fit a module that returns one loss per row",
    "FlatObjective": "fit a module that returns -layer.joint().log_prob(...)",
    "JointObjective": "use ConditionalObjective(None, layer, generative_weight=1)",
    "Packing": "fit_tree packs the columns of a Table",
    "Schedule": "the values are those of FitOptions(schedule=...)",
    "TreeObjective": "use fit_tree",
    "TreeRecipe": "TREE_RECIPE has the defaults of fit_tree",
    "derive_seed": "use numpy.random.SeedSequence(seed, spawn_key=key)",
    "edge_concentrations": "use KDMTable, which chooses the shrinkage of every edge",
    "expected_nll": "use cross_entropy(rho, target.probs), or the weighted mean of nll over the components",
    "fingerprint": "fit(..., identity=...) takes everything that a checkpoint depends on",
    "fit_joint": "use fit with a module that returns -layer.joint().log_prob(...)",
    "squared_error": "use (rho.mean - y).square().mean(-1)",
}


def __getattr__(name: str) -> Any:
    advice = f" any more: {_REMOVED[name]}" if name in _REMOVED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
