"""A program for kdmkit 0.2.0: fits a table to columns from standard input and prints them, filled in.

It imports nothing of the laboratory, which needs the present version.
"""

import json
import sys
import warnings

import numpy as np

import kdmkit


def main() -> None:
    """Reads and writes JSON."""
    task = json.load(sys.stdin)
    columns = {
        name: np.array(cells, dtype=object if any(isinstance(c, str) for c in cells) else np.float64)
        for name, cells in task["columns"].items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = kdmkit.KDMTable(random_state=task["seed"]).fit(columns)
        filled = table.impute(columns)
    answer = {name: np.asarray(filled[name]).tolist() for name in table.schema_.modelled}
    print(json.dumps({"version": kdmkit.__version__, "columns": answer}))


if __name__ == "__main__":
    main()
