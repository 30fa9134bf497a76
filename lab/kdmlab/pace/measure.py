"""One fit: its processor seconds and the quality of its answers."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kdmkit import KDMClassifier, KDMRegressor
from kdmlab.common.files import write_arrays
from kdmlab.pace.data import Array, Kind, load

SEED = 0
FOLDS = 3
OLD = "0.2.0"
EFFORTS = ("fast", "default", "best")
BOOSTING, FOREST, LINEAR = "boosting", "forest", "linear"
PEERS: dict[Kind, dict[str, Any]] = {
    "classifier": {
        BOOSTING: HistGradientBoostingClassifier(random_state=SEED),
        FOREST: RandomForestClassifier(random_state=SEED),
        LINEAR: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    },
    "regressor": {
        BOOSTING: HistGradientBoostingRegressor(random_state=SEED),
        FOREST: RandomForestRegressor(random_state=SEED),
        LINEAR: make_pipeline(StandardScaler(), Ridge()),
    },
}
# Probabilities below this count as this: forests answer 0.
_LEAST = 1e-7


def measure(kind: Kind, table: str, fold: int, method: str, old: Path | None = None) -> dict[str, Any]:
    """Processor seconds of a fit in one thread, and scores of its answers for the rows of a fold.

    Args:
        kind: of the estimator.
        table: its name in `TABLES`.
        fold: of three, shuffled with a fixed seed; those of labels are stratified.
        method: an effort of the library, a peer, or `0.2.0`.
        old: the folder with the source of kdmkit 0.2.0.
    """
    X, y = load(table)
    folds: Any = (StratifiedKFold if kind == "classifier" else KFold)(FOLDS, shuffle=True, random_state=SEED)
    with warnings.catch_warnings():
        # A class of two rows has none in some folds.
        warnings.simplefilter("ignore", UserWarning)
        train, test = list(folds.split(X, y))[fold]
    arrays = {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test]}
    answers = _of_old(kind, arrays, old) if method == OLD else _of_present(kind, arrays, method)
    return {**_scores(kind, y, arrays, answers), "fit": answers["fit"], "shape": list(X.shape)}


def _of_present(kind: Kind, arrays: dict[str, Array], method: str) -> dict[str, Any]:
    model = _estimator(kind, method)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _load_libraries(kind, method)
        start = time.process_time()
        model.fit(arrays["X"], arrays["y"])
        seconds = time.process_time() - start
        if kind == "classifier":
            return {"fit": seconds, "classes": model.classes_, "probs": model.predict_proba(arrays["X_test"])}
        answers = {"fit": seconds, "mean": model.predict(arrays["X_test"])}
        if method in EFFORTS:
            y = torch.from_numpy(arrays["y_test"])[:, None]
            answers["log_prob"] = model.predict_dist(arrays["X_test"]).log_prob(y).numpy()
        return answers


@cache
def _load_libraries(kind: Kind, method: str) -> None:
    """The first fit of a process loads libraries: one to twenty rows is not measured."""
    y = np.arange(20) % 2
    _estimator(kind, method).fit(np.eye(20)[:, :2], y if kind == "classifier" else y.astype(float))


def _estimator(kind: Kind, method: str) -> Any:
    if method not in EFFORTS:
        return clone(PEERS[kind][method])
    estimator: Any = KDMClassifier if kind == "classifier" else KDMRegressor
    return estimator(effort=method, random_state=SEED, device="cpu")


def _of_old(kind: Kind, arrays: dict[str, Array], old: Path | None) -> dict[str, Any]:
    """The answers of version 0.2.0, in a process of its own."""
    if old is None:
        raise ValueError("old: expected the folder with the source of kdmkit 0.2.0, got None")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "rows.npz", Path(folder) / "answers.npz"
        write_arrays(source, arrays)
        task = {"kind": kind, "source": str(source), "target": str(target), "seed": SEED}
        facts = _asked(_process(old), json.dumps(task))
        if facts["version"] != OLD:
            raise ValueError(f"old: expected the source of kdmkit {OLD}, got {facts['version']}")
        with np.load(target) as answers:
            return {"fit": facts["fit"], "classes": np.unique(arrays["y"]), **answers}


@cache
def _process(old: Path) -> subprocess.Popen[str]:
    """A process of version 0.2.0, which ends with this one."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("version_0_2.py"))],
        env={**os.environ, "PYTHONPATH": str(old), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    return process


def _asked(process: subprocess.Popen[str], task: str) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(task + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the process of version 0.2.0 ended; its error is above")
    facts: dict[str, Any] = json.loads(line)
    return facts


def _scores(kind: Kind, y: Array, arrays: dict[str, Array], answers: dict[str, Any]) -> dict[str, float]:
    truth = arrays["y_test"]
    if kind == "classifier":
        probs = np.full((len(truth), len(np.unique(y))), _LEAST)
        probs[:, answers["classes"]] = np.clip(answers["probs"], _LEAST, 1)
        probs /= probs.sum(1, keepdims=True)
        accuracy = float((probs.argmax(1) == truth).mean())
        return {"log_loss": float(log_loss(truth, probs, labels=np.unique(y))), "accuracy": accuracy}
    # In standard deviations of all targets: means over tables need one unit.
    rmse = float(np.sqrt(np.mean((answers["mean"] - truth) ** 2)) / y.std())
    if "log_prob" not in answers:
        return {"rmse": rmse}
    return {"rmse": rmse, "nll": float(-np.mean(answers["log_prob"]) - np.log(y.std()))}
