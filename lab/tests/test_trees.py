"""Experiments with trees of joint KDMs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdmlab import binary, trees
from kdmlab.common import append_row, read_rows
from kdmlab.datasets import Dataset


def write_binary(folder: Path, n: int = 60) -> None:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 2, (n, 1))
    table = (state ^ (rng.random((n, 4)) < 0.1)).astype(np.uint8)
    np.savez(folder / "nltcs.npz", train=table[: n // 2], valid=table[n // 2 :], test=table)


def test_a_binary_table_is_measured(tmp_path: Path) -> None:
    write_binary(tmp_path)
    result = binary.measure(tmp_path / "nltcs.npz", 4, 0, "cpu", 6)
    assert -4 * np.log(2) - 1 < result["test_log_likelihood"] < 0
    assert result["columns"] == 4
    assert result["parameters"] == 4 + 3 * 16 + 4 * 4 * 2


def binary_line(dataset: str, states: int, seed: int, value: float) -> dict[str, Any]:
    measured = {"test_log_likelihood": value, "validation_log_likelihood": value, "seconds": 1.0}
    key = {"format": 1, "dataset": dataset, "states": states, "seed": seed, "settings": binary.SETTINGS}
    return {**key, **measured, "parameters": 7, "machine": {}, "versions": {}}


def test_the_report_of_binary_tables(tmp_path: Path) -> None:
    for seed in binary.SEEDS:
        append_row(tmp_path / "binary.jsonl", binary_line("nltcs", binary.STATES, seed, -5.99))
    append_row(tmp_path / "binary.jsonl", binary_line("nltcs", 64, 0, -6.0))
    append_row(tmp_path / "binary.jsonl", binary_line("nltcs", 512, 0, -6.2))
    text = binary.summarize(tmp_path).markdown()
    assert "| nltcs: test log-likelihood | ≥ -6 | -5.9900 | yes |" in text
    assert "| nltcs: 512 states less 64 | ≥ -0.1 | -0.2000 | no |" in text
    assert "| plants: test log-likelihood | ≥ -12.7 |  | not run |" in text
    assert "earlier version" not in text


def test_binary_tables_are_measured_again_with_new_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of other defaults do not count, neither as measured nor in a mean; others are not repeated."""
    measured: list[tuple[int, int]] = []

    def measure(path: Path, states: int, seed: int, device: str) -> dict[str, Any]:
        measured.append((states, seed))
        return {"test_log_likelihood": -5.9, "validation_log_likelihood": -5.9, "parameters": 7}

    monkeypatch.setattr(binary, "measure", measure)
    path = tmp_path / "binary.jsonl"
    old = {"settings": {"learning_rate": 7}, "seconds": 1.0, "machine": {}, "versions": {}}
    for name in ("nltcs", "plants"):
        append_row(path, {**binary_line(name, binary.STATES, 0, -9.0), **old})
    for _ in range(2):
        text = binary.run(tmp_path, tmp_path, datasets=["nltcs"], verbose=False).markdown()
    assert sorted(measured) == [(64, 0), (128, 0), (128, 1), (128, 2), (512, 0)]
    assert "| nltcs: test log-likelihood | ≥ -6 | -5.9000 | yes |" in text
    assert "| plants: test log-likelihood | ≥ -12.7 | -9.0000 | yes, of 1 run |" in text
    assert "defaults of an earlier version: plants." in text


def test_unknown_sets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dataset: expected some of nltcs"):
        binary.run(tmp_path, tmp_path, datasets=["mnist"])


def adult_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in UCI's columns, numbers as floats and categories as texts."""
    rng = np.random.default_rng(seed)
    high = rng.random(n) < 0.4
    numbers = {
        0: rng.integers(17, 80, n),
        2: rng.integers(10_000, 1_000_000, n),
        4: 10 + 3 * high,
        10: np.where(rng.random(n) < 0.2, rng.integers(1, 9000, n), 0),
        11: np.where(rng.random(n) < 0.2, rng.integers(1, 3000, n), 0),
        12: np.where(rng.random(n) < 0.5, 40, rng.integers(10, 60, n)),
    }
    texts = rng.choice(["Private", "?", "State-gov"], (n, 14))
    columns = [numbers[i].astype(float) if i in numbers else texts[:, i] for i in range(14)]
    return np.stack([column.astype(object) for column in columns], 1), high.astype(np.int64)


@pytest.mark.parametrize("model", [trees.TREE, trees.FLAT])
def test_adult_is_measured(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(*adult_rows(200, 0), *adult_rows(200, 1))
    monkeypatch.setattr(trees, "load", lambda name, folder, download: data)
    monkeypatch.setattr(trees, "_VALIDATION_ROWS", 50)
    result = trees.measure(tmp_path, model, 5, 0.1, 0, "cpu", 3)
    assert result["rows"] == {"train": 150, "validation": 50, "test": 200}
    assert np.isfinite(result["test_log_likelihood"])


def adult_result(value: float) -> dict[str, Any]:
    scores = {f"{part}_log_likelihood": value for part in ("test", "validation", "training")}
    return {**scores, "parameters": 7, "epochs": 3, "max_epochs": 9}


def test_adult_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed has all rates. Its validation rows choose the one that the other seeds have."""
    measured: list[tuple[str, int, float, int]] = []

    def measure(folder: Path, model: str, size: int, rate: float, seed: int, device: str) -> dict[str, Any]:
        measured.append((model, size, rate, seed))
        values = {256: -7.0 + rate, 512: -9.0 + rate, 2048: -7.4 - rate, 4096: -8.0 + rate}
        return adult_result(values[size])

    monkeypatch.setattr(trees, "measure", measure)
    path = tmp_path / "adult-tree.jsonl"
    old = {"model": "flat", "components": 512, "rate": 0.1, "seed": 0, "settings": {"steps": 7}}
    append_row(path, {"format": 1, **old, **adult_result(-1.0)})
    for _ in range(2):
        text = trees.run(tmp_path, tmp_path, verbose=False).markdown()
    assert len(measured) == len(set(measured)) == 4 * (len(trees.RATES) + 2)
    later = {(model, size, rate) for model, size, rate, seed in measured if seed}
    assert later == {
        ("tree", 256, 0.1),
        ("flat", 512, 0.1),
        ("flat", 2048, min(trees.RATES)),
        ("flat", 4096, 0.1),
    }
    assert "| tree less the best flat joint (2,048 components) | ≥ 0.5 | 0.530 | yes |" in text
    assert "| tree | 256 | 0.1 | 3 | -6.900 | -6.900 | -6.900 | 3 | 7 |" in text
    assert len(read_rows(path)) == 1 + len(measured)


def test_adult_fits_end_by_themselves() -> None:
    options = trees.fit_options(29_561, 20_000, seed=1)
    assert options.schedule == "constant"
    assert options.max_epochs * 116 >= 20_000
    assert options.patience == 18
    assert options.averaging == pytest.approx(400 / 20_000)
