"""Kernels: one file each, all with overlap, normaliser and exact draws."""

from kdmkit.kernels.bandwidth import Bandwidth, FixedBandwidth, LearnedBandwidth
from kdmkit.kernels.base import Kernel, check_kernel
from kdmkit.kernels.categorical import Categorical
from kdmkit.kernels.composed import Composed
from kdmkit.kernels.cosine import Cosine
from kdmkit.kernels.distances import typical_distance
from kdmkit.kernels.epanechnikov import Epanechnikov
from kdmkit.kernels.location_scale import LocationScale, check_continuous
from kdmkit.kernels.ordinal import Ordinal
from kdmkit.kernels.periodic import Periodic
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.regions import Interval, OneOf, Region
from kdmkit.kernels.registry import kernel_from_config, register
from kdmkit.kernels.tricube import Tricube

register(RBF, Cosine, Epanechnikov, Tricube, Categorical, Composed, Ordinal, Periodic)

__all__ = [
    "RBF",
    "Bandwidth",
    "Categorical",
    "Composed",
    "Cosine",
    "Epanechnikov",
    "FixedBandwidth",
    "Interval",
    "Kernel",
    "LearnedBandwidth",
    "LocationScale",
    "OneOf",
    "Ordinal",
    "Periodic",
    "Region",
    "Tricube",
    "check_continuous",
    "check_kernel",
    "kernel_from_config",
    "register",
    "typical_distance",
]
