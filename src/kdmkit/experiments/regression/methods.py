"""The methods of the comparison: each learns from one split and predicts its test rows."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import KDMRegressor
from kdmkit.experiments.regression import ensemble, gp
from kdmkit.experiments.regression.data import Split
from kdmkit.experiments.regression.ensemble import deep_ensemble
from kdmkit.experiments.regression.gp import gaussian_process
from kdmkit.experiments.regression.scores import Gaussians, Mixtures, Predictive, scores


def kdm(split: Split, seed: int) -> Predictive:
    """`KDMRegressor` with its defaults."""
    model = KDMRegressor(device="cpu", random_state=seed).fit(split.X, split.y)
    return Mixtures(model.predict_dist(split.X_test))


def ngboost(split: Split, seed: int) -> Predictive:
    """NGBoost's defaults: a Gaussian, 500 trees of depth 3, rate 0.01."""
    from ngboost import NGBRegressor

    model = NGBRegressor(random_state=seed, verbose=False).fit(split.X, split.y)
    answer = model.pred_dist(split.X_test)
    return Gaussians(answer.params["loc"], answer.params["scale"])


@dataclass(frozen=True)
class Method:
    """How a method predicts, its settings, and the modules that it needs."""

    predict: Callable[[Split, int], Predictive]
    settings: Mapping[str, Any]
    needs: tuple[str, ...] = ()


METHODS = {
    "kdm": Method(kdm, {"estimator": "KDMRegressor()"}),
    "gp": Method(
        gaussian_process,
        {
            "kernel": "constant × RBF with a scale per feature + white noise",
            "exact": f"up to {gp.EXACT_ROWS} rows, L-BFGS, {gp.ITERATIONS} iterations",
            "sparse": f"{gp.INDUCING} inducing points, Titsias' bound, Adam {gp.RATE}, {gp.STEPS} steps",
        },
        ("gpytorch",),
    ),
    "ngboost": Method(ngboost, {"estimator": "NGBRegressor()"}, ("ngboost",)),
    "deep-ensemble": Method(
        deep_ensemble,
        {
            "members": ensemble.MEMBERS,
            "hidden": list(ensemble.HIDDEN),
            "training": "Gaussian likelihood, AdamW 0.003, one-cycle, 300 epochs, early stopping on 10 %",
        },
    ),
}


def check_methods(names: list[str]) -> None:
    """Raises a ValueError for an unknown method, or one whose modules are not installed."""
    for name in names:
        if name not in METHODS:
            raise ValueError(bad_argument("method", f"one of {', '.join(METHODS)}", repr(name)))
        missing = [module for module in METHODS[name].needs if importlib.util.find_spec(module) is None]
        if missing:
            wanted = f"{missing[0]} for {name!r}: pip install 'kdmkit[benchmarks-regression]'"
            raise ValueError(bad_argument("method", wanted, "an environment without it"))


def measure(method: Method, split: Split, seed: int) -> dict[str, Any]:
    """The scores of one fit, and how long it took with its predictions."""
    start = time.perf_counter()
    predictive = method.predict(split, seed)
    seconds = time.perf_counter() - start
    return {**scores(predictive, split.y_test), "fit_seconds": round(seconds, 2), "rows": len(split.y)}
