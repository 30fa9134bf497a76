"""A program for kdmkit 0.2.0: fits estimators to arrays of files and writes their answers to other files.

It imports nothing of the laboratory, which needs the present version. Every line of standard input is a
task in JSON.
"""

import json
import sys
import time
import warnings

import numpy as np
import torch

import kdmkit

ESTIMATORS = {"classifier": kdmkit.KDMClassifier, "regressor": kdmkit.KDMRegressor}


def main() -> None:
    """Prints the version and the processor seconds of every fit."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for estimator in ESTIMATORS.values():
        # The first fit of a process loads libraries.
        estimator(max_epochs=1, device="cpu").fit(np.eye(20)[:, :2], np.arange(20) % 2)
    for line in sys.stdin:
        print(json.dumps({"version": kdmkit.__version__, **answer(**json.loads(line))}), flush=True)


def answer(kind: str, source: str, target: str, seed: int) -> dict[str, float]:
    """Fits, writes the answers for test rows, and returns the processor seconds of the fit."""
    arrays = np.load(source)
    model = ESTIMATORS[kind](random_state=seed, device="cpu")
    start = time.process_time()
    model.fit(arrays["X"], arrays["y"])
    seconds = time.process_time() - start
    if kind == "classifier":
        np.savez(target, probs=model.predict_proba(arrays["X_test"]))
    else:
        y = torch.from_numpy(arrays["y_test"])[:, None]
        log_prob = model.predict_dist(arrays["X_test"]).log_prob(y)
        np.savez(target, mean=model.predict(arrays["X_test"]), log_prob=log_prob.numpy())
    return {"fit": seconds}


if __name__ == "__main__":
    main()
