"""Speed of public calls in two versions of the library, measured in turns on one machine.

    python scripts/compare_speed.py path/to/old/src src --rounds 7 --output results/speed-0.3.md

Every round runs the cases in one process per version, in alternating order. The ratio of a case is that of
the smallest times over all rounds; its spread is the range of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cases = dict[str, Callable[[], Any]]


def fits() -> Cases:
    """The fits that README and the reference show."""
    import numpy as np
    import pandas as pd
    from sklearn.datasets import load_breast_cancer, load_iris

    import kdmkit as kdm

    rng = np.random.default_rng(0)
    X, y = load_iris(return_X_y=True)
    A, b = load_breast_cancer(return_X_y=True)
    x = rng.uniform(-2, 2, (300, 1))
    t = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=300)
    bags = np.arange(len(b)) // 8
    share = np.bincount(bags, b) / np.bincount(bags)
    z = rng.integers(0, 3, 600)
    df = pd.DataFrame(
        {
            "price": np.round(np.exp(rng.normal(6 + z, 0.3)), 2),
            "cut": np.array(["Fair", "Good", "Ideal"])[z],
            "carat": np.round(0.3 + 0.5 * z + 0.1 * rng.random(600), 2),
        }
    )
    few: dict[str, Any] = {"max_epochs": 10, "random_state": 0}
    return {
        "fit: classifier, iris": lambda: kdm.KDMClassifier(**few).fit(X, y),
        "fit: classifier, nonparametric": lambda: kdm.KDMClassifier("nonparametric", random_state=0).fit(
            A, b
        ),
        "fit: regressor": lambda: kdm.KDMRegressor(**few).fit(x, t),
        "fit: density": lambda: kdm.KDMDensity().fit(A[:, :6]),
        "fit: density, likelihood": lambda: kdm.KDMDensity("likelihood", **few).fit(A[:, :6]),
        "fit: proportions": lambda: kdm.KDMProportionClassifier(**few).fit(A, bags, np.c_[1 - share, share]),
        "fit: table": lambda: kdm.KDMTable(n_components=8, max_epochs=5, random_state=0).fit(df),
    }


def questions() -> Cases:
    """Answers of fitted models and of distributions."""
    import numpy as np
    import pandas as pd
    import torch
    from sklearn.datasets import load_breast_cancer

    import kdmkit as kdm

    rng = np.random.default_rng(0)
    A, b = load_breast_cancer(return_X_y=True)
    many = np.tile(A, (10, 1))
    classifier = kdm.KDMClassifier(max_epochs=3, random_state=0).fit(A, b)
    regressor = kdm.KDMRegressor(max_epochs=3, random_state=0).fit(A, A[:, 0])
    density = kdm.KDMDensity().fit(A[:, :6])
    z = rng.integers(0, 3, 600)
    df = pd.DataFrame(
        {
            "price": np.round(np.exp(rng.normal(6 + z, 0.3)), 2),
            "cut": np.array(["Fair", "Good", "Ideal"])[z],
            "carat": np.round(0.3 + 0.5 * z + 0.1 * rng.random(600), 2),
        }
    )
    table = kdm.KDMTable(n_components=8, max_epochs=3, random_state=0).fit(df)
    evidence = df.drop(columns="price")
    small = kdm.JointKDM(
        {"x": torch.randn(50, 4), "y": torch.eye(5).repeat(10, 1)},
        None,
        {"x": kdm.RBF(1.0), "y": kdm.Cosine()},
    )
    large = kdm.KDM(torch.randn(50_000, 8), None, kdm.RBF(0.5))
    x, labels, queries = torch.randn(16, 4), torch.arange(16) % 5, torch.randn(512, 8)
    layer = kdm.nn.JointLayer(64, 10, n_components=256)
    layer.initialize(torch.randn(1024, 64), torch.arange(1024) % 10)
    rows, targets = torch.randn(128, 64), torch.arange(128) % 10

    def step() -> None:
        layer.zero_grad()
        (-layer(rows).log_prob(targets).mean()).backward()

    def often(call: Callable[[], Any], times: int) -> Callable[[], None]:
        def repeated() -> None:
            for _ in range(times):
                call()

        return repeated

    return {
        "classifier: predict_proba, 5,690 rows": lambda: classifier.predict_proba(many),
        "classifier: score_samples, 5,690 rows": lambda: classifier.score_samples(many),
        "regressor: predict_interval, 5,690 rows": lambda: regressor.predict_interval(many),
        "density: score_samples, 5,690 rows": lambda: density.score_samples(many[:, :6]),
        "table: query": often(lambda: table.query("P(price | carat in [0.5, 1])").interval(0.9), 20),
        "table: predict, 600 rows": lambda: table.predict(evidence, "price"),
        "table: impute, 600 rows": lambda: table.impute(df.assign(price=None)),
        "table: sample, 2,000 rows": lambda: table.sample(2000, random_state=0),
        "infer and log_prob, small": often(lambda: small.infer(x=x).log_prob(labels), 200),
        "log_prob, 512 × 50,000 × 8": lambda: large.log_prob(queries),
        "training step of a layer, 128 × 256 × 64": often(step, 50),
    }


def cuda_cases() -> Cases:
    """Reductions and fits on a CUDA device."""
    import numpy as np
    import torch

    import kdmkit as kdm

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 20)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(size=20_000) > 1).astype(int)
    labels = torch.nn.functional.one_hot(torch.arange(1_000_000) % 10).float()
    memory = kdm.JointKDM(
        {"x": torch.randn(1_000_000, 16), "y": labels}, None, {"x": kdm.RBF(1.0), "y": kdm.Cosine()}
    ).to("cuda")
    density = kdm.KDM(torch.randn(100_000, 16), None, kdm.RBF(0.5)).to("cuda")
    queries, many = torch.randn(4096, 16, device="cuda"), torch.randn(100_000, 16, device="cuda")
    layer = kdm.nn.JointLayer(64, 10, n_components=4096).cuda()
    rows, targets = torch.randn(1024, 64, device="cuda"), torch.arange(1024, device="cuda") % 10
    layer.initialize(many[:8192].repeat(1, 4), torch.arange(8192, device="cuda") % 10)

    def synchronised(call: Callable[[], Any], times: int) -> Callable[[], None]:
        def repeated() -> None:
            for _ in range(times):
                call()
            torch.cuda.synchronize()

        return repeated

    def step() -> None:
        layer.zero_grad()
        (-layer(rows).log_prob(targets).mean()).backward()

    return {
        "probs, 4,096 × 1,000,000": synchronised(lambda: memory.infer(x=queries).probs, 10),
        "log_prob, 100,000 × 100,000": synchronised(lambda: density.log_prob(many), 3),
        "training step, 1,024 × 4,096 × 64": synchronised(step, 50),
        "fit: classifier, 20,000 × 20": lambda: kdm.KDMClassifier(max_epochs=5, random_state=0).fit(X, y),
        "fit: regressor, 20,000 × 20": lambda: kdm.KDMRegressor(max_epochs=5, random_state=0).fit(X, X[:, 0]),
    }


def import_times() -> dict[str, float]:
    """Seconds of the processor for `import kdmkit` in processes that have imported torch.

    Files are compiled beforehand, as pip does it.
    Objects of torch that wait for the garbage collector are collected before the clock starts, or, in the
    second case, by the first collection that falls into the import.
    """
    clock = "import torch, numpy, gc, time; {}; t = time.process_time(); import kdmkit; "
    cases = {
        "import, after torch (processor)": "gc.collect()",
        "the same with a collection of torch's objects": "pass",
    }
    with tempfile.TemporaryDirectory() as folder:
        # Where PYTHONDONTWRITEBYTECODE is set, every process would compile the sources again.
        settings = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}

        def seconds(before: str) -> float:
            code = clock.format(before) + "print(time.process_time() - t)"
            return float(subprocess.check_output([sys.executable, "-c", code], env=settings))

        seconds("pass")  # compiles the files
        return {name: min(seconds(before) for _ in range(5)) for name, before in cases.items()}


def measure(device: str, *, imports_only: bool) -> dict[str, float]:
    """Seconds of every case."""
    warnings.simplefilter("ignore")
    seconds = import_times()
    if imports_only:
        return seconds
    for cases in [cuda_cases()] if device == "cuda" else [fits(), questions()]:
        for name, call in cases.items():
            call()
            times = []
            for _ in range(3):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            seconds[name] = min(times)
    return seconds


def measured_with(source: str, options: list[str]) -> dict[str, float]:
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--measure", *options]
    output = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": path})
    return json.loads(output.splitlines()[-1])


def report(old: list[dict[str, float]], new: list[dict[str, float]], arguments: list[str]) -> str:
    import torch

    threads = os.environ.get("OMP_NUM_THREADS")
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    lines = [
        "# Speed of public calls, in turns",
        "",
        f"`python scripts/compare_speed.py {' '.join(arguments)}`",
        "",
        f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS={threads}, {gpu}{len(old)} rounds. Ratio: new/old of the smallest times.",
        "",
        "| call | old, s | new, s | ratio | rounds |",
        "|:--|--:|--:|--:|:--|",
    ]
    for name in old[0]:
        before, after = (min(run[name] for run in runs) for runs in (old, new))
        ratios = sorted(b[name] / a[name] for a, b in zip(old, new, strict=True))
        spread = f"{ratios[0]:.2f} … {ratios[-1]:.2f}"
        lines.append(f"| {name} | {before:.4f} | {after:.4f} | {after / before:.2f} | {spread} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--imports-only", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.device, imports_only=options.imports_only)))
        return
    cases = ["--device", options.device, *["--imports-only"] * options.imports_only]
    runs: dict[str, list[dict[str, float]]] = {options.old: [], options.new: []}
    for i in range(options.rounds):
        for source in sorted(runs, key=lambda source: (source == options.old) == bool(i % 2)):
            runs[source].append(measured_with(source, cases))
    arguments = ["<0.2.0>/src", "src", f"--rounds {options.rounds}", *cases]
    text = report(runs[options.old], runs[options.new], arguments)
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
