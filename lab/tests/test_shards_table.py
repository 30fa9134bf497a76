"""The table of shards is what the script makes of the lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shards_table.py"


@pytest.fixture(scope="module")
def script() -> Any:
    if not SCRIPT.exists():
        pytest.skip("benchmarks are not part of this copy")
    found = importlib.util.spec_from_file_location("shards_table", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def line(components: int, n: int, seconds: float) -> dict[str, Any]:
    sizes = {"components": components, "n": n, "d": 64, "classes": 16}
    measured = {"median": seconds, "extra_bytes": 3e7, "held_bytes": 324 * components}
    return {"part": "shard", "question": "probs", **sizes, **measured}


def test_rows_by_hand(script: Any) -> None:
    """Four shards, 1,000 queries: messages of 72 kB are sent 2 · 3/4 times, in 2 · 6 steps of 10 µs."""
    rows = script.rows([line(100, 1000, 0.4), line(25, 1000, 0.1)])
    assert rows[0][:1] + rows[0][4:] == ["1", "1,000", "400.0", "0.00", "0.00", "400.0"]
    sent = 2 * 3 / 4 * 4 * 1000 * 18
    taken = 1e3 * (sent / 12.5e9 + 12e-5)
    assert rows[1][:2] == ["4", "25"]
    assert rows[1][5:] == ["100.0", f"{taken:.2f}", f"{sent / 1e6:.2f}", f"{100 + taken:.1f}"]


def test_the_file_has_the_table_of_the_lines(script: Any) -> None:
    made = script.report(script.read_lines())
    assert script.TABLE.read_text(encoding="utf-8") == made.markdown()
    assert {row[0] for row in made.rows} >= {"1", "8", "64"}
