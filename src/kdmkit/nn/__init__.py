"""Modules that own the parameters of kernel density matrices and return distributions."""

from kdmkit.nn.density import DensityLayer
from kdmkit.nn.draws import DrawingModule, Draws, Dropout
from kdmkit.nn.ensemble import MLPEnsemble
from kdmkit.nn.joint import JointLayer
from kdmkit.nn.label_trend import LabelTrend
from kdmkit.nn.layer import KDMLayer, MixtureLayer
from kdmkit.nn.memory import ResidualMemory
from kdmkit.nn.mlp import MLP, make_linear
from kdmkit.nn.predictor import Predictor
from kdmkit.nn.scaler import Scaler
from kdmkit.nn.tree_layer import TreeLayer
from kdmkit.nn.trend import Trend
from kdmkit.nn.variable import Variable

__all__ = [
    "MLP",
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
