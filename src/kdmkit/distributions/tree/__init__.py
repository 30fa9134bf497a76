"""Trees of joint KDMs: exact inference by messages between the component indices of neighbours."""

from kdmkit.distributions.tree.completion import Completion
from kdmkit.distributions.tree.information import MutualInformation
from kdmkit.distributions.tree.states import States, Topology
from kdmkit.distributions.tree.tree_kdm import TreeKDM

__all__ = ["Completion", "MutualInformation", "States", "Topology", "TreeKDM"]
