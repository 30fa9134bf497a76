"""Kernel density matrices as distributions: tensors and kernels, without parameters."""

from kdmkit.distributions.algebra import mix, product
from kdmkit.distributions.events import Event
from kdmkit.distributions.joint import JointKDM
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.operands import col
from kdmkit.distributions.operator import DensityOperator
from kdmkit.distributions.prepared import PreparedKDM
from kdmkit.distributions.tree import TreeKDM

__all__ = ["KDM", "DensityOperator", "Event", "JointKDM", "PreparedKDM", "TreeKDM", "col", "mix", "product"]
