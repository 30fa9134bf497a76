"""Modules that own the parameters of kernel density matrices and return distributions."""

from kdmkit.nn.density import DensityLayer
from kdmkit.nn.joint import JointLayer
from kdmkit.nn.variable import Variable

__all__ = ["DensityLayer", "JointLayer", "Variable"]
