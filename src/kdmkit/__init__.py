"""kdmkit: kernel density matrices for probabilistic deep learning."""

from kdmkit.distributions import KDM, JointKDM
from kdmkit.kernels import RBF, Categorical, Composed, Cosine, Epanechnikov, Kernel, Tricube

__version__ = "0.1.0"

__all__ = [
    "KDM",
    "RBF",
    "Categorical",
    "Composed",
    "Cosine",
    "Epanechnikov",
    "JointKDM",
    "Kernel",
    "Tricube",
]
