"""Kernels: one file each, all with overlap, normaliser and exact draws."""

from kdmkit.kernels.atoms import find_atoms
from kdmkit.kernels.bandwidth import Bandwidth, FixedBandwidth, LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.categorical import Categorical
from kdmkit.kernels.composed import Composed
from kdmkit.kernels.cosine import Cosine
from kdmkit.kernels.cut import can_cut, cut
from kdmkit.kernels.distances import typical_distance
from kdmkit.kernels.epanechnikov import Epanechnikov
from kdmkit.kernels.inflated import Inflated
from kdmkit.kernels.levels import Levels
from kdmkit.kernels.location_scale import LocationScale, check_continuous
from kdmkit.kernels.periodic import Periodic
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.regions import Interval, OneOf, Region
from kdmkit.kernels.registry import check_kernel, kernel_from_config, register
from kdmkit.kernels.rounded import Resolution, Rounded
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.transforms import QuantileNormal
from kdmkit.kernels.tricube import Tricube
from kdmkit.kernels.truncated import Truncated

register(RBF, Cosine, Epanechnikov, Tricube, Categorical, Composed)
register(Levels, Transformed, Truncated, Inflated, Rounded, Periodic)

__all__ = [
    "RBF",
    "Bandwidth",
    "Categorical",
    "Composed",
    "Cosine",
    "Epanechnikov",
    "FixedBandwidth",
    "Inflated",
    "Interval",
    "Kernel",
    "LearnedBandwidth",
    "Levels",
    "LocationScale",
    "OneOf",
    "Periodic",
    "QuantileNormal",
    "Region",
    "Resolution",
    "Rounded",
    "Transformed",
    "Tricube",
    "Truncated",
    "can_cut",
    "check_continuous",
    "check_kernel",
    "cut",
    "find_atoms",
    "kernel_from_config",
    "register",
    "typical_distance",
]
