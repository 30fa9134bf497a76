"""Small models of every kind with their answers, to check that later versions load them and answer the same.

    python tests/serialize/make_models.py tests/serialize/models_0_2

wrote `models_0_2`, with kdmkit 0.2.0 on the path. Once a version is released, its folder never changes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import kdmkit as kdm
from kdmkit.kernels import FixedBandwidth
from kdmkit.nn import DensityLayer, JointLayer, TreeLayer, Variable

QUICK: dict[str, Any] = {"max_epochs": 2, "n_components": 8, "random_state": 0}
#: Three members in place of sixteen: small files.
TREND: dict[str, Any] = {**QUICK, "trend": "mlp", "n_members": 3}


def numbers(n: int, d: int = 2, seed: int = 0) -> Any:
    """Uniform numbers between -2 and 2 with two decimals, the same on every machine."""
    return np.random.default_rng(seed).integers(-200, 201, (n, d)) / 100


ROWS, LABELS = numbers(80), np.arange(80) % 3
INPUTS = ROWS + LABELS[:, None]
TARGET = np.round(np.sin(INPUTS[:, 0]) + 0.1 * ROWS[:, 1], 3)
BAGS = np.arange(80) // 8
PROPORTIONS = np.stack([np.bincount(LABELS[BAGS == bag], minlength=3) / 8 for bag in range(10)])
QUESTIONS = numbers(5, seed=1) + np.array([0.0, 0.5])


def frame() -> pd.DataFrame:
    """Numbers (whole, positive, with an atom), categories, ordered levels, truth values, dates, gaps."""
    n = 160
    rng = np.random.default_rng(2)
    rank = rng.integers(0, 3, n)
    income = np.where(
        rng.integers(0, 4, n) == 0, 0.0, np.round(100 * 2.0 ** (rng.integers(0, 900, n) / 150), 2)
    )
    days = rng.integers(0, 900, n).astype("timedelta64[D]")
    table = pd.DataFrame(
        {
            "height": 150.5 + 10 * rank + rng.integers(0, 1200, n) / 100,
            "income": income,
            "children": rng.integers(0, 5, n) + rank,
            "size": pd.Categorical(
                np.array(["small", "medium", "large"])[rank], ["small", "medium", "large"], ordered=True
            ),
            "city": np.array(["Bonn", "Oslo", "Rome", "Lima"])[rng.integers(0, 4, n)],
            "member": rng.integers(0, 2, n).astype(bool),
            "joined": np.datetime64("2020-01-01") + days,
        }
    )
    for column in ("height", "size", "city", "joined"):
        table.loc[rng.choice(n, 12, replace=False), column] = None
    return table


QUERIES = (
    "P(height | size = large)",
    "P(height | income > 500, city in {Oslo, Rome})",
    "P(income | 160 <= height <= 175)",
    "P(children | member = True)",
    "P(size | height > 170, children = 3)",
    "P(city | joined >= 2021-01-01)",
    "P(joined | size = small)",
    "P(income > 1000, height < 170 | city = Bonn)",
)


class Squash(nn.Module):
    """An encoder for a Composed kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


def real(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


PLANE, LINE = real(numbers(4, seed=3)), real(numbers(4, 1, seed=4))
POSITIVE, CODES = real([[0.2], [0.9], [1.5], [3.0]]), torch.tensor([0, 2, 1, 2])
#: Kernels with components.
KERNELS: dict[str, Callable[[], tuple[kdm.Kernel, Tensor]]] = {
    "rbf": lambda: (kdm.RBF(0.5), PLANE),
    "rbf-ard": lambda: (kdm.RBF([0.3, 0.8]), PLANE),
    "rbf-metric": lambda: (kdm.RBF.from_metric(real([[2.0, 0.0], [-1.5, 1.2]])), PLANE),
    "rbf-per-component": lambda: (kdm.RBF([[0.3, 1.0], [0.5, 0.9], [0.8, 0.4], [1.2, 0.6]]), PLANE),
    "rbf-fixed": lambda: (kdm.RBF(FixedBandwidth("sigma", [0.3, 0.8])), PLANE),
    "epanechnikov": lambda: (kdm.Epanechnikov([2.5, 3.5]), PLANE),
    "tricube": lambda: (kdm.Tricube([[2.5], [3.0], [2.2], [2.9]]), PLANE),
    "cosine": lambda: (
        kdm.Cosine(),
        real([[0.6, 0.8, 0.0], [0.0, 0.6, 0.8], [1.0, 0.0, 0.0], [0.8, 0.0, 0.6]]),
    ),
    "categorical": lambda: (kdm.Categorical(3, smoothing=0.2), CODES),
    "levels": lambda: (kdm.Levels(3, smoothing=0.2), real(numbers(4, 3, seed=5))),
    "transformed-log": lambda: (kdm.Transformed.log(kdm.RBF(0.3)), LINE),
    "transformed-logit": lambda: (kdm.Transformed.logit(kdm.RBF([[0.3], [0.5], [0.8], [1.2]]), -4, 4), LINE),
    "transformed-quantile": lambda: (
        kdm.Transformed.quantile_normal(kdm.RBF(0.6), POSITIVE.repeat(3, 1) + real(numbers(12, 1)) / 50),
        LINE,
    ),
    "truncated": lambda: (kdm.Truncated(kdm.RBF(0.6), -1.0, 1.5), real([[-0.9], [0.0], [0.4], [1.4]])),
    "rounded": lambda: (kdm.Rounded(kdm.Transformed.log(kdm.RBF(0.4)), 0.25), LINE),
    "inflated": lambda: (
        kdm.Inflated(kdm.Transformed.log(kdm.RBF(0.3)), [0.0, 1.0]),
        real(numbers(4, 4, seed=6)),
    ),
    "inflated-missing": lambda: (
        kdm.Inflated(kdm.Rounded(kdm.RBF(0.8), 0.5), [0.0, math.nan]),
        real(numbers(4, 4, seed=7)),
    ),
    "periodic": lambda: (kdm.Periodic([2.0, 0.3], 5.0), PLANE),
    "periodic-whole": lambda: (kdm.Periodic(1.5, 7, whole=True), real([[0.0], [3.0], [4.0], [6.0]])),
}


def _distribution(kernel: kdm.Kernel, components: Tensor) -> kdm.KDM:
    return kdm.KDM(components, real([0.1, 0.2, 0.3, 0.4]), kernel)


def _mixed_joint() -> kdm.JointKDM:
    components = {
        "x": PLANE,
        "y": real([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0, 0, 1], [0, 0.6, 0.8]]),
        "code": CODES,
    }
    kernels = {"x": kdm.RBF(0.5), "y": kdm.Cosine(), "code": kdm.Categorical(3, 0.1)}
    return kdm.JointKDM(components, real([0.1, 0.2, 0.3, 0.4]), kernels)


def _tree() -> kdm.TreeKDM:
    kernels = {"x": kdm.RBF(0.5), "y": kdm.RBF(0.7), "code": kdm.Categorical(3, 0.1)}
    edges = {
        name: torch.softmax(real(numbers(4, 4, seed=seed)), -1) for name, seed in (("y", 8), ("code", 9))
    }
    parents = {"x": None, "y": "x", "code": "y"}
    return kdm.TreeKDM(
        {"x": PLANE, "y": LINE, "code": CODES}, kernels, parents, real([0.1, 0.2, 0.3, 0.4]), edges
    )


def _variables() -> list[Variable]:
    return [
        Variable("age", kdm.RBF(torch.full((6, 1), 2.0)), 1),
        Variable("job", kdm.Categorical(4, 0.1), ()),
        Variable("level", kdm.Levels(4, 0.01), ()),
        Variable("height", kdm.Epanechnikov(4.0), 2),
    ]


def _cells() -> dict[str, Tensor]:
    """Values of `_variables`."""
    codes = torch.from_numpy(np.arange(40) % 4)
    return {"age": real(ROWS[:40, :1]), "job": codes, "level": codes.flip(0), "height": real(ROWS[40:])}


def _started(layer: Any, **values: Tensor) -> Any:
    return layer.initialize(**values, generator=torch.Generator().manual_seed(0))


def _joint_layer(features: int, **options: Any) -> JointLayer:
    layer = JointLayer(features, 3, 6, dtype=torch.float64, **options)
    return _started(layer, x=real(INPUTS[:, :features]), y=torch.from_numpy(LABELS))


MODELS: dict[str, Callable[[], Any]] = {
    "density": lambda: kdm.KDMDensity(random_state=0).fit(INPUTS),
    "density-full": lambda: kdm.KDMDensity("likelihood", **QUICK).fit(INPUTS),
    "density-diag": lambda: kdm.KDMDensity("likelihood", covariance="diag", **QUICK).fit(INPUTS),
    "density-spherical": lambda: kdm.KDMDensity("likelihood", covariance="spherical", **QUICK).fit(INPUTS),
    "classifier": lambda: kdm.KDMClassifier(**TREND).fit(INPUTS, LABELS),
    "classifier-direct": lambda: kdm.KDMClassifier(trend=None, **QUICK).fit(
        INPUTS, np.array(["a", "b", "ü"])[LABELS]
    ),
    "classifier-decoder": lambda: kdm.KDMClassifier(
        encoder=Squash(), decoder="mlp", generative_weight=1.0, **QUICK
    ).fit(INPUTS, LABELS),
    "classifier-nonparametric": lambda: kdm.KDMClassifier("nonparametric").fit(INPUTS, LABELS),
    "regressor": lambda: kdm.KDMRegressor(memory=False, **TREND).fit(INPUTS, TARGET),
    "regressor-direct": lambda: kdm.KDMRegressor(trend=None, **QUICK).fit(INPUTS, TARGET),
    "regressor-memory": lambda: kdm.KDMRegressor(**TREND).fit(INPUTS, TARGET),
    "regressor-of-two": lambda: kdm.KDMRegressor(trend=None, **QUICK).fit(
        INPUTS, np.column_stack([TARGET, ROWS])
    ),
    "regressor-module": lambda: kdm.KDMRegressor(encoder=Squash(), generative_weight=1.0, **QUICK).fit(
        INPUTS, TARGET
    ),
    "proportions": lambda: kdm.KDMProportionClassifier(**QUICK).fit(INPUTS, BAGS, PROPORTIONS),
    "proportions-mlp": lambda: kdm.KDMProportionClassifier(encoder="mlp", **QUICK).fit(
        INPUTS, BAGS, PROPORTIONS
    ),
    "table": lambda: kdm.KDMTable(**QUICK).fit(frame()),
    "joint-layer": lambda: _joint_layer(2),
    "joint-layer-composed": lambda: _joint_layer(2, in_kernel=kdm.Composed(Squash().double(), kdm.RBF(1.0))),
    "joint-layer-variables": lambda: _started(
        JointLayer.from_variables(_variables(), 6, inputs=["age", "job"], dtype=torch.float64), **_cells()
    ),
    "density-layer": lambda: _started(DensityLayer(2, 6, dtype=torch.float64), x=real(INPUTS)),
    "tree-layer": lambda: _started(TreeLayer(_variables(), 6, dtype=torch.float64), **_cells()),
    "predictor": lambda: kdm.nn.Predictor(_joint_layer(2)),
    "joint": _mixed_joint,
    "tree": _tree,
    "tree-conditioned": lambda: _tree().infer(x=real(QUESTIONS)),
    **{f"kdm-{name}": lambda make=make: _distribution(*make()) for name, make in KERNELS.items()},
}

#: Models with a module of the caller's, which `load` has to be given.
ENCODERS = {
    "classifier-decoder": Squash,
    "regressor-module": Squash,
    "joint-layer-composed": lambda: Squash().double(),
}


# ---- answers


def answers(name: str, model: Any, events: Any = None) -> dict[str, Any]:
    """Deterministic answers of a model, by question.

    Args:
        events: the values that the density of a KDM is asked for; None draws them.
    """
    if isinstance(model, kdm.KDMTable):
        return _table_answers(model)
    if hasattr(model, "module_"):
        return _estimator_answers(model)
    if isinstance(model, kdm.KDM):
        return _kdm_answers(model, events)
    return {
        question: ask(model)
        for question, ask in _OTHER[type(model).__name__].items()
        if _fits(name, question)
    }


def _fits(name: str, question: str) -> bool:
    """Layers of several variables have no x."""
    return ("variables" in name) == (question in ("joint", "given age and job"))


def _estimator_answers(model: Any) -> dict[str, Any]:
    methods = ("score_samples", "predict", "predict_proba", "predict_interval")
    replies = {name: getattr(model, name)(QUESTIONS) for name in methods if hasattr(model, name)}
    if isinstance(model, kdm.KDMRegressor):
        replies["std"] = model.predict(QUESTIONS, return_std=True)[1]
        replies["quantiles"] = model.predict_quantiles(QUESTIONS, [0.1, 0.5, 0.9])
    return replies


def _table_answers(model: kdm.KDMTable) -> dict[str, Any]:
    replies: dict[str, Any] = {"score_samples": model.score_samples(frame().head(10))}
    for text in QUERIES:
        answer = model.query(text).to_dict()
        replies[text] = {key: value for key, value in answer.items() if key not in ("query", "given")}
    return replies


def _kdm_answers(rho: kdm.KDM, events: Any) -> dict[str, Any]:
    x = (
        rho.sample((5,), generator=torch.Generator().manual_seed(0))
        if events is None
        else torch.from_numpy(np.array(events))
    )
    replies: dict[str, Any] = {"events": x, "log_prob": rho.log_prob(x)}
    for question, ask in _MOMENTS.items():
        try:
            replies[question] = ask(rho)
        except (TypeError, ValueError, NotImplementedError):  # not a question to this kernel
            continue
    return replies


_MOMENTS: dict[str, Callable[[kdm.KDM], Any]] = {
    "probs": lambda rho: rho.probs,
    "mean": lambda rho: rho.mean,
    "variance": lambda rho: rho.variance,
    "quantiles": lambda rho: rho.icdf(real([[0.1], [0.5], [0.9]])),
    "purity": lambda rho: rho.purity(),
}
X = real(QUESTIONS)
_EVENTS = {"x": X, "y": real([[0.5]] * 5), "code": torch.arange(5) % 3}
_LABELLED = {**_EVENTS, "y": torch.arange(5) % 3}
_OTHER: dict[str, dict[str, Callable[[Any], Any]]] = {
    "JointLayer": {
        "probs": lambda layer: layer(X).probs,
        "joint": lambda layer: layer.joint().log_prob(**_cells()),
        "given age and job": lambda layer: (
            layer.joint().infer(age=_cells()["age"], job=_cells()["job"], target="level").probs
        ),
    },
    "DensityLayer": {"log_prob": lambda layer: layer().log_prob(X)},
    "TreeLayer": {
        "log_prob": lambda layer: layer.tree().log_prob(**_cells()),
        "level given age": lambda layer: layer.tree().infer(age=_cells()["age"], target="level").probs,
    },
    "Predictor": {"probs": lambda predictor: predictor(X).probs},
    "JointKDM": {
        "log_prob": lambda rho: rho.log_prob(**_LABELLED),
        "y given x": lambda rho: rho.infer(x=X, target="y").probs,
        "mean of x given code": lambda rho: rho.infer(code=_EVENTS["code"], target="x").mean,
    },
    "TreeKDM": {
        "log_prob": lambda tree: tree.log_prob(**{name: _EVENTS[name] for name in tree.variables}),
        "mean of y": lambda tree: tree.marginal("y").mean,
        "quantiles of y": lambda tree: tree.marginal("y").icdf(real([0.1, 0.5, 0.9]).reshape(3, 1, 1)),
        "code": lambda tree: tree.marginal("code").probs,
    },
}


def plain(value: Any) -> Any:
    """Answers in JSON's types."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, float | int | str | None) else str(value)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make()
        kdm.save(model, folder / name)
        record[name] = plain(answers(name, model))
    text = json.dumps({"kdmkit": kdm.__version__, "answers": record}, ensure_ascii=False, indent=1)
    (folder / "answers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
