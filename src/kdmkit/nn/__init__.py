"""Modules that own the parameters of kernel density matrices and return distributions."""

from kdmkit.nn.chain_layer import ChainLayer
from kdmkit.nn.layer import KDMLayer, Variable
from kdmkit.nn.mixture_layer import DensityLayer, JointLayer, MixtureLayer
from kdmkit.nn.mlp import MLP, DrawingModule, Draws, Dropout, MLPEnsemble, make_linear
from kdmkit.nn.predictor import Predictor
from kdmkit.nn.scaler import Scaler
from kdmkit.nn.tree_layer import TreeLayer
from kdmkit.nn.trend import LabelTrend, ResidualMemory, Trend

__all__ = [
    "MLP",
    "ChainLayer",
    "DensityLayer",
    "DrawingModule",
    "Draws",
    "Dropout",
    "JointLayer",
    "KDMLayer",
    "LabelTrend",
    "MLPEnsemble",
    "MixtureLayer",
    "Predictor",
    "ResidualMemory",
    "Scaler",
    "TreeLayer",
    "Trend",
    "Variable",
    "make_linear",
]
