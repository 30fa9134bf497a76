"""What single rows remember."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.problems import Array
from kdmkit.estimators import _memory
from kdmkit.estimators._memory import Memory, remember

pytestmark = pytest.mark.usefixtures("fast")


def families(n: int, seed: int) -> tuple[Array, Array]:
    """Rows in families of near-repetitions: a secret offset of the family that no smooth function knows."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(60, 5))
    offsets = np.random.default_rng(98).normal(size=60)
    family = rng.integers(60, size=n)
    return centres[family] + 0.01 * rng.normal(size=(n, 5)), offsets[family] + 0.1 * rng.normal(size=n)


def some(n: int = 40, d: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator), torch.randn(n, 1, generator=generator)


def test_the_memory_is_the_mean_of_a_joint_kdm_with_a_background() -> None:
    x, r = some()
    weights = torch.rand(40, generator=torch.Generator().manual_seed(1))
    memory, b = Memory(x, r, weights.log(), sigma=0.7, background=0.3), 0.3
    queries = torch.randn(9, 2, generator=torch.Generator().manual_seed(2))
    share = weights / weights.sum()
    joint = kdm.JointKDM({"x": x, "y": r}, share, {"x": kdm.RBF(0.7), "y": kdm.RBF(1.0)})
    overlap = weights.sum() * joint.marginal("x").projection(queries)
    wanted = joint.infer(x=queries).mean * (overlap / (overlap + b)).unsqueeze(-1)
    torch.testing.assert_close(memory(queries), wanted, rtol=1e-4, atol=1e-5)


def test_far_from_all_rows_nothing_is_remembered() -> None:
    x, r = some()
    far = Memory(x, r, torch.zeros(40), sigma=0.5)(torch.full((1, 2), 1e3))
    assert torch.equal(far, torch.zeros(1, 1))


def test_a_row_left_out_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    x, r = some()
    memory = Memory(x, r, torch.zeros(40), sigma=0.7, background=0.3)
    monkeypatch.setattr(_memory, "_PAIRS", 100)  # blocks of two rows
    left_out = memory(x, torch.arange(40))
    for row in range(0, 40, 9):
        others = torch.arange(40) != row
        without = Memory(x[others], r[others], torch.zeros(39), sigma=0.7, background=0.3)
        torch.testing.assert_close(left_out[row], without(x[row : row + 1])[0])
    torch.testing.assert_close(memory(x, torch.full((40,), -1)), memory(x))


def test_noise_is_not_remembered() -> None:
    x, r = some(300, 4)
    memory, left, known = remember(x, r, None, torch.Generator().manual_seed(0))
    assert memory is None
    assert torch.equal(left, r)
    assert not known.any()


def test_what_is_left_is_left_of_rows_left_out() -> None:
    X, y = families(400, 0)
    x, r = torch.from_numpy(X).float(), torch.from_numpy(y).float().unsqueeze(1)
    memory, left, known = remember(x, r, None, torch.Generator().manual_seed(0))
    assert memory is not None
    # Every row is remembered: at its own place more is remembered than when it is left out.
    assert (r - memory(x)).std() < left.std() < 0.3 * r.std()
    assert 0.5 < known.mean() < memory.known(x)[1].mean() < 1


def test_few_of_many_rows_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "_MOST_ROWS", 150)
    X, y = families(400, 0)
    x, r = torch.from_numpy(X).float(), torch.from_numpy(y).float().unsqueeze(1)
    memory, left, known = remember(x, r, None, torch.Generator().manual_seed(0))
    assert memory is not None
    assert len(memory.rows) == 150
    assert known.shape == (400, 1)
    assert left.std() < 0.7 * r.std()


def test_near_repetitions_are_worth_remembering(tmp_path: Any) -> None:
    X, y = families(300, 0)
    X_test, y_test = families(300, 1)
    quick: Any = {"max_epochs": 8, "n_members": 4, "random_state": 0}
    with_memory, without = (kdm.KDMRegressor(memory=m, **quick).fit(X, y) for m in (True, False))
    assert without.module_.trend.memory is None
    assert with_memory.score(X_test, y_test) > max(0.9, without.score(X_test, y_test) + 0.05)
    low, high = with_memory.predict_interval(X_test).T
    assert 0.8 < ((y_test >= low) & (y_test <= high)).mean() < 0.98
    kdm.save(with_memory, tmp_path / "model")
    np.testing.assert_array_equal(kdm.load(tmp_path / "model").predict(X_test), with_memory.predict(X_test))


def test_weights_are_repetitions() -> None:
    x, r = some(30)
    counts = torch.arange(30) % 3 + 1
    weighted = Memory(x, r, counts.float().log(), sigma=0.7, background=0.3)
    repeated = Memory(
        x.repeat_interleave(counts, 0),
        r.repeat_interleave(counts, 0),
        torch.zeros(int(counts.sum())),
        0.7,
        0.3,
    )
    torch.testing.assert_close(weighted(x), repeated(x))


def test_memory_is_a_switch() -> None:
    X, y = families(40, 0)
    with pytest.raises(ValueError, match="memory: expected True or False, got 'yes'"):
        kdm.KDMRegressor(memory="yes").fit(X, y)
    assert math.isfinite(kdm.KDMRegressor(memory=np.bool_(True), max_epochs=1).fit(X, y).score(X, y))
