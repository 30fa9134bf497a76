"""The residual memory of a regressor."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.problems import Array
from kdmkit.estimators.common.leave_one_out import answers_without_row, log_overlap_with_others, search_memory
from kdmkit.estimators.regression.residuals import fit_memory
from kdmkit.nn import ResidualMemory
from kdmkit.ops.blocks import block_order


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
    memory, b = ResidualMemory(x, r, weights.log(), sigma=0.7, background=0.3), 0.3
    queries = torch.randn(9, 2, generator=torch.Generator().manual_seed(2))
    share = weights / weights.sum()
    joint = kdm.JointKDM({"x": x, "y": r}, share, {"x": kdm.RBF(0.7), "y": kdm.RBF(1.0)})
    overlap = weights.sum() * joint.marginal("x").projection(queries)
    wanted = joint.infer(x=queries).mean * (overlap / (overlap + b)).unsqueeze(-1)
    torch.testing.assert_close(memory(queries)[0], wanted, rtol=1e-4, atol=1e-5)


def test_far_from_all_rows_nothing_is_remembered() -> None:
    x, r = some()
    far = ResidualMemory(x, r, torch.zeros(40), sigma=0.5)(torch.full((1, 2), 1e3))[0]
    assert torch.equal(far, torch.zeros(1, 1))


@pytest.mark.parametrize("rows", [torch.arange(40), torch.arange(0, 40, 9), torch.tensor([7])])
def test_a_row_left_out_is_not_there(rows: torch.Tensor) -> None:
    x, r = some()
    kernel, log_weights = kdm.RBF(0.7), torch.rand(40, generator=torch.Generator().manual_seed(1)).log()
    (_, means), (_, log_overlaps) = answers_without_row(ResidualMemory(x, r, log_weights), [3.0, 0.7], rows)
    alone = log_overlap_with_others(0.7, x, log_weights, rows)
    for place, row in enumerate(rows.tolist()):
        others = torch.arange(40) != row
        wanted = kdm.ops.attend(kernel.term(x[row : row + 1], x[others]), log_weights[others], r[others])
        torch.testing.assert_close(means[place], wanted[0][0])
        torch.testing.assert_close(log_overlaps[place], wanted[1][0])
        torch.testing.assert_close(alone[place], wanted[1][0])


def test_blocks_of_rows_left_out_change_nothing() -> None:
    X, y = families(400, 0)
    x, r = torch.from_numpy(X).float(), torch.from_numpy(y).float().unsqueeze(1)
    memory, left, coverage = fit_memory(x, r, None, torch.Generator().manual_seed(0))
    assert memory is not None
    others = torch.arange(400) != 5
    without = ResidualMemory(
        x[others], r[others], torch.zeros(399), float(memory.sigma), float(memory.background)
    )
    answer, share = without(x[5:6])
    torch.testing.assert_close(left[5], r[5] - answer[0])
    torch.testing.assert_close(coverage[5], share[0])
    again = fit_memory(x, r, None, torch.Generator().manual_seed(0), block=150)
    torch.testing.assert_close(again[1], left)


def test_rows_are_sorted_and_their_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdmkit.nn.trend.BLOCK", 32)
    X, y = families(400, 0)
    x, r = torch.from_numpy(X).float(), torch.from_numpy(y).float().unsqueeze(1)
    weights = torch.rand(400, generator=torch.Generator().manual_seed(1))

    def losses(rows: torch.Tensor, answers: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return (r[rows] - answers).double().square().mean(-1)

    generator = torch.Generator().manual_seed(0)
    memory, kept = search_memory(x, r, weights, generator, losses, most_rows=300)
    assert memory is not None
    assert len(kept.unique()) == len(memory.rows) == 300
    torch.testing.assert_close((memory.rows, memory.residuals), (x[kept], r[kept]))
    torch.testing.assert_close(memory.log_weights, (weights / weights.mean()).log()[kept])
    chosen = torch.randperm(400, generator=torch.Generator().manual_seed(0))[:300]
    assert torch.equal(kept, chosen[block_order(x[chosen], 32, parts=2)])


def test_noise_is_not_remembered() -> None:
    x, r = some(300, 4)
    memory, left, covered = fit_memory(x, r, None, torch.Generator().manual_seed(0))
    assert memory is None
    assert torch.equal(left, r)
    assert not covered.any()


def test_what_is_left_is_left_of_rows_left_out() -> None:
    X, y = families(400, 0)
    x, r = torch.from_numpy(X).float(), torch.from_numpy(y).float().unsqueeze(1)
    memory, left, covered = fit_memory(x, r, None, torch.Generator().manual_seed(0))
    assert memory is not None
    # Every row is remembered: at its own place more is remembered than when it is left out.
    assert (r - memory(x)[0]).std() < left.std() < 0.3 * r.std()
    assert 0.5 < covered.mean() < memory(x)[1].mean() < 1


def test_few_of_many_rows_are_remembered() -> None:
    X, y = families(400, 0)
    x, r = torch.from_numpy(X).float(), torch.from_numpy(y).float().unsqueeze(1)
    memory, left, covered = fit_memory(x, r, None, torch.Generator().manual_seed(0), most_rows=150)
    assert memory is not None
    assert len(memory.rows) == 150
    assert covered.shape == (400, 1)
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
    weighted = ResidualMemory(x, r, counts.float().log(), sigma=0.7, background=0.3)
    repeated = ResidualMemory(
        x.repeat_interleave(counts, 0),
        r.repeat_interleave(counts, 0),
        torch.zeros(int(counts.sum())),
        0.7,
        0.3,
    )
    torch.testing.assert_close(weighted(x)[0], repeated(x)[0])


def test_memory_is_a_switch() -> None:
    X, y = families(40, 0)
    with pytest.raises(ValueError, match="memory: expected True or False, got 'yes'"):
        kdm.KDMRegressor(memory="yes").fit(X, y)
    assert math.isfinite(kdm.KDMRegressor(memory=np.bool_(True), max_epochs=1).fit(X, y).score(X, y))


def test_predictive_distributions_are_first_class(tmp_path: Any) -> None:
    """Estimators with trend and memory keep their answers when they are saved, copied, pickled and cast."""
    X, y = families(300, 0)
    model = kdm.KDMRegressor(max_epochs=8, n_members=4, random_state=0).fit(X, np.column_stack([y, -y]))
    assert model.module_.trend.memory is not None
    rho = model.predict_dist(X[:9])
    assert rho.batch_shape == (9,)
    values = torch.from_numpy(np.column_stack([y, -y])[:9])
    kdm.save(rho, tmp_path / "rho")
    for other in (kdm.load(tmp_path / "rho"), copy.deepcopy(rho), pickle.loads(pickle.dumps(rho))):
        torch.testing.assert_close(other.log_prob(values), rho.log_prob(values))
        torch.testing.assert_close(other.coordinates(1).icdf(0.3), rho.coordinates(1).icdf(0.3))
    single = rho.to(torch.float32)
    torch.testing.assert_close(single.mean.double(), rho.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.predict(X[:9]), rho.mean, rtol=1e-6)
    np.testing.assert_allclose(
        model.predict_quantiles(X[:9], 0.3)[:, 1, 0], rho.coordinates(1).icdf(0.3)[:, 0], rtol=1e-6
    )
