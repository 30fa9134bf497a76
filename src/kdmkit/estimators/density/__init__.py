"""Density estimation."""

from kdmkit.estimators.density.kdm_density import KDMDensity, merge

__all__ = ["KDMDensity", "merge"]
