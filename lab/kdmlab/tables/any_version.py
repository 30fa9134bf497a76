"""A program for any version of kdmkit since 0.2.0: fits a table to rows and prints log p of other rows.

It reads JSON from standard input and imports nothing of the laboratory, which needs the present version.
"""

import json
import sys
import time
import warnings

import numpy as np

import kdmkit


def main() -> None:
    """Reads and writes JSON."""
    task = json.load(sys.stdin)
    train, test = (
        {name: np.array(cells, dtype=task["dtypes"][name]) for name, cells in task[part].items()}
        for part in ("train", "test")
    )
    types = {name: "category" for name, cells in train.items() if cells.dtype == object}
    start, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = kdmkit.KDMTable(types=types, verbose=False, device="cpu", **task["settings"]).fit(train)
        seconds = time.perf_counter() - start, time.process_time() - processor
        log_prob = float(np.mean(table.score_samples(test)))
    answer = {"version": kdmkit.__version__, "test_log_prob": log_prob}
    print(json.dumps(answer | dict(zip(("fit_seconds", "fit_processor_seconds"), seconds, strict=True))))


if __name__ == "__main__":
    main()
