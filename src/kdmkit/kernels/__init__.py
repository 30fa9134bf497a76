"""Kernels: one file each, all with overlap, normaliser and exact draws."""

from kdmkit.kernels.base import Kernel
from kdmkit.kernels.categorical import Categorical
from kdmkit.kernels.composed import Composed
from kdmkit.kernels.cosine import Cosine
from kdmkit.kernels.epanechnikov import Epanechnikov
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.registry import kernel_from_config, register
from kdmkit.kernels.tricube import Tricube

register(RBF, Cosine, Epanechnikov, Tricube, Categorical, Composed)

__all__ = [
    "RBF",
    "Categorical",
    "Composed",
    "Cosine",
    "Epanechnikov",
    "Kernel",
    "LocationScale",
    "Tricube",
    "kernel_from_config",
    "register",
]
