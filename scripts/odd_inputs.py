"""Odd frames and files: a table works with each, or a clear error refuses it, quickly and with little memory.

    python scripts/odd_inputs.py --frames 500 --files 200

Every case is fitted, drawn from, saved and loaded. Memory is the peak of the process beyond what it had
before the case, less the size of the data. The results are in results/odd-inputs.md and
results/odd-inputs.jsonl, which has a line for every case; a run that was stopped continues.
"""

from __future__ import annotations

import argparse
import collections
import json
import pickle
import platform
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from _paths import ROOT

import kdmkit as kdm
from estimators.table.odd_data import large_files, odd_file, odd_frame

#: Seeds of the tests are smaller.
_FIRST_SEED = 1000
#: Targets: seconds of the processor until a refusal, and MB beyond the data.
_SECONDS, _MEGABYTES = 2.0, 200.0


def memory(what: str) -> float:
    """The present ("VmRSS") or the largest ("VmHWM") memory of this process in MB."""
    text = Path("/proc/self/status").read_text("utf-8")
    return int(re.search(rf"{what}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def measure(make: Callable[[], Any], folder: Path) -> dict[str, Any]:
    """What happens to a frame or a file, in how much time and memory."""
    data = make()
    size = data.stat().st_size if isinstance(data, Path) else len(pickle.dumps(data))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, start = memory("VmRSS"), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = kdm.KDMTable(n_components=2, max_epochs=1, max_rows=20_000, random_state=0).fit(data)
            table.sample(5, random_state=0)
            kdm.save(table, folder / "model")
            kdm.load(folder / "model").sample(2, random_state=0)
        outcome = "works"
    except (ValueError, TypeError) as error:
        outcome = f"{type(error).__name__}: {error}"
    except Exception as error:  # whatever it is: it is what the campaign looks for
        outcome = f"unclear {type(error).__name__}: {error}"
    seconds = time.process_time() - start
    extra = memory("VmHWM") - before - size / 1e6
    is_clear = outcome == "works" or ("expected" in outcome and not outcome.startswith("unclear"))
    numbers = {"seconds": round(seconds, 3), "mb": round(extra, 1)}
    outcome = outcome.replace(str(folder), "FOLDER")
    return {"outcome": outcome[:300], "is_clear": is_clear, **numbers}


def cases(n_frames: int, n_files: int, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of cases, and how they are made."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + n_frames)
    yield from ((f"frame {seed}", lambda seed=seed: odd_frame(seed)) for seed in seeds)
    seeds = range(_FIRST_SEED, _FIRST_SEED + n_files)
    yield from ((f"file {seed}", lambda seed=seed: odd_file(seed, folder)) for seed in seeds)
    for name, path in large_files(folder):
        yield f"large: {name}", lambda path=path: path


def misses(row: dict[str, Any]) -> bool:
    """Whether a case misses a target."""
    is_slow = row["outcome"] != "works" and row["seconds"] > _SECONDS
    return not row["is_clear"] or is_slow or row["mb"] > _MEGABYTES


def report(rows: list[dict[str, Any]], command: str) -> str:
    """A table of the three kinds of cases, and all that miss a target."""
    counts, large = [], []
    for kind in ("frame", "file", "large"):
        some = [row for row in rows if row["case"].startswith(kind)]
        refused = [row for row in some if row["outcome"] != "works"]
        clear = sum(row["is_clear"] for row in refused)
        seconds = max((row["seconds"] for row in refused), default=0.0)
        most = max((row["mb"] for row in some), default=0.0)
        numbers = (kind, len(some), len(some) - len(refused), clear, len(refused) - clear)
        counts.append(" | ".join(map(str, numbers)) + f" | {seconds:.2f} s | {most:.0f} MB")
        if kind == "large":
            large = [f"{r['case'][7:]} | {_short(r)} | {r['seconds']:.2f} s | {r['mb']:.0f} MB" for r in some]
    missed = [row for row in rows if misses(row)]
    errors = [re.sub(r"\d+|'[^']*'", "…", _short(row)) for row in rows if row["outcome"] != "works"]
    machine = f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} thread(s)"
    targets = f"no unclear error, refused in {_SECONDS:g} s, {_MEGABYTES:g} MB"
    parts = [
        "# Odd frames and files",
        f"`{command}`, kdmkit {kdm.__version__}, Python {platform.python_version()}, {machine}.",
        "A case works, or a ValueError or TypeError says what was expected. Seconds are of the processor; "
        "memory is the peak beyond that before the case, less the size of the data.",
        _table("cases | number | work | clear errors | unclear | slowest refusal | most memory", counts),
        f"Targets: {targets}. Cases that miss one: {len(missed)}.",
        "\n".join(f"- {r['case']}: {r['seconds']:.2f} s, {r['mb']:.0f} MB, `{_short(r)}`" for r in missed),
        "## Large files",
        _table("file | outcome | seconds | memory", large),
        "## The most frequent errors",
        "\n".join(f"- {n} × `{text}`" for text, n in collections.Counter(errors).most_common(12)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _short(row: dict[str, Any]) -> str:
    return str(row["outcome"][:110].replace("|", "/").replace("\n", " "))


def _table(header: str, lines: list[str]) -> str:
    columns = header.count("|") + 1
    return "\n".join(f"| {line} |" for line in (header, " | ".join([":--"] * columns), *lines))


def main() -> None:
    """Measures the cases that have no line yet, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--output", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    path = options.output / "odd-inputs.jsonl"
    done = {}
    if path.exists():
        done = {row["case"]: row for row in map(json.loads, path.read_text("utf-8").splitlines())}
    with tempfile.TemporaryDirectory() as name, path.open("a", encoding="utf-8") as file:
        measure(
            lambda: {"x": [0.5, 1.5] * 30, "y": ["a", "b"] * 30}, Path(name)
        )  # what the first fit imports
        for case, make in cases(options.frames, options.files, Path(name)):
            if case not in done:
                done[case] = {"case": case, **measure(make, Path(name))}
                file.write(json.dumps(done[case]) + "\n")
                file.flush()
    command = f"python scripts/odd_inputs.py --frames {options.frames} --files {options.files}"
    (options.output / "odd-inputs.md").write_text(report(list(done.values()), command), "utf-8")


if __name__ == "__main__":
    main()
