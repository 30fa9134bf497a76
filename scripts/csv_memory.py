"""Memory of `KDMTable.fit` from CSV files of growing length: it holds a sample, not the file.

    python scripts/csv_memory.py --megabytes 60 600

Each file has numbers, a category, dates and a text. It is written to a temporary folder and fitted by a
process of its own with small settings. The result is results/csv-memory.md.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import kdmkit as kdm

ROOT = Path(__file__).resolve().parents[1]
#: Rows of the sample, and MB of files by default.
_ROWS, _MEGABYTES = 20_000, (60, 200, 600)

FIT = """
import resource, sys, time, warnings
import kdmkit as kdm
warnings.simplefilter("ignore")
kdm.KDMTable(n_components=4, max_epochs=1, random_state=0).fit({"x": [0.5, 1.5] * 30})  # imports
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = peak(), time.process_time()
table = kdm.KDMTable(n_components=4, max_epochs=1, max_rows=int(sys.argv[2]), random_state=0).fit(sys.argv[1])
print(table.n_samples_seen_, before, peak(), time.process_time() - start)
"""


def write_csv(path: Path, megabytes: int) -> None:
    """A file of about that size."""
    cities = ["Bonn", "Köln", "Paris", "Lyon"]
    lines = [
        f"{i * 37 % 9973},{i % 89 / 7:.4f},{cities[i % 4]},2020-{i % 12 + 1:02}-{i % 28 + 1:02},"
        f"note {i * 7919 % 99991}"
        for i in range(20_000)
    ]
    block = ("\n".join(lines) + "\n").encode()
    with path.open("wb") as file:
        file.write(b"amount,rate,city,day,note\n")
        for _ in range(max(1, megabytes * 1_000_000 // len(block))):
            file.write(block)


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=_MEGABYTES)
    parser.add_argument("--output", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    lines, peaks = [], []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.csv"
            write_csv(path, megabytes)
            size = path.stat().st_size / 1e6
            run = subprocess.run(
                [sys.executable, "-c", FIT, str(path), str(_ROWS)], capture_output=True, check=True, text=True
            )
        rows, before, peak, seconds = map(float, run.stdout.split())
        peaks.append(peak)
        lines.append(
            f"| {size:,.0f} MB | {rows:,.0f} | {before:,.0f} MB | {peak:,.0f} MB | {seconds:.1f} s |"
        )
        print(lines[-1], flush=True)
    command = f"python scripts/csv_memory.py --megabytes {' '.join(map(str, options.megabytes))}"
    text = [
        "# Memory of fits from CSV",
        f"`{command}`, kdmkit {kdm.__version__}, Python {platform.python_version()}, {platform.machine()}.",
        f"A table of 4 components learns for one epoch from {_ROWS:,} rows. Peaks are of the resident "
        "memory of the process (`getrusage`), seconds of the processor.",
        "\n".join(["| file | rows | before the fit | peak | seconds |", "|--:|--:|--:|--:|--:|", *lines]),
        f"From the first to the last file the peak changes by {peaks[-1] - peaks[0]:+.0f} MB.",
    ]
    (options.output / "csv-memory.md").write_text("\n\n".join(text) + "\n", "utf-8")


if __name__ == "__main__":
    main()
