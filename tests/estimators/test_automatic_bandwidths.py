"""The density's automatic bandwidths: rounded columns, heavy tails, units, weights, many rows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_wine
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold

import kdmkit as kdm
from kdmkit.estimators.density import adaptive
from kdmkit.estimators.density.adaptive import rounding_step

# Minutes between eruptions of the Old Faithful geyser, and how often each was observed (R, `faithful`).
_MINUTES = [43, *range(45, 61), *range(62, 95), 96]
_COUNTS = (
    *(1, 3, 5, 4, 3, 5, 5, 6, 5, 7, 9, 6, 4, 3, 4, 7, 6, 4, 3, 4, 3, 2, 1, 1, 2, 4, 5, 1, 7, 6, 8, 9, 12, 15),
    *(10, 8, 13, 12, 14, 10, 6, 6, 2, 6, 3, 6, 1, 1, 2, 1, 1),
)
WAITING = np.repeat(np.array(_MINUTES, float), _COUNTS)[:, None]


def test_rounded_waiting_times_make_no_spikes() -> None:
    """Minutes 1 apart: standard deviations of about 2 to 4 are right, .2 makes a spike of every minute."""
    assert len(WAITING) == 272
    std = kdm.KDMDensity().fit(WAITING).kdm_.kernel.std
    assert 1.9 <= float(std.min()) <= float(std.max()) <= 4
    scores = []
    for train, test in KFold(5, shuffle=True, random_state=0).split(WAITING):
        peer = GaussianMixture(2, random_state=0).fit(WAITING[train])
        scores.append([model.score(WAITING[test]) for model in (kdm.KDMDensity().fit(WAITING[train]), peer)])
    ours, mixture = np.mean(scores, 0)
    assert ours > mixture - 0.05


def test_a_rounded_column_beside_a_continuous_one_keeps_half_its_step() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 6, 600).astype(float), rng.normal(size=600)], 1)
    X[:, 1] += 10 * X[:, 0]  # what is narrow along a line would make the steps spikes
    std = kdm.KDMDensity().fit(X).kdm_.kernel.std
    assert float(std[..., 0].min()) >= 0.5 - 1e-9


def test_steps_of_columns() -> None:
    rng = np.random.default_rng(0)
    share = torch.full((500,), 1 / 500, dtype=torch.float64)
    column = torch.from_numpy(rng.normal(size=500))
    assert float(rounding_step(column, share)) == 0
    assert float(rounding_step((4 * column).round() / 4, share)) == pytest.approx(0.25)
    assert float(rounding_step(torch.ones(500), share)) == 0


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_class_that_was_left_out_is_novel(left_out: int) -> None:
    X, y = load_wine(return_X_y=True)
    familiar, novel = X[y != left_out], X[y == left_out]
    density = kdm.KDMDensity().fit(familiar[::2])
    scores = np.r_[density.score_samples(familiar[1::2]), density.score_samples(novel)]
    truth = np.r_[np.zeros(len(familiar[1::2])), np.ones(len(novel))]
    assert roc_auc_score(truth, -scores) > 0.9


def test_heavy_tails_get_wide_components() -> None:
    rng = np.random.default_rng(0)
    X, held_out = (stats.t(1.5).rvs((400, 1), random_state=rng) for _ in range(2))
    truth = float(stats.t(1.5).logpdf(held_out).mean())
    automatic, single = (kdm.KDMDensity(sigma=sigma).fit(X).score(held_out) for sigma in ("auto", "loo"))
    assert automatic > truth - 0.1
    assert automatic > single + 0.1


def test_units_of_columns_do_not_matter() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3)) ** 3
    scale, shift = np.array([1e5, 1.0, 1e-4]), np.array([1e6, 0.0, -3.0])
    plain = kdm.KDMDensity().fit(X).score_samples(X)
    moved = kdm.KDMDensity().fit(scale * X + shift).score_samples(scale * X + shift)
    np.testing.assert_allclose(moved + np.log(scale).sum(), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("power", [1, 5])
def test_the_density_integrates_to_one(power: int) -> None:
    X = np.random.default_rng(0).normal(size=(60, 1)) ** power
    rho = kdm.KDMDensity().fit(X).kdm_
    # Quantiles are close to each other where the density is high.
    grid = rho.icdf(torch.linspace(1e-5, 1 - 1e-5, 4001, dtype=torch.float64)).flatten()
    mass = torch.trapezoid(rho.log_prob(grid.unsqueeze(1)).exp(), grid)
    assert float(mass) == pytest.approx(1 - 2e-5, abs=1e-3)


def test_repetitions_weights_and_order_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2)).round(1)
    weights = rng.integers(1, 4, 80)
    points = rng.normal(size=(20, 2))
    scores = [
        kdm.KDMDensity().fit(X, sample_weight=1000.0 * weights).score_samples(points),
        kdm.KDMDensity().fit(np.repeat(X, weights, 0)).score_samples(points),
        kdm.KDMDensity().fit(X, sample_weight=weights).score_samples(points),
    ]
    np.testing.assert_allclose(scores[0], scores[2], rtol=1e-9)
    np.testing.assert_allclose(scores[1], scores[2], rtol=1e-9)


def test_many_rows_are_judged_by_a_part_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    X, held_out = rng.normal(size=(2000, 2)), rng.normal(size=(2000, 2))
    whole = kdm.KDMDensity().fit(X).score(held_out)
    x, w = torch.from_numpy(X), torch.ones(2000).double()
    part = adaptive.automatic_density(x, w, sizes=(90, 400, 200), verbose=True)
    with torch.no_grad():
        score = float(part().log_prob(torch.from_numpy(held_out)).mean())
    assert score == pytest.approx(whole, abs=0.03)
    assert "leave-one-out" in capsys.readouterr().err


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_a_few_rows_are_enough(n: int) -> None:
    X = np.random.default_rng(0).normal(size=(n, 6))
    model = kdm.KDMDensity().fit(X)
    assert np.isfinite(model.score_samples(10 * X)).all()
    assert np.isfinite(kdm.KDMDensity().fit(np.ones((n, 2))).score_samples([[1.0, 2.0]])).all()


def test_one_outlier_does_not_decide() -> None:
    rng = np.random.default_rng(0)
    X, held_out = rng.normal(size=(300, 2)), rng.normal(size=(300, 2))
    X[0, 0] = 1e8
    assert kdm.KDMDensity().fit(X).score(held_out) > -math.log(2 * math.pi) - 1.3


def test_bandwidths_of_many_components_are_saved_as_tensors(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_cauchy(size=(2500, 2))
    model = kdm.KDMDensity().fit(X)
    assert model.kdm_.kernel.per_component
    kdm.save(model, tmp_path / "model")
    np.testing.assert_array_equal(kdm.load(tmp_path / "model").score_samples(X), model.score_samples(X))
    kdm.save(model.kdm_, tmp_path / "kdm")
    loaded, x = kdm.load(tmp_path / "kdm"), torch.from_numpy(X)
    torch.testing.assert_close(loaded.log_prob(x), model.kdm_.log_prob(x))


@pytest.mark.slow
def test_a_million_rows_are_fitted() -> None:
    X = np.random.default_rng(0).normal(size=(1_000_000, 10))
    assert kdm.KDMDensity().fit(X).n_samples_seen_ == len(X)


def test_components_as_many_as_rows_do_not_overfit() -> None:
    rng = np.random.default_rng(0)
    X, held_out = rng.normal(size=(60, 8)), rng.normal(size=(500, 8))
    fewer = kdm.KDMDensity(method="likelihood", n_components=1, random_state=0).fit(X).score(held_out)
    for m in (15, 60):
        model = kdm.KDMDensity(method="likelihood", n_components=m, random_state=0).fit(X)
        assert model.score(held_out) > fewer - 1.5
        assert model.score(X) < model.score(held_out) + 4


def _two_values(noise: float) -> np.ndarray:
    return np.repeat([0.0, 1.0], 20)[:, None] + noise * np.random.default_rng(0).normal(size=(40, 1))


def _summed_directly(model: kdm.KDMDensity, X: np.ndarray) -> np.ndarray:
    rho = model.kdm_
    c, std = np.asarray(rho.components), np.asarray(rho.kernel.std)
    terms = stats.norm.logpdf(X[:, None], c, np.broadcast_to(std, c.shape)).sum(-1)
    return np.asarray(np.logaddexp.reduce(terms + np.asarray(rho.log_weights), 1))


@pytest.mark.parametrize("noise", [1e-5, 1e-7, 1e-8, 1e-9, 1e-10, 1e-13])
def test_two_values_with_little_noise_end(noise: float) -> None:
    X = _two_values(noise)
    model = kdm.KDMDensity().fit(X)
    np.testing.assert_allclose(model.score_samples(X), _summed_directly(model, X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sigma", ["auto", "loo", "scott"])
@pytest.mark.parametrize("value", [1e160, 1e200])
def test_one_huge_value_has_an_answer(sigma: str, value: float) -> None:
    X = np.random.default_rng(0).normal(size=(100, 2))
    X[3, 0] = value
    assert np.isfinite(kdm.KDMDensity(sigma=sigma).fit(X).score_samples(X)).all()


def test_huge_columns_have_an_answer() -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    plain, huge = (kdm.KDMDensity().fit(scale * X).score(scale * X) for scale in (1.0, 1e200))
    assert huge == pytest.approx(plain - 2 * math.log(1e200))


def test_answers_that_are_not_numbers_do_not_blame_an_encoder_that_is_not_there() -> None:
    model = kdm.KDMDensity().fit(np.random.default_rng(0).normal(size=(50, 2)))
    with pytest.raises(ValueError, match="X: expected rows for which distances to components are finite"):
        model._rowwise(lambda rows: rows[:, 0] * math.nan, torch.ones(3, 2))


@pytest.mark.parametrize("noise", [1e-9, 1e-4])
def test_groups_of_nearly_equal_rows_have_the_density_of_their_components(noise: float) -> None:
    places, noises = (np.random.default_rng(1).normal(size=(n, 1)) for n in (6, 60))
    X = np.repeat(places, 10, 0) + noise * noises
    model = kdm.KDMDensity().fit(X)
    np.testing.assert_allclose(model.score_samples(X), _summed_directly(model, X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("d", [2, 6])
def test_rows_that_occur_twice_nearly_equal_count_as_repetitions(d: int) -> None:
    rng = np.random.default_rng(0)
    X, held_out = rng.normal(size=(200, d)), rng.normal(size=(500, d))
    twice = np.concatenate([X, X.astype(np.float32).astype(float)])
    assert kdm.KDMDensity().fit(twice).score(held_out) == pytest.approx(
        kdm.KDMDensity().fit(X).score(held_out), abs=0.2
    )


def test_the_climb_stays_within_its_bounds() -> None:
    for slope in (-1.0, 1.0, math.nan):
        asked: list[float] = []

        def value(place: float, slope: float = slope, asked: list[float] = asked) -> float:
            asked.append(place)
            return slope * place

        adaptive.climb(value, -0.3)
        assert adaptive._NARROWEST <= min(asked) <= max(asked) <= adaptive._WIDEST
