"""The laboratory's measures of rules between columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kdmlab import rules
from kdmlab.known_rules import ALSO_TRUE, TABLES, KnownTable


def parts(n: int = 300) -> pd.DataFrame:
    """A sum, a rate without a value in some rows, an order, a function."""
    rng = np.random.default_rng(0)
    tries = rng.integers(0, 30, n)
    hits = rng.binomial(tries, 0.3)
    low = rng.normal(5, 3, n).round(1)
    return pd.DataFrame(
        {
            "left": rng.poisson(40, n),
            "right": rng.poisson(30, n),
            "tries": tries,
            "hits": hits,
            "rate": np.round(hits / np.maximum(tries, 1), 3),
            "low": low,
            "high": (low + rng.gamma(2, 1, n)).round(1),
            "shop": [f"s{k % 12}" for k in range(n)],
            "city": [f"c{k % 4}" for k in range(n)],
        }
    ).assign(both=lambda f: f.left + f.right)


LISTED = ("both = left + right", "shop -> city", "low <= high", "left <= both", "rate = hits / tries")


def test_what_follows_from_rules() -> None:
    frame = parts()
    listed = {str(rule): rule for rule in rules._fit(frame, rules=list(LISTED), **rules._TINY).rules_}
    assert listed.keys() == set(LISTED)
    every = [rule for text, rule in listed.items() if text != "left <= both"]
    assert all(rules.Closure(every, frame).implies(rule) for rule in listed.values())
    for text, rule in listed.items():
        others = [other for other in listed.values() if other is not rule]
        assert rules.Closure(others, frame).implies(rule) is (text == "left <= both")


def test_run_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = parts()
    table = KnownTable("parts", lambda folder: frame, (*LISTED, "hits <= tries"), "test")
    monkeypatch.setattr(rules, "TABLES", (table,))
    monkeypatch.setattr(rules, "_TABLES", {"parts": table})
    monkeypatch.setattr(rules, "_DRAWS", 500)
    monkeypatch.setattr(rules, "_SMALL", rules._TINY)
    options: Any = {"part": "test", "measures": ("search", "draws"), "verbose": False}
    report = rules.run(tmp_path, tmp_path, **options)
    (row,) = report.rows
    assert row[:7] == ["parts", "300", "6", "6", "0", "0", "0 of 500"]
    text = (tmp_path / "rules-test.md").read_text()
    assert "| share of a person's rules that is found | ≥ 0.95 | 1 | yes |" in text
    assert "`both = left + right` (300 rows)" in text
    lines = (tmp_path / "rules-test.jsonl").read_text()
    assert rules.run(tmp_path, tmp_path, **options).rows == report.rows
    assert (tmp_path / "rules-test.jsonl").read_text() == lines


def test_c2st() -> None:
    frame = parts(600)
    assert rules.c2st(frame[:300], frame[300:]) > 0.8
    shifted = frame[300:].assign(both=lambda f: f.both + 100)
    assert rules.c2st(frame[:300], shifted) < 0.1


def test_lists_of_tables() -> None:
    names = [table.name for table in TABLES]
    assert len(names) == len(set(names))
    assert set(ALSO_TRUE) <= set(names)
    sizes = {part: sum(table.part == part for table in TABLES) for part in ("development", "test")}
    assert sizes == {"development": 7, "test": 8}
    assert sum(table.part == "confirmation" for table in TABLES) >= 8
