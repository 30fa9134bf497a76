"""Files of strangers: each ends in one clear error, with little memory and time."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serialize import hostile

#: Loads every path of a list in a fresh process, where annotations are not checked: as users do.
LOADER = """
import json, resource, sys
import kdmkit as kdm

good, paths = json.load(sys.stdin)
for path in good:
    kdm.load(path)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
calls = 0

def profile(*_):
    global calls
    calls += 1

for path in paths:
    calls = 0
    sys.setprofile(profile)
    try:
        kdm.load(path)
        kind, text = "none", ""
    except Exception as error:
        kind, text = "ValueError" if isinstance(error, ValueError) else type(error).__name__, str(error)
    finally:
        sys.setprofile(None)
    print(json.dumps({"kind": kind, "text": text, "calls": calls}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


#: The most functions that may start and end until a file is refused.
CALLS = 4_000_000


def load_all(cases: list[hostile.Case], folder: Path) -> tuple[dict[str, dict[str, Any]], float]:
    """What loading each case gave, and by how many MB the process grew."""
    paths = [folder / f"{i}.safetensors" for i in range(len(cases))]
    for (_, write), path in zip(cases, paths, strict=True):
        write(path)
    good = [str(folder.parent / "scratch" / name) for name in (*hostile.NAMES, "mixed")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADER],
        input=json.dumps([good, [str(path) for path in paths]]),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    *lines, grown = done.stdout.splitlines()
    names = [name for name, _ in cases]
    return dict(zip(names, map(json.loads, lines), strict=True)), float(grown)


def check(cases: list[hostile.Case], folder: Path) -> None:
    folder.mkdir()
    results, grown = load_all(cases, folder)
    unclear = {n: r for n, r in results.items() if r["kind"] != "ValueError" or not is_clear(r["text"])}
    assert not unclear
    slow = {name: result["calls"] for name, result in results.items() if result["calls"] > CALLS}
    assert not slow
    assert grown < 200


def is_clear(text: str) -> bool:
    """Says where, what was expected and what came, at a length that a person reads."""
    return ": expected " in text and ", got " in text and len(text) < 1000


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[hostile.Case], Path]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "scratch").mkdir()
    return hostile.cases(folder / "scratch"), folder


@pytest.mark.usefixtures("unchecked")
def test_a_sample_of_hostile_files(all_cases: tuple[list[hostile.Case], Path]) -> None:
    cases, folder = all_cases
    assert len(cases) >= 300
    assert len({name for name, _ in cases}) == len(cases)
    # Sorted, because the tensors of a file come in any order.
    sample = random.Random(0).sample(sorted(cases, key=lambda case: case[0]), 60)
    check(sample, folder / "sample")


@pytest.mark.slow
def test_all_hostile_files(all_cases: tuple[list[hostile.Case], Path]) -> None:
    cases, folder = all_cases
    check(cases, folder / "all")
