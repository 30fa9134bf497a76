"""Density estimation."""

from kdmkit.estimators.density.density import KDMDensity
from kdmkit.estimators.density.merge import merge

__all__ = ["KDMDensity", "merge"]
