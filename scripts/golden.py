"""Answers of every estimator, of tables, trees, distributions and saved models, kept to compare versions.

    python scripts/golden.py write results/golden.json          # measure with the library that is imported
    python scripts/golden.py check results/golden.json          # measure again and compare
    python scripts/golden.py check results/golden.json --only "table|tree"

Fits end after few epochs, so that rounding differences between two versions stay small. On another CPU
the fits differ by more than the tolerance: compare versions on one machine. PYTHONPATH chooses the version.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris

import kdmkit as kdm

TOLERANCE = 1e-6
_OTHER_FIT = (
    "another fit: whether a cell is there is a variable, leave-one-out prediction chooses the tree, batches "
    "grow with the rows, centres move in units of their bandwidth on a cosine schedule, rules are found"
)
_OTHER_TREND = (
    "another trend: networks start from linear models, effort decides members and patience, bandwidths of "
    "p(x) come from EM"
)
#: Differences on purpose, by the version that wrote the file: a pattern of "case: answer", and the reason.
#: Models that 0.2.0 saved answer as before (tests/serialize/test_saved_models.py).
EXPLAINED = {
    "0.2.0": {
        "kdm-of-every-kernel: transformed (mean|variance)": "exact moments across knots of a transform",
        "tree: .*": "first components are drawn from the rows in their order, so that units play no part",
        "table(-[a-z-]+)?: .*": _OTHER_FIT,
        "(classifier|regressor)(-with-weights-and-memory|-with-memory|-in-chunks)?: .*": _OTHER_TREND,
        "regressor-without-trend: several.*": _OTHER_TREND,
    }
}
Answers = dict[str, Any]
CASES: dict[str, Callable[[], Answers]] = {}


def case(function: Callable[[], Answers]) -> Callable[[], Answers]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def reloaded(model: Any) -> Any:
    """The model after `save` and `load`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        kdm.save(model, path)
        return kdm.load(path)


# ---- distributions


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernels() -> dict[str, tuple[Any, torch.Tensor, torch.Tensor]]:
    """Kernels with components and values."""
    spline = kdm.QuantileNormal.from_data(tensor(200, seed=5).exp())
    real, one = tensor(6, 2), tensor(6, 1)
    codes = torch.tensor([0, 1, 2, 3, 1, 2])
    return {
        "rbf": (kdm.RBF(0.7), real, tensor(5, 2, seed=1)),
        "rbf-ard": (kdm.RBF(torch.tensor([0.5, 2.0], dtype=torch.float64)), real, tensor(5, 2, seed=1)),
        "epanechnikov": (kdm.Epanechnikov(4.0), real, tensor(5, 2, seed=1)),
        "tricube": (kdm.Tricube(4.0), real, tensor(5, 2, seed=1)),
        "periodic": (kdm.Periodic(3.0, period=2.0), one, tensor(5, 1, seed=1)),
        "truncated": (kdm.Truncated(kdm.RBF(0.8), -3.0, 3.0), one, tensor(5, 1, seed=1).clamp(-2.9, 2.9)),
        "transformed": (kdm.Transformed(kdm.RBF(0.8), spline), one.exp(), tensor(5, 1, seed=1).exp()),
        "rounded": (
            kdm.Rounded(kdm.RBF(0.8), 0.5),
            (one * 2).round() / 2,
            (tensor(5, 1, seed=1) * 2).round() / 2,
        ),
        "categorical": (kdm.Categorical(4, 0.1), codes, codes[:5]),
        "cosine": (kdm.Cosine(), torch.softmax(tensor(6, 3), -1).sqrt(), torch.eye(3, dtype=torch.float64)),
    }


@case
def kdm_of_every_kernel() -> Answers:
    answers: Answers = {}
    weights = torch.softmax(tensor(6, seed=2), -1)
    for name, (kernel, components, values) in kernels().items():
        rho = kdm.KDM(components, weights, kernel)
        answers[f"{name} log_prob"] = rho.log_prob(values)
        answers[f"{name} sample"] = rho.sample((4,), generator=torch.Generator().manual_seed(3))
        again = reloaded(rho)
        answers[f"{name} reloaded"] = again.log_prob(values)
        for summary in ("mean", "variance", "probs"):
            try:
                answers[f"{name} {summary}"] = getattr(rho, summary)
            except (NotImplementedError, TypeError, ValueError, AttributeError):
                continue
        if components.shape[1:] == (1,):
            grid = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
            for question, argument in (("cdf", values), ("icdf", grid)):
                try:
                    answers[f"{name} {question}"] = getattr(rho, question)(argument)
                except NotImplementedError:
                    continue
    return answers


def joint() -> kdm.JointKDM:
    return kdm.JointKDM(
        {"x": tensor(8, 2), "y": torch.softmax(tensor(8, 3, seed=1), -1).sqrt(), "z": tensor(8, 1, seed=2)},
        torch.softmax(tensor(8, seed=3), -1),
        {"x": kdm.RBF(0.8), "y": kdm.Cosine(), "z": kdm.RBF(0.5)},
    )


@case
def joint_kdm() -> Answers:
    rho, x = joint(), tensor(5, 2, seed=4)
    y_given_x = rho.infer(x=x, target="y")
    masked = rho.infer(
        x=x,
        z=tensor(5, 1, seed=5),
        target="y",
        observed={"z": torch.tensor([True, False, True, False, True])},
    )
    region = rho.infer(z=kdm.Interval(-0.5, 1.0), target="x")
    uncertain = rho.infer(x=kdm.KDM(tensor(4, 2, seed=6), None, kdm.RBF(0.8)), target="y")
    prepared = rho.prepared()
    return {
        "probs": y_given_x.probs,
        "log_prob": y_given_x.log_prob(torch.tensor([0, 1, 2, 0, 1])),
        "evidence": y_given_x.log_evidence,
        "masked": masked.probs,
        "region mean": region.mean,
        "region sample": region.sample((3,), generator=torch.Generator().manual_seed(0)),
        "uncertain": uncertain.probs,
        "chain": rho.infer(y=y_given_x, target="z").mean,
        "backwards": rho.infer(y=torch.tensor([0, 2]), target="x").mean,
        "prepared": prepared.infer(x=x, target="y").probs,
        "marginal": rho.marginal("x").log_prob(x),
        "purity": rho.marginal("x").purity(),
        "quantile": rho.infer(x=x, target="z").icdf(torch.tensor([0.3], dtype=torch.float64)),
        "sample": rho.sample((3,), generator=torch.Generator().manual_seed(1)),
        "reloaded": reloaded(rho).infer(x=x, target="y").probs,
    }


def gradients_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


@case
def float32_sizes() -> Answers:
    """Sums that take the fast paths: blocks on a CPU, several dimensions, gradients."""
    answers: Answers = {}
    for n, m, d in ((64, 5000, 3), (300, 700, 16), (10, 40_000, 2)):
        c, x = tensor(m, d).float(), tensor(n, d, seed=1).float()
        rho = kdm.KDM(c, None, kdm.RBF(0.9))
        answers[f"log_prob {n} {m} {d}"] = rho.log_prob(x)
        answers[f"gradient {n} {m} {d}"] = gradients_of(rho.log_prob, x)
        labels = torch.nn.functional.one_hot(torch.arange(m) % 5).float()
        y = kdm.JointKDM({"x": c, "y": labels}, None, {"x": kdm.RBF(0.9), "y": kdm.Cosine()})
        answers[f"probs {n} {m} {d}"] = y.infer(x=x).probs
    return answers


@case
def layers() -> Answers:
    torch.manual_seed(0)
    x, y = tensor(80, 3).float(), torch.arange(80) % 4
    layer = kdm.nn.JointLayer(3, 4, n_components=12)
    layer.initialize(x, y, method="kmeans")
    loss = -layer(x).log_prob(y).mean()
    loss.backward()
    density = kdm.nn.DensityLayer(3, n_components=10)
    density.initialize(x)
    return {
        "loss": loss,
        "gradients": [p.grad.norm() for p in layer.parameters() if p.grad is not None],
        "probs": layer(x).probs,
        "reverse": layer.reverse(torch.tensor(2)).sample((3,), generator=torch.Generator().manual_seed(0)),
        "density": density().log_prob(x),
        "reloaded": reloaded(layer)(x).probs,
    }


# ---- estimators


def iris() -> tuple[Any, Any]:
    return load_iris(return_X_y=True)


def classifier_answers(model: Any, X: Any) -> Answers:
    return {
        "proba": model.predict_proba(X),
        "log proba": model.predict_log_proba(X),
        "score": model.score_samples(X),
        "sample": model.sample(4, y=1, random_state=0),
        "reloaded": reloaded(model).predict_proba(X),
    }


@case
def classifier() -> Answers:
    X, y = iris()
    return classifier_answers(kdm.KDMClassifier(max_epochs=6, random_state=0).fit(X[::2], y[::2]), X[1::6])


@case
def classifier_with_weights_and_memory() -> Answers:
    rng = np.random.default_rng(0)
    base = rng.normal(size=(60, 4))
    X = np.repeat(base, 6, 0) + 0.01 * rng.normal(size=(360, 4))
    y = np.repeat(rng.integers(0, 3, 60), 6)
    model = kdm.KDMClassifier(max_epochs=5, random_state=1, n_members=4).fit(
        X, y, sample_weight=rng.random(360)
    )
    return classifier_answers(model, X[::40] + 0.02)


@case
def classifier_methods() -> Answers:
    X, y = iris()
    answers: Answers = {}
    for method in ("nonparametric", "likelihood", "discriminative"):
        model = kdm.KDMClassifier(method, trend=None, max_epochs=4, random_state=0).fit(X[::2], y[::2])
        answers |= {f"{method} {key}": value for key, value in classifier_answers(model, X[1::6]).items()}
    return answers


@case
def classifier_behind_an_encoder() -> Answers:
    X, y = load_digits(return_X_y=True)
    model = kdm.KDMClassifier(encoder="mlp", decoder="mlp", max_epochs=2, head_epochs=1, random_state=0)
    return classifier_answers(model.fit(X[:300], y[:300]), X[300:310])


@case
def classifier_in_chunks() -> Answers:
    X, y = load_breast_cancer(return_X_y=True)
    model = kdm.KDMClassifier(max_epochs=3, max_rows=120, n_members=4, random_state=0)
    for start in range(0, 300, 100):
        model.partial_fit(X[start : start + 100], y[start : start + 100], classes=[0, 1])
    return {"proba": model.predict_proba(X[500:520]), "score": model.score_samples(X[500:520])}


def regressor_answers(model: Any, X: Any) -> Answers:
    mean, std = model.predict(X, return_std=True)
    return {
        "mean": mean,
        "std": std,
        "interval": model.predict_interval(X, coverage=0.8),
        "quantiles": model.predict_quantiles(X, [0.1, 0.5]),
        "sample": model.sample_y(X, 2, random_state=0),
        "score": model.score_samples(X) if hasattr(model, "score_samples") else 0.0,
        "reloaded": reloaded(model).predict(X),
    }


@case
def regressor() -> Answers:
    X, y = load_diabetes(return_X_y=True)
    return regressor_answers(kdm.KDMRegressor(max_epochs=5, random_state=0).fit(X[:200], y[:200]), X[400:410])


@case
def regressor_with_memory() -> Answers:
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(80, 3)), 4, 0) + 0.001 * rng.normal(size=(320, 3))
    y = np.repeat(rng.normal(size=80), 4) + 0.01 * rng.normal(size=320)
    model = kdm.KDMRegressor(max_epochs=4, n_members=4, random_state=0).fit(
        X, y, sample_weight=rng.random(320)
    )
    return regressor_answers(model, X[::40])


@case
def regressor_without_trend() -> Answers:
    X, y = load_diabetes(return_X_y=True)
    answers = regressor_answers(
        kdm.KDMRegressor(trend=None, max_epochs=3, random_state=0).fit(X[:150], y[:150]), X[400:405]
    )
    encoded = kdm.KDMRegressor("mse", encoder="mlp", max_epochs=2, random_state=0).fit(X[:150], y[:150])
    several = kdm.KDMRegressor(max_epochs=2, n_members=4, random_state=0).fit(X[:150], np.c_[y, -y][:150])
    return answers | {"encoder": encoded.predict(X[400:405]), "several": several.predict(X[400:405])}


@case
def density() -> Answers:
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=200), rng.exponential(size=200).round(1)]
    answers: Answers = {}
    settings: dict[str, dict[str, Any]] = {
        "auto": {},
        "loo": {"sigma": "loo"},
        "scott": {"sigma": "scott"},
        "likelihood": {"method": "likelihood", "max_epochs": 10},
        "spherical": {"method": "likelihood", "covariance": "spherical", "max_epochs": 5},
    }
    for name, options in settings.items():
        model = kdm.KDMDensity(random_state=0, **options).fit(X, sample_weight=rng.random(200))
        answers[f"{name} score"] = model.score_samples(X[::20] + 0.05)
        answers[f"{name} sample"] = model.sample(3, random_state=0)
        answers[f"{name} reloaded"] = reloaded(model).score_samples(X[::20])
    chunks = kdm.KDMDensity(max_rows=80, random_state=0)
    for start in range(0, 200, 50):
        chunks.partial_fit(X[start : start + 50])
    merged = kdm.merge(kdm.KDMDensity(random_state=0).fit(X[:80]), kdm.KDMDensity(random_state=0).fit(X[80:]))
    return answers | {"chunks": chunks.score_samples(X[::20]), "merged": merged.score_samples(X[::20])}


@case
def proportions() -> Answers:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=240)
    X = rng.normal(size=(240, 3)) + 1.5 * y[:, None]
    bags = np.arange(240) // 8
    share = np.bincount(bags, y) / 8
    gamma = np.column_stack([1 - share, share])
    answers: Answers = {}
    for loss in ("likelihood", "counts", "proportions"):
        model = kdm.KDMProportionClassifier(loss=loss, max_epochs=4, random_state=0).fit(X, bags, gamma)
        answers[loss] = model.predict_proba(X[::24])
        answers[f"{loss} reloaded"] = reloaded(model).predict_proba(X[::24])
        answers[f"{loss} of bags"] = model.predict_proportions(X, bags)
    ranges = np.stack([gamma - 0.05, gamma + 0.05], -1).clip(0, 1)
    model = kdm.KDMProportionClassifier(max_epochs=3, random_state=0).fit(X, bags, ranges)
    return answers | {"ranges": model.predict_proba(X[::24])}


# ---- tables and trees


def frame(n: int = 500) -> Any:
    import pandas as pd

    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, n)
    cells = {
        "price": np.round(np.exp(rng.normal(6 + z, 0.3)), 2),
        "cut": np.array(["Fair", "Good", "Ideal"])[z],
        "carat": np.round(0.3 + 0.5 * z + 0.1 * rng.random(n), 2),
        "discount": np.where(rng.random(n) < 0.5, 0.0, rng.gamma(2.0, 1.0, n).round(1)),
        "stock": rng.poisson(3 + 2 * z),
        "sold": np.datetime64("2024-01-01") + (rng.integers(0, 300, n) + 30 * z).astype("timedelta64[D]"),
        "time": pd.to_datetime("2024-03-01") + pd.to_timedelta(rng.integers(0, 86_400 * 20, n), unit="s"),
        "gift": rng.random(n) < 0.2 + 0.2 * z,
        "grade": pd.Categorical(np.array(["low", "mid", "high"])[z], ["low", "mid", "high"], ordered=True),
        "note": [f"item {i % 40}" for i in range(n)],
    }
    df = pd.DataFrame(cells)
    for name in ("price", "cut", "sold"):
        df[name] = df[name].where(rng.random(n) > 0.1)
    return df


QUESTIONS = (
    "P(price | carat in [0.5, 1])",
    "P(price | cut in {Ideal, Good}, stock >= 4)",
    "P(price | price > 500, gift = true)",
    "P(carat | cut = Fair)",
    "P(stock | grade = high)",
    "P(discount | discount > 0)",
    "P(sold | cut = Ideal)",
    "P(sold | sold >= 2024-06-01, price < 1000)",
)


def numbers(value: Any) -> Any:
    """Cells of any kind as numbers or texts."""
    array = np.asarray(value)
    if array.dtype.kind in "mM":
        return array.astype("datetime64[us]").astype(np.int64).astype(float) / 1e12
    return [str(cell) for cell in array.ravel()] if array.dtype.kind not in "fiub" else array.astype(float)


def table_answers(table: Any, df: Any) -> Answers:
    answers: Answers = {}
    for question in QUESTIONS:
        answer = table.query(question)
        answers[f"{question} evidence"] = answer.log_evidence
        answers[f"{question} interval"] = numbers(answer.interval(0.9))
        answers[f"{question} median"] = numbers([answer.median])
        if "sold |" not in question:
            answers[f"{question} mean"] = answer.mean
        answers[f"{question} sample"] = numbers(answer.sample(3))
    for question in ("P(cut | price > 1000)", "P(gift | sold < 2024-05-01)", "P(grade | price < 700)"):
        answers[question] = list(table.query(question).probs.values())
    answers["event"] = table.probability("price > 1000, gift = true", given={"cut": "Ideal"})
    rows = df.iloc[:25]
    answers["score"] = table.score_samples(rows)
    answers["predict"] = numbers(table.predict(rows.drop(columns="price"), "price"))
    answers["proba"] = table.predict_proba(rows.drop(columns="cut"), "cut")
    answers["interval"] = numbers(table.predict_interval(rows.drop(columns="price"), "price"))
    for name, column in table.impute(rows).items():
        answers[f"imputed {name}"] = numbers(column)
    for name, column in table.sample(6, given={"cut": "Ideal"}, random_state=0).items():
        answers[f"drawn {name}"] = numbers(column)
    answers["explained"] = re.findall(r"-?\d+\.\d+", str(table.explain(df[3:4])))
    answers["links"] = [value for _, _, value in table.links(n_samples=200)]
    return answers


@case
def table() -> Answers:
    df = frame()
    model = kdm.KDMTable(n_components=8, max_epochs=3, random_state=0).fit(df)
    again = reloaded(model)
    return table_answers(model, df) | {"reloaded": again.score_samples(df[:20])}


@case
def table_with_a_target() -> Answers:
    df = frame(300)
    model = kdm.KDMTable(targets=["price"], n_components=6, max_epochs=2, random_state=1).fit(df)
    return {
        "predict": numbers(model.predict(df[:20].drop(columns="price"), "price")),
        "score": model.score_samples(df[:20]),
    }


@case
def table_in_chunks() -> Answers:
    df = frame(400)
    model = kdm.KDMTable(n_components=6, max_epochs=2, max_rows=150, random_state=0)
    for start in range(0, 400, 100):
        model.partial_fit(df[start : start + 100])
    return {"score": model.score_samples(df[:20])}


@case
def table_from_a_file() -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        frame(300).to_csv(path, index=False)
        model = kdm.KDMTable(n_components=6, max_epochs=2, random_state=0).fit(path)
        streamed = list(model.stream("score", path))
        score = np.concatenate([np.asarray(batch.column(batch.num_columns - 1)) for batch in streamed])
        return {"kinds": [str(model.columns_[name].kind) for name in model.columns_], "score": score}


@case
def tree() -> Answers:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, generator=rng)
    columns = {
        "a": x[:, None],
        "b": (x + 0.3 * torch.randn(200, generator=rng))[:, None],
        "c": (x > 0).long(),
    }
    torch.manual_seed(0)
    variables = [
        kdm.nn.Variable("a", kdm.RBF(0.5), (1,)),
        kdm.nn.Variable("b", kdm.RBF(0.5), (1,)),
        kdm.nn.Variable("c", kdm.Categorical(2, 0.1), ()),
    ]
    layer = kdm.nn.TreeLayer(variables, n_components=6).initialize(**columns)
    rho = layer.tree()
    given = rho.infer(a=columns["a"][:5], target="b")
    return {
        "log_prob": rho.log_prob(**{name: column[:20] for name, column in columns.items()}),
        "mean": given.mean,
        "log_prob given": given.log_prob(columns["b"][:5]),
        "probs": rho.infer(a=kdm.Interval(0.0, 1.0), target="c").probs,
        "quantile": given.icdf(torch.tensor([0.25])),
        "sample": rho.sample((4,), generator=torch.Generator().manual_seed(0)),
        "several": rho.infer(a=columns["a"][:3], target=["b", "c"]).log_prob(
            b=columns["b"][:3], c=columns["c"][:3]
        ),
        "information": rho.mutual_information("a", "c", of="indices").value,
        "mode": rho.mode(a=columns["a"][:3]).values,
        "reloaded": reloaded(layer)
        .tree()
        .log_prob(**{name: column[:20] for name, column in columns.items()}),
    }


# ---- the command


def flat(value: Any) -> list[float | str]:
    """Numbers and texts of an answer, in order."""
    if isinstance(value, dict):
        return [item for key in sorted(value) for item in flat(value[key])]
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten().tolist()
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return np.asarray(value, dtype=float).ravel().tolist()


def measure(name: str) -> dict[str, list[float | str]]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {key: flat(value) for key, value in CASES[name]().items()}


def difference(expected: list[float | str], answer: list[float | str]) -> float:
    """The largest |Δ|/(1 + |expected|); infinite where texts or lengths differ."""
    if len(expected) != len(answer):
        return float("inf")
    worst = 0.0
    for left, right in zip(expected, answer, strict=True):
        if isinstance(left, str) or isinstance(right, str) or not np.isfinite([left, right]).all():
            worst = max(worst, 0.0 if left == right or (left != left and right != right) else float("inf"))
        else:
            worst = max(worst, abs(left - right) / (1 + abs(left)))
    return worst


def reason(version: str, name: str, key: str) -> str:
    """Why an answer differs from that of a version; empty if it should not."""
    reasons = EXPLAINED.get(version, {}).items()
    return next((why for pattern, why in reasons if re.fullmatch(pattern, f"{name}: {key}")), "")


def check(expected: dict[str, Any], version: str, names: list[str]) -> int:
    failed = 0
    for name in names:
        start = time.perf_counter()
        try:
            answers = measure(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            failed += 1
            continue
        wrong = {
            key: difference(value, answers.get(key, []))
            for key, value in expected[name].items()
            if not difference(value, answers.get(key, [])) <= TOLERANCE
        }
        for key, gap in wrong.items():
            print(f"{name}: {key}: differs by {gap:.2g}, {reason(version, name, key) or 'UNEXPLAINED'}")
        failed += not all(reason(version, name, key) for key in wrong)
        if not wrong:
            print(f"{name}: equal, {len(answers)} answers, {time.perf_counter() - start:.1f} s")
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", default="", help="a regular expression of names of cases")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in CASES if re.search(options.only, name)]
    if options.action == "check":
        file = json.loads(options.path.read_text())
        return check(file["answers"], file["versions"]["kdmkit"], names)
    text = io.StringIO()
    answers = {name: measure(name) for name in names}
    versions = {"kdmkit": kdm.__version__, "torch": torch.__version__, "numpy": np.__version__}
    json.dump({"versions": versions, "answers": answers}, text, indent=None)
    options.path.write_text(text.getvalue() + "\n")
    print(f"{sum(map(len, answers.values()))} answers of {len(answers)} cases: {options.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
