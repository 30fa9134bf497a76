"""Groups of rows in place of rows, and densities of them."""

import math

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.problems import moons
from kdmkit.estimators.common.chunks import KeptRows
from kdmkit.estimators.density.groups import GroupedRows, Groups, LeftOut, group_rows

UNIT = torch.tensor([1.0, 2.0], dtype=torch.float64)


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)) * [1, 2] + [5, 0], rng.integers(1, 4, n).astype(float)


def moments(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = w @ x / w.sum()
    return mean, w @ (x - mean).square() / w.sum()


def bandwidths(rho: kdm.KDM) -> torch.Tensor:
    assert isinstance(rho.kernel, kdm.kernels.RBF)
    return rho.kernel.sigma.expand_as(rho.components)


@pytest.mark.parametrize("n", [5, 300])
def test_groups_have_the_moments_of_their_rows(n: int) -> None:
    X, weights = rows(n)
    x, w = torch.from_numpy(X), torch.from_numpy(weights)
    groups, place = Groups.of_rows(X, weights).merged(n // 4, UNIT)
    assert len(groups) == n // 4
    assert (place.bincount(minlength=len(groups)) > 0).all()
    for j in range(len(groups)):
        members = place == j
        mean, variance = moments(x[members], w[members])
        torch.testing.assert_close(groups.mean[j], mean)
        torch.testing.assert_close(groups.std[j].square(), variance, atol=1e-9, rtol=1e-7)
        assert float(groups.weight[j]) == pytest.approx(float(w[members].sum()))


def test_near_rows_are_merged_first() -> None:
    X = np.array([[0.0, 0], [9, 0], [0.1, 0], [9, 5], [4, 4]])
    groups, place = Groups.of_rows(X, np.ones(5)).merged(4, torch.ones(2).double())
    assert place[0] == place[2]
    assert len(set(place.tolist())) == 4
    assert float(groups.std.max()) == pytest.approx(0.05)


def test_equal_rows_and_extreme_numbers_come_to_an_end() -> None:
    X = np.zeros((3000, 1))
    groups, _ = Groups.of_rows(X, np.ones(3000)).merged(1, torch.ones(1).double())
    assert groups.weight.tolist() == [3000]
    X = np.array([[-1e300], [1e300], [0.0], [1e200]])
    assert len(Groups.of_rows(X, np.ones(4)).merged(2, torch.ones(1).double())[0]) == 2


def test_groups_without_a_row() -> None:
    X, weights = rows(60)
    groups, place = Groups.of_rows(X, weights).merged(15, UNIT)
    chosen = torch.arange(20)
    x, w = torch.from_numpy(X), torch.from_numpy(weights)
    rest = groups.without(place[chosen], x[chosen], w[chosen])
    for i in chosen.tolist():
        others = (place == place[i]) & (torch.arange(60) != i)
        assert float(rest.weight[i]) == pytest.approx(float(w[others].sum()), abs=1e-9)
        if others.any():
            mean, variance = moments(x[others], w[others])
            torch.testing.assert_close(rest.mean[i], mean)
            torch.testing.assert_close(rest.std[i].square(), variance, atol=1e-9, rtol=1e-7)


def test_left_out_likelihood_is_that_of_the_other_rows() -> None:
    X, weights = rows(40)
    x, w = torch.from_numpy(X), torch.from_numpy(weights / weights.sum())
    groups, place = Groups.of_rows(X, weights / weights.sum()).merged(12, UNIT)
    result = LeftOut(groups, x[:6], w[:6], place[:6]).likelihood(torch.full((12, 2), 0.3).double())
    wanted = 0.0
    for i in range(6):
        others = torch.arange(40) != i
        parts = [others & (place == j) for j in range(12) if (others & (place == j)).any()]
        means, variances = zip(*(moments(x[members], w[members]) for members in parts), strict=True)
        shares = torch.stack([w[members].sum() for members in parts])
        sigma = (2 * (torch.stack(variances) + 0.3**2)).sqrt()
        rho = kdm.KDM(torch.stack(means), shares / shares.sum(), kdm.kernels.RBF(sigma))
        wanted += float(w[i] / w[:6].sum() * rho.log_prob(x[i]))
    assert result == pytest.approx(wanted)


def test_samples_know_their_groups() -> None:
    rng, kept, seen = np.random.default_rng(0), None, []
    for start in range(0, 90, 30):
        X = np.arange(start, start + 30.0)[:, None]
        new = KeptRows.of(X, None, None, rng)
        kept = group_rows(new if kept is None else kept.join(new), 40)
        seen.append(kept)
    assert isinstance(seen[0], KeptRows)
    assert isinstance(kept, GroupedRows)
    assert kept.n_seen == float(kept.groups.weight.sum()) == 90
    # Numbers in a row: groups are short runs of them.
    apart = np.abs(kept.groups.mean[kept.group].numpy() - kept.sample.X)
    assert (apart <= 1.75 * kept.groups.std[kept.group].numpy() + 1e-9).all()


@pytest.mark.parametrize("sigma", ["auto", "scott", 0.2])
def test_a_budget_costs_little(sigma: float | str) -> None:
    X, _ = moons(1600)
    X, held_out = X[:1200], X[1200:]
    whole = kdm.KDMDensity(sigma=sigma, random_state=0).fit(X).score(held_out)
    first = kdm.KDMDensity(sigma=sigma, random_state=0).fit(X[:120]).score(held_out)
    sample = kdm.KDMDensity(sigma=sigma, random_state=0).fit(X[:300]).score(held_out)
    model = kdm.KDMDensity(sigma=sigma, max_rows=300, random_state=0)
    for start in (0, 300, 600, 900):
        model.partial_fit(X[start : start + 300])
        assert model.kdm_.n_components <= 300
    result = model.score(held_out)
    assert result > first + 0.9 * (whole - first)
    assert result > sample
    assert model.n_samples_seen_ == 1200


def test_weights_of_groups_count() -> None:
    X, weights = rows(400)
    model = kdm.KDMDensity(max_rows=100, random_state=0)
    for chunk in (slice(0, 200), slice(200, 400)):
        model.partial_fit(X[chunk], sample_weight=weights[chunk])
    mean, variance = moments(torch.from_numpy(X), torch.from_numpy(weights))
    torch.testing.assert_close(model.kdm_.mean, mean)
    # The variance of the rows, and that of the kernels.
    assert (model.kdm_.variance > variance).all()
    assert math.isfinite(model.score(X))


@pytest.mark.parametrize("factor", [1000, 1e-6, 1e-12])
def test_only_ratios_of_weights_count(factor: float) -> None:
    X, weights = rows(400)
    result = []
    for unit in (1, factor):
        model = kdm.KDMDensity(max_rows=100, random_state=0)
        model.partial_fit(X, sample_weight=unit * weights)
        result.append(model.score_samples(X))
    np.testing.assert_allclose(result[1], result[0], rtol=1e-6)


def test_small_weights_leave_pairs_near() -> None:
    X = np.random.default_rng(0).normal(size=(400, 1))
    unit = torch.ones(1).double()
    whole, small = (Groups.of_rows(X, np.full(400, w)).merged(200, unit)[0] for w in (1.0, 1e-9))
    torch.testing.assert_close(small.mean, whole.mean)


@pytest.mark.parametrize("sigma", ["auto", "scott", 0.2])
@pytest.mark.parametrize("most", [1, 2])
def test_a_budget_of_one_row(sigma: float | str, most: int) -> None:
    X, _ = rows(60)
    model = kdm.KDMDensity(sigma=sigma, max_rows=most, random_state=0)
    for chunk in (X[:1], X[1:30], X[30:]):
        model.partial_fit(chunk)
    assert model.kdm_.n_components <= most
    assert math.isfinite(model.score(X))


def test_rows_that_are_all_equal() -> None:
    X = np.full((50, 2), 3.0)
    model = kdm.KDMDensity(max_rows=10).partial_fit(X)
    assert model.score(X) == pytest.approx(kdm.KDMDensity().fit(X).score(X))


@pytest.mark.parametrize("other", [0.0, 1e-20])
def test_next_to_nothing_is_left_without_a_group(other: float) -> None:
    x = torch.tensor([[0.0], [1.0]]).double()
    groups = Groups(x, torch.zeros_like(x), torch.tensor([1, other]).double())
    left_out = LeftOut(groups, x[:1], torch.ones(1).double(), torch.zeros(1, dtype=torch.long))
    assert -1000 <= left_out.likelihood(torch.ones(2, 1).double()) < 0


def test_equal_rows_become_one_group() -> None:
    X = np.array([[1.0, 2], [0, 0], [1, 2], [1, 3], [0, 0], [1, 2]])
    groups, place = Groups.of_rows(X, np.arange(1.0, 7)).merged(9, UNIT)
    assert sorted(groups.weight.tolist()) == [4, 7, 10]
    assert np.array_equal(groups.mean[place], X)


def test_nearly_equal_groups_are_left_out() -> None:
    mean = torch.tensor([[0.0], [1e-8], [1.0], [1e-8]]).double()
    std = torch.tensor([[0.0], [0], [0], [0.5]]).double()
    members, row = torch.zeros(1, dtype=torch.long), torch.zeros(1, 1).double()
    weight = torch.tensor([0.3, 0.3, 0.2, 0.2]).double()
    width = torch.full((4, 1), 0.1).double()
    result = LeftOut(Groups(mean, std, weight), row, weight[:1], members).likelihood(width)
    kernel = kdm.kernels.RBF((2 * (std[2:].square() + 0.01)).sqrt())
    rho = kdm.KDM(mean[2:], torch.full((2,), 0.5).double(), kernel)
    assert result == pytest.approx(float(rho.log_prob(row[0])))


@pytest.mark.parametrize("most", [1000, 400])
@pytest.mark.parametrize("others", ["lognormal", "normal"])
def test_repeated_rows_leave_the_bandwidth(others: str, most: int) -> None:
    rng = np.random.default_rng(0)
    X = np.where(rng.random((2000, 1)) < 0.6, 0.0, getattr(rng, others)(size=(2000, 1)))
    # Not the seed of the rows, whose random numbers would be those of the sample.
    model = kdm.KDMDensity(max_rows=most, random_state=1).partial_fit(X)
    whole = kdm.KDMDensity(random_state=0).fit(X)
    result, wanted = (bandwidths(m.kdm_) for m in (model, whole))
    assert 1 / 3 < float(result.median() / wanted.median()) < 3
    at_0 = [m.kdm_.components.abs().argmin() for m in (model, whole)]
    assert 1 / 3 < float(result[at_0[0]] / wanted[at_0[1]]) < 3


def test_the_sample_is_uniform_when_the_budget_is_raised() -> None:
    rng = np.random.default_rng(0)
    kept = group_rows(KeptRows.of(np.zeros((1000, 1)) + rng.random((1000, 1)), None, None, rng), 100)
    new = KeptRows.of(np.full((1000, 1), 5.0), None, None, rng)
    for most in (5000, None):
        result = group_rows(kept.join(new), most)
        assert isinstance(result, GroupedRows)
        assert len(result.sample) == len(result.group) <= 4096
        assert 0.4 < (result.sample.X == 5).mean() < 0.6
        assert float(result.groups.weight.sum()) == 2000
        assert (np.abs(result.groups.mean[result.group].numpy() - result.sample.X) < 0.05).all()
