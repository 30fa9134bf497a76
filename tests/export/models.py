"""Fitted estimators and the methods that are exported."""

from functools import cache
from typing import Any

import numpy as np
import torch

import kdmkit as kdm
from kdmkit.nn import ResidualMemory

N, D = 90, 4

#: By name: a model of `fitted` and one of its methods.
CASES = {
    f"{model}, {method}": (model, method)
    for model, methods in {
        "classifier": ("predict_proba", "score_samples"),
        "classifier behind an encoder": ("predict_proba", "score_samples"),
        "non-parametric classifier": ("predict_proba", "score_samples"),
        "regressor": ("predict", "score_samples"),
        "regressor with a memory": ("predict",),
        "density": ("score_samples",),
    }.items()
    for method in methods
}


def rows(n: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


@cache
def fitted(name: str) -> Any:
    """A model after a few epochs on a few rows."""
    x = rows(N, seed=0)
    y, few = np.sin(x[:, 0]) + x[:, 1], {"max_epochs": 2, "random_state": 0, "device": "cpu"}
    if name == "density":
        return kdm.KDMDensity(random_state=0, device="cpu").fit(x)
    if name.startswith("regressor"):
        model = kdm.KDMRegressor(**few).fit(x, y)
        if "memory" in name:
            memory = ResidualMemory(torch.from_numpy(x), torch.from_numpy(x[:, :1]), torch.zeros(N), 0.5, 0.3)
            model.module_.trend.memory = memory
        return model
    options: Any = {
        "classifier": {},
        "classifier behind an encoder": {"encoder": "mlp"},
        "non-parametric classifier": {"method": "nonparametric"},
    }[name]
    return kdm.KDMClassifier(**options, **few).fit(x, np.digitize(y, [-0.7, 0.7]))


def answers(model: Any, method: str, x: Any) -> list[Any]:
    """What the estimator itself answers, as a list of arrays."""
    options = {"return_std": True} if method == "predict" else {}
    answer = getattr(model, method)(x, **options)
    return list(answer) if isinstance(answer, tuple) else [answer]


def export(model: Any, method: str) -> torch.export.ExportedProgram:
    """The method as a program with a dynamic batch."""
    batch = {"x": {0: torch.export.Dim("batch")}}
    return torch.export.export(model.to_module(method), (torch.zeros(3, D),), dynamic_shapes=batch)
