"""The bags of a trial."""

import numpy as np
import pytest
from scipy import stats

from kdmlab.proportions.bags import draw_bags

Y = np.random.default_rng(0).permutation(np.repeat([0, 1], 20_000))


def drawn(size: int = 8, total: int = 8192, interval: tuple[float, float] = (0, 0.5), seed: int = 0):  # type: ignore[no-untyped-def]
    return draw_bags(Y, total=total, size=size, interval=interval, rng=np.random.default_rng(seed))


def test_shapes_and_shares() -> None:
    bags = drawn(32)
    assert bags.rows.shape == (256, 32)
    np.testing.assert_array_equal(Y[bags.rows].mean(1), bags.share)


def test_bags_are_disjoint() -> None:
    rows = drawn(128).rows
    assert len(np.unique(rows)) == rows.size == 8192


@pytest.mark.parametrize("interval", [(0, 0.5), (0.5, 1), (0.2, 0.2)])
def test_counts_are_binomial_with_uniform_probability(interval: tuple[float, float]) -> None:
    """P(k) = ∫ Binomial(k; n, γ) dγ/(b−a): a chi-squared test over all counts."""
    size, (low, high) = 8, interval
    counts = np.concatenate([drawn(size, interval=interval, seed=s).share for s in range(4)]) * size
    grid = np.linspace(low, high, 2001)
    wanted = stats.binom.pmf(np.arange(size + 1)[:, None], size, grid).mean(1) * len(counts)
    seen = np.bincount(counts.round().astype(int), minlength=size + 1)
    rare = wanted < 5
    seen, wanted = np.append(seen[~rare], seen[rare].sum()), np.append(wanted[~rare], wanted[rare].sum())
    assert stats.chisquare(seen + 0.0, wanted * seen.sum() / wanted.sum()).pvalue > 1e-3


def test_order_inside_a_bag_tells_nothing() -> None:
    bags = drawn(512, interval=(0.5, 0.5))
    by_place = Y[bags.rows].mean(0)
    # Sixteen labels per place: a leak of the order would put means near 0 and 1 at the two ends.
    assert abs(by_place[:256].mean() - by_place[256:].mean()) < 0.05
    assert abs(stats.spearmanr(np.arange(512), by_place).statistic) < 0.2


def test_rows_of_a_class_are_drawn_at_random() -> None:
    """No part of the pool is preferred."""
    rows = drawn().rows.ravel()
    assert stats.kstest(rows / len(Y), "uniform").pvalue > 1e-3


def test_a_seed_gives_the_same_bags() -> None:
    np.testing.assert_array_equal(drawn(seed=3).rows, drawn(seed=3).rows)
    assert not np.array_equal(drawn(seed=3).rows, drawn(seed=4).rows)


@pytest.mark.parametrize("size", [0, -8, 7, 16384])
def test_bag_size_divides_the_total(size: int) -> None:
    with pytest.raises(ValueError, match=r"bag size: expected a divisor of the 8192 rows to draw, got"):
        drawn(size)


@pytest.mark.parametrize("interval", [(-0.1, 0.5), (0.5, 1.1), (0.7, 0.3), (float("nan"), 1)])
def test_interval_lies_in_0_to_1(interval: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="interval: expected 0 ≤ a ≤ b ≤ 1, got"):
        drawn(interval=interval)


def test_a_pool_with_too_few_positives() -> None:
    y = np.repeat([0, 1], [1000, 10])
    with pytest.raises(
        ValueError, match=r"one that a pool with 10 positive rows can serve, got .*, which needs"
    ):
        draw_bags(y, total=400, size=8, interval=(0.5, 1), rng=np.random.default_rng(0))
