"""kdmkit: kernel density matrices for probabilistic deep learning."""

from typing import TYPE_CHECKING, Any

from kdmkit import ops
from kdmkit.distributions import KDM, Event, JointKDM, PreparedKDM, col, mix, product
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
    LowRank,
    Missing,
    OneOf,
    Periodic,
    QuantileNormal,
    Rounded,
    Transformed,
    Tricube,
    Truncated,
    Union,
    find_atoms,
)

if TYPE_CHECKING:
    from kdmkit import answers, metrics, nn, plotting, sql, training
    from kdmkit.distributions.operator import DensityOperator
    from kdmkit.distributions.tree import TreeKDM
    from kdmkit.engines import BatchFunction
    from kdmkit.estimators import (
        KDMClassifier,
        KDMDensity,
        KDMProportionClassifier,
        KDMRegressor,
        KDMSequence,
        KDMTable,
        join_tables,
        merge,
    )
    from kdmkit.serialize import load, save

__version__ = "0.3.0"

__all__ = [
    "KDM",
    "RBF",
    "BatchFunction",
    "Categorical",
    "Composed",
    "Cosine",
    "DensityOperator",
    "Epanechnikov",
    "Event",
    "Inflated",
    "Interval",
    "JointKDM",
    "KDMClassifier",
    "KDMDensity",
    "KDMProportionClassifier",
    "KDMRegressor",
    "KDMSequence",
    "KDMTable",
    "Kernel",
    "Levels",
    "LowRank",
    "Missing",
    "OneOf",
    "Periodic",
    "PreparedKDM",
    "QuantileNormal",
    "Rounded",
    "Transformed",
    "TreeKDM",
    "Tricube",
    "Truncated",
    "Union",
    "answers",
    "col",
    "find_atoms",
    "join_tables",
    "load",
    "merge",
    "metrics",
    "mix",
    "nn",
    "ops",
    "plotting",
    "product",
    "save",
    "sql",
    "training",
]

#: Names that are imported when they are first used, with their modules. scikit-learn, Accelerate and
#: safetensors take seconds to import; layers and metrics a third of what is left.
_LAZY = {
    **{
        package: f"kdmkit.{package}"
        for package in ("answers", "metrics", "nn", "plotting", "sql", "training")
    },
    **dict.fromkeys(("load", "save"), "kdmkit.serialize"),
    "BatchFunction": "kdmkit.engines",
    "DensityOperator": "kdmkit.distributions.operator",
    "TreeKDM": "kdmkit.distributions.tree",
    **dict.fromkeys(
        (
            *("KDMClassifier", "KDMDensity", "KDMProportionClassifier", "KDMRegressor", "KDMSequence"),
            *("KDMTable", "join_tables", "merge"),
        ),
        "kdmkit.estimators",
    ),
}

#: Names that earlier versions had, and what to use instead.
_REMOVED = {
    "Ordinal": "use kdmkit.Levels for ordered categories, kdmkit.Rounded for counts",
    "datasets": "use the loaders of sklearn.datasets, or kdmlab.datasets in a clone of the repository",
    "find_resolution": "give kdmkit.Rounded the step; kdmkit.KDMTable finds it for columns of tables",
    "join_shards": "kdmkit.ops.combine merges sums over two sets of components",
    "load_shard": "load the whole model with kdmkit.load",
}


def __getattr__(name: str) -> Any:
    """Imports a lazy name when it is first used, and keeps it (PEP 562)."""
    if name in _REMOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} any more: {_REMOVED[name]}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LAZY[name])
    value = globals()[name] = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
