"""Kernel density matrices as distributions: tensors and kernels, without parameters."""

from kdmkit.distributions.joint import JointKDM
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.prepared import PreparedKDM
from kdmkit.distributions.tree import TreeKDM

__all__ = ["KDM", "JointKDM", "PreparedKDM", "TreeKDM"]
