"""Information between columns by leave-one-out prediction: against its definition, noise, rare levels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import seeded
from kdmkit.nn import Variable
from kdmkit.nn.pair_information import PairInformation, leave_one_out, pair_information
from kdmkit.nn.tree_start import learn_tree


def by_definition(x: Tensor, y: Tensor) -> tuple[float, float]:
    """The best mean of log(p(y | x)/q_y), each row left out in turn, and its standard error."""
    best, error, n = 0.0, 0.0, len(x)
    for given, predicted in ((x, y), (y, x)):
        for alpha in (0.5 * 4.0**k for k in range(12)):
            if alpha > 4 * n:
                break
            gains = []
            for a, b in zip(given.tolist(), predicted.tolist(), strict=True):
                share = float((predicted == b).sum()) / n
                both = float(((given == a) & (predicted == b)).sum()) - 1
                rest = float((given == a).sum()) - 1
                gains.append(math.log((both + alpha * share) / (rest + alpha) / share))
            mean = sum(gains) / n
            if mean > best:
                best = mean
                error = math.sqrt(sum((gain - mean) ** 2 for gain in gains)) / n
    return best, error


def test_leave_one_out_is_its_definition():
    generator = seeded(0)
    x = torch.randint(5, (80,), generator=generator)
    y = (x + torch.randint(2, (80,), generator=generator)) % 7
    z = torch.randint(40, (80,), generator=generator)
    seen = torch.rand(80, generator=generator) < 0.7
    value, error, rows = leave_one_out([x, torch.where(seen, y, -1), z])
    for i, j, a, b in ((1, 0, x[seen], y[seen]), (2, 0, x, z), (2, 1, y[seen], z[seen])):
        wanted = by_definition(a, b)
        assert float(value[i, j]) == pytest.approx(wanted[0], abs=1e-12)
        assert float(error[i, j]) == pytest.approx(wanted[1], abs=1e-12)
        assert float(rows[i, j]) == len(a)


def test_weights_of_one_and_repeated_rows():
    """Weights count as rows; levels that a table of pairs cannot hold are sorted, to the same result."""
    codes = [torch.randint(6, (300,), generator=seeded(i)) for i in range(3)]
    codes[1] = (codes[0] + codes[1] // 5) % 6
    plain = leave_one_out(codes)
    torch.testing.assert_close(leave_one_out(codes, torch.ones(300, dtype=torch.float64)), plain)
    sparse = leave_one_out([code * 1_000_003 % 4_000_000 for code in codes])
    torch.testing.assert_close(sparse, plain)


def columns_of(**data: Tensor) -> PairInformation:
    variables = [
        Variable(name, kdm.RBF(1.0), 1)
        if value.is_floating_point()
        else Variable(name, kdm.Levels(int(value.max()) + 1), ())
        for name, value in data.items()
    ]
    return pair_information(
        variables, {k: v[:, None] if v.is_floating_point() else v for k, v in data.items()}, {}
    )


@pytest.mark.parametrize("n", [300, 3000, 30_000])
@pytest.mark.parametrize("levels", [2, 50, 366, 5000])
def test_noise_tells_nothing(n: int, levels: int):
    """However many levels it has, and however rare they are; the columns that depend are seen."""
    generator = seeded(n + levels)
    x = torch.randn(n, generator=generator)
    pair = columns_of(
        noise=torch.randint(levels, (n,), generator=generator),
        x=x,
        y=x + torch.randn(n, generator=generator),
        many=torch.randint(max(2, n // 4), (n,), generator=generator),
        skewed=(torch.rand(n, generator=generator) ** 4 * 60).long(),
    )
    assert float(pair.value[1, 2]) > 0.15
    others = pair.value.clone()
    others[1, 2] = others[2, 1] = 0
    assert float(others.abs().max()) == 0
    low, high = pair.interval
    assert bool((low <= pair.value).all())
    assert bool((pair.value <= high).all())


def test_rare_levels_that_predict_are_seen():
    """1,000 names of six rows each, of which every one belongs to one of two species."""
    generator = seeded(1)
    name = torch.arange(6000) % 1000
    species = (name % 3 == 0).long()
    month = torch.randint(12, (6000,), generator=generator)
    pair = columns_of(name=name, species=species, month=month)
    entropy = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)
    assert float(pair.value[0, 1]) > 0.8 * entropy
    assert float(pair.value[0, 2]) == 0


def test_an_interval_covers_the_information_of_large_samples():
    def drawn(n: int, seed: int) -> PairInformation:
        generator = seeded(seed)
        x = torch.randint(4, (n,), generator=generator)
        y = torch.where(
            torch.rand(n, generator=generator) < 0.5, x, torch.randint(4, (n,), generator=generator)
        )
        return columns_of(x=x, y=y)

    p, q = 0.5 + 0.125, 0.125
    truth = p * math.log(4 * p) + 3 * q * math.log(4 * q)
    inside = 0
    for seed in range(40):
        low, high = drawn(1000, seed).interval
        inside += bool(low[0, 1] <= truth <= high[0, 1])
    assert inside >= 32


def test_the_largest_information_of_groups():
    pair = PairInformation(*torch.rand(3, 4, 4, generator=seeded(2)))
    pair = PairInformation(*(part + part.mT for part in pair))
    grouped = pair.of_groups([[0, 1], [2], [3]])
    assert float(grouped.estimate[0, 1]) == pytest.approx(float(pair.estimate[:2, 2].max()))
    row = int(pair.estimate[:2, 3].argmax())
    assert float(grouped.floor[2, 0]) == pytest.approx(float(pair.floor[row, 3]))


def test_variables_that_may_be_independent_start_without_a_link():
    generator = seeded(3)
    x = torch.randn(500, 1, generator=generator)
    data = {"x": x, "y": x + 0.3 * torch.randn(500, 1, generator=generator)}
    data["noise"] = torch.randn(500, 1, generator=generator)
    variables = [Variable(name, kdm.RBF(1.0), 1) for name in data]
    learned = learn_tree(variables, data, {})
    assert learned.independent <= {"noise"}
    assert learned.parents["noise"] is None or learned.independent == {"noise"}
    layer = kdm.nn.TreeLayer(variables, 8).initialize(learned=learned, generator=generator, **data)
    assert layer.parents == learned.parents
    for name, edge in zip(list(layer.parents)[1:], layer.edge_probs(), strict=True):
        linked = "noise" not in (name, layer.parents[name])
        assert bool((edge.diagonal() > 0.5).all()) == linked
        if not linked:
            torch.testing.assert_close(edge, torch.full_like(edge, 1 / 8))
