"""Kernels that are inner products, so that their components are states of a Hilbert space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from jaxtyping import Float, Inexact
from torch import Tensor

from kdmkit.ops.terms import whole

if TYPE_CHECKING:
    from kdmkit.kernels.base import Kernel


class FeatureMap(ABC):
    """A kernel k(x, c) = ⟨φ(x)|φ(c)⟩ of a feature map φ: it is positive definite, and components are states.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.RBF(1.0), FeatureMap), isinstance(kdm.Epanechnikov(1.0), FeatureMap)
    (True, False)
    """

    @abstractmethod
    def inner_products(self, x: Tensor, components: Tensor) -> Inexact[Tensor, "*batch n m"]:
        """⟨φ(x_i)|φ(c_j)⟩ of all pairs.

        Args:
            x: of shape `(*batch, n, *component)`.
            components: of shape `(*batch, m, *component)`.
        """


def positive_inner_products(kernel: Kernel, x: Tensor, components: Tensor) -> Float[Tensor, "*batch n m"]:
    """The inner products of a kernel that has no negative values, from the logarithms of their squares."""
    return (0.5 * whole(kernel.term(x, components).prepared())).exp()
