"""kdmkit: kernel density matrices for probabilistic deep learning."""

from typing import TYPE_CHECKING, Any

from kdmkit import metrics, nn, ops
from kdmkit.distributions import KDM, JointKDM, PreparedKDM, TreeKDM, join_shards
from kdmkit.kernels import (
    RBF,
    Categorical,
    Composed,
    Cosine,
    Epanechnikov,
    Inflated,
    Interval,
    Kernel,
    Levels,
    OneOf,
    Ordinal,
    Periodic,
    QuantileNormal,
    Rounded,
    Transformed,
    Tricube,
    Truncated,
    find_atoms,
    find_resolution,
)

if TYPE_CHECKING:
    from kdmkit import answers, plotting, training
    from kdmkit.engines import BatchFunction
    from kdmkit.estimators import (
        KDMClassifier,
        KDMDensity,
        KDMProportionClassifier,
        KDMRegressor,
        KDMTable,
        merge,
    )
    from kdmkit.serialize import load, load_shard, save

__version__ = "0.2.0"

__all__ = [
    "KDM",
    "RBF",
    "BatchFunction",
    "Categorical",
    "Composed",
    "Cosine",
    "Epanechnikov",
    "Inflated",
    "Interval",
    "JointKDM",
    "KDMClassifier",
    "KDMDensity",
    "KDMProportionClassifier",
    "KDMRegressor",
    "KDMTable",
    "Kernel",
    "Levels",
    "OneOf",
    "Ordinal",
    "Periodic",
    "PreparedKDM",
    "QuantileNormal",
    "Rounded",
    "Transformed",
    "TreeKDM",
    "Tricube",
    "Truncated",
    "answers",
    "find_atoms",
    "find_resolution",
    "join_shards",
    "load",
    "load_shard",
    "merge",
    "metrics",
    "nn",
    "ops",
    "plotting",
    "save",
    "training",
]

#: Names that are imported when they are first used, with their modules: scikit-learn, Accelerate and
#: safetensors take seconds to import.
_LAZY = {
    **{package: f"kdmkit.{package}" for package in ("answers", "plotting", "training")},
    **dict.fromkeys(("load", "load_shard", "save"), "kdmkit.serialize"),
    "BatchFunction": "kdmkit.engines",
    **dict.fromkeys(
        ("KDMClassifier", "KDMDensity", "KDMProportionClassifier", "KDMRegressor", "KDMTable", "merge"),
        "kdmkit.estimators",
    ),
}

#: Documented names of earlier versions that are gone, and what to use instead.
_REMOVED = {
    "datasets": "use the loaders of sklearn.datasets, or kdmlab.datasets in a clone of the repository",
}


def __getattr__(name: str) -> Any:
    """Imports a lazy name when it is first used, and keeps it (PEP 562)."""
    if name not in _LAZY:
        advice = f"; it was removed: {_REMOVED[name]}" if name in _REMOVED else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
    from importlib import import_module

    module = import_module(_LAZY[name])
    value = globals()[name] = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
