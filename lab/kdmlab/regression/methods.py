"""The methods of the comparison: each learns from one split and predicts its test rows."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kdmkit import KDMRegressor
from kdmlab.common.checks import bad_argument
from kdmlab.regression import dense, ensemble, gp, tuned
from kdmlab.regression.data import Split
from kdmlab.regression.dense import committee_dense
from kdmlab.regression.ensemble import deep_ensemble
from kdmlab.regression.gp import gaussian_process
from kdmlab.regression.scores import Gaussians, Mixtures, Predictive, scores


def kdm(split: Split, seed: int, **options: Any) -> Predictive:
    """`KDMRegressor` with some options; the others are its defaults."""
    model = KDMRegressor(device="cpu", random_state=seed, **options).fit(split.X, split.y)
    return Mixtures(model.predict_dist(split.X_test))


def ngboost(split: Split, seed: int) -> Predictive:
    """NGBoost's defaults: a Gaussian, 500 trees of depth 3, rate 0.01."""
    from ngboost import NGBRegressor

    model = NGBRegressor(random_state=seed, verbose=False).fit(split.X, split.y)
    answer = model.pred_dist(split.X_test)
    return Gaussians(answer.params["loc"], answer.params["scale"])


@dataclass(frozen=True)
class Method:
    """How a method predicts, its settings, the modules that it needs, and whether it takes a `device`."""

    predict: Callable[..., Predictive]
    settings: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    on_device: bool = False


def _regressor(**options: Any) -> Method:
    """`KDMRegressor` with options, which are its settings."""
    words = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return Method(partial(kdm, **options), {"estimator": f"KDMRegressor({words})"})


METHODS = {
    "kdm": _regressor(),
    "kdm-without-memory": _regressor(memory=False),
    # One component: the residuals of the committee have the same Gaussian everywhere, beside the committee's
    # excess variance.
    "committee-gaussian": _regressor(memory=False, n_components=1),
    "committee-dense": Method(
        committee_dense,
        {
            "committee": "that of KDMRegressor()",
            "head": f"{dense.MEMBERS} networks for a mixture of {dense.COMPONENTS} Gaussians of the "
            "residual, by likelihood, early stopping on held-out rows",
        },
    ),
    "joint-kdm": _regressor(trend=None),
    "gp": Method(
        gaussian_process,
        {
            "kernel": "constant × RBF with a scale per feature + white noise",
            "exact": f"up to {gp.EXACT_ROWS} rows, L-BFGS, {gp.ITERATIONS} iterations",
            "sparse": f"{gp.INDUCING} inducing points, Titsias' bound, Adam {gp.RATE}, {gp.STEPS} steps",
        },
        ("gpytorch",),
    ),
    "gp-tuned": Method(
        tuned.tuned_process,
        {
            "kernels": f"{', '.join(tuned.KERNELS)} with a scale per feature, first {list(tuned.STARTS)}, by "
            f"marginal likelihood of {tuned.COMPARED_ROWS} rows",
            "exact": f"scales learned from up to {tuned.LEARNING_ROWS} rows, L-BFGS, {tuned.ITERATIONS} "
            "iterations; conditioned on all rows",
        },
        on_device=True,
    ),
    "ngboost": Method(ngboost, {"estimator": "NGBRegressor()"}, ("ngboost",)),
    "ngboost-tuned": Method(
        tuned.tuned_ngboost,
        {
            "depths": list(tuned.DEPTHS),
            "rate": tuned.RATE,
            "trees": f"at most {tuned.TREES}, early stopping after {tuned.PATIENCE} on {tuned.HELD:.0%} of "
            "the rows, then fitted to all rows",
        },
        ("ngboost",),
    ),
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
            wanted = f"{missing[0]} for {name!r}: pip install -e 'lab[regression]'"
            raise ValueError(bad_argument("method", wanted, "an environment without it"))


def measure(method: Method, split: Split, seed: int, device: str = "cpu") -> dict[str, Any]:
    """The scores of one fit, and how long it took with its predictions."""
    start = time.perf_counter()
    predictive = method.predict(split, seed, **({"device": device} if method.on_device else {}))
    seconds = time.perf_counter() - start
    return {**scores(predictive, split.y_test), "fit_seconds": round(seconds, 2), "rows": len(split.y)}
