"""Kernel density matrices as distributions: tensors and kernels, without parameters."""

from kdmkit.distributions.algebra import mix, product
from kdmkit.distributions.events import Event
from kdmkit.distributions.joint import JointKDM
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.operands import col
from kdmkit.distributions.prepared import PreparedKDM

__all__ = ["KDM", "Event", "JointKDM", "PreparedKDM", "col", "mix", "product"]
