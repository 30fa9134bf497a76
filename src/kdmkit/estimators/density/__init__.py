"""Density estimation."""

from kdmkit.estimators.density.density import KDMDensity

__all__ = ["KDMDensity"]
