"""Kernels, all with overlap, normaliser and exact draws; `calculus` has their mathematics."""

from kdmkit.kernels.alternatives import Alternatives
from kdmkit.kernels.arcs import Arc
from kdmkit.kernels.bandwidth import Bandwidth, FixedBandwidth, LearnedBandwidth, typical_distance
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.empirical import Resolution, find_atoms
from kdmkit.kernels.calculus.transforms import QuantileNormal
from kdmkit.kernels.categorical import Categorical, Coded
from kdmkit.kernels.compact import Epanechnikov, Tricube
from kdmkit.kernels.composed import Composed
from kdmkit.kernels.continuous import Continuous, check_continuous
from kdmkit.kernels.cosine import Cosine
from kdmkit.kernels.inflated import Inflated
from kdmkit.kernels.levels import Levels
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.low_rank import LowRank
from kdmkit.kernels.measured import Measured
from kdmkit.kernels.periodic import Periodic
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.regions import Interval, Missing, OneOf, Region, Union
from kdmkit.kernels.registry import check_kernel, kernel_from_config, register
from kdmkit.kernels.rounded import Rounded
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.truncated import Truncated

register(RBF, Cosine, Epanechnikov, Tricube, Categorical, Composed)
register(LowRank, Levels, Transformed, Truncated, Inflated, Rounded, Periodic, Arc, Alternatives)

__all__ = [
    "RBF",
    "Bandwidth",
    "Categorical",
    "Coded",
    "Composed",
    "Continuous",
    "Cosine",
    "Epanechnikov",
    "FixedBandwidth",
    "Inflated",
    "Interval",
    "Kernel",
    "LearnedBandwidth",
    "Levels",
    "LocationScale",
    "LowRank",
    "Measured",
    "Missing",
    "OneOf",
    "Periodic",
    "QuantileNormal",
    "Region",
    "Resolution",
    "Rounded",
    "Transformed",
    "Tricube",
    "Truncated",
    "Union",
    "check_continuous",
    "check_kernel",
    "find_atoms",
    "kernel_from_config",
    "register",
    "typical_distance",
]
