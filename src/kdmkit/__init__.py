"""kdmkit: kernel density matrices for probabilistic deep learning."""

from kdmkit import metrics, nn, ops, training
from kdmkit.distributions import KDM, JointKDM
from kdmkit.estimators import KDMClassifier, KDMDensity, KDMProportionClassifier, KDMRegressor
from kdmkit.kernels import RBF, Categorical, Composed, Cosine, Epanechnikov, Kernel, Tricube
from kdmkit.serialize import load, save

__version__ = "0.1.0"

__all__ = [
    "KDM",
    "RBF",
    "Categorical",
    "Composed",
    "Cosine",
    "Epanechnikov",
    "JointKDM",
    "KDMClassifier",
    "KDMDensity",
    "KDMProportionClassifier",
    "KDMRegressor",
    "Kernel",
    "Tricube",
    "load",
    "metrics",
    "nn",
    "ops",
    "save",
    "training",
]
