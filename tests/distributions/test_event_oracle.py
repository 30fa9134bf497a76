"""Events as evidence of joints and trees agree with sums over cells and states in numpy."""

import numpy as np
import pytest
import torch

import kdmkit as kdm
from distributions.event_oracle import random_event
from distributions.oracle_deviations import TOLERANCE, deviations, gradient_deviations, model_of


def check(seed: int) -> None:
    for deviation in deviations(seed):
        assert deviation.size <= deviation.limit, deviation


# 1005, 1061: means of numbers in an alternative that is missing alone.
@pytest.mark.parametrize("seed", [*range(12), 1005, 1061])
def test_events_agree_with_the_oracle(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(12, 30), *range(1000, 1300)])
def test_many_events_agree_with_the_oracle(seed: int) -> None:
    check(seed)


def test_single_precision() -> None:
    for seed in range(30):
        rng, model = model_of(seed)
        single = model.rho.to(torch.float32)
        for _ in range(2):
            said = random_event(rng, model.variables)
            order, shares = model.shares(said)
            wanted = float(shares.sum()) if order == 0 else 0.0
            p = single.log_prob(said.event).exp().item()
            assert abs(p - wanted) <= 1e-5, (seed, str(said.event), p, wanted)


@pytest.mark.parametrize("seed", range(12))
def test_draws_satisfy_the_event_and_agree_in_frequency(seed: int) -> None:
    rng, model = model_of(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        said, other = (random_event(rng, model.variables) for _ in range(2))
        order, shares = model.shares(said)
        if shares.sum() < 1e-9:
            continue
        drawn = model.rho.sample(2000, given=said.event, generator=generator)
        values = {n: x.reshape(2000, -1).numpy() for n, x in drawn.items()}
        values = {
            n: x.argmax(-1) if model.variables[n].kind == "labels" else x[:, 0] for n, x in values.items()
        }
        assert np.broadcast_to(said.truth(values), 2000).all(), (seed, str(said.event))
        both = model.shares(said & other)
        p = float(both[1].sum() / shares.sum()) if both[0] == order else 0.0
        hits = float(np.broadcast_to(other.truth(values), 2000).mean())
        assert abs(hits - p) <= 5 * np.sqrt(p * (1 - p) / 2000) + 1e-6, (seed, str(said.event), hits, p)


@pytest.mark.parametrize("seed", range(40))
def test_several_targets(seed: int) -> None:
    rng, model = model_of(seed)
    said = random_event(rng, model.variables)
    free = [name for name in model.variables if name not in said.cuts]
    order, shares = model.shares(said)
    if len(free) < 2 or shares.sum() < 1e-9:
        return
    rho = model.rho.infer(said.event, target=free)
    for _ in range(3):
        other = random_event(rng, {name: model.variables[name] for name in free})
        both = model.shares(said & other)
        wanted = float(both[1].sum() / shares.sum()) if both[0] == order else 0.0
        assert abs(rho.log_prob(other.event).exp().item() - wanted) <= TOLERANCE, (seed, str(other.event))


@pytest.mark.parametrize("seed", range(24))
def test_gradients_of_the_probability(seed: int) -> None:
    for deviation in gradient_deviations(seed):
        assert deviation.size <= deviation.limit, deviation


def test_regions_of_circles_meet_in_one_turn() -> None:
    kernel = kdm.Periodic(2.0, 7, whole=True)
    rho = kdm.JointKDM({"y": torch.tensor([[1.0], [5.5]], dtype=torch.float64)}, None, {"y": kernel})
    y = kdm.col("y")
    p = rho.log_prob(y != 7)
    torch.testing.assert_close(rho.log_prob((y != 7) & (y <= 7)), p)
    torch.testing.assert_close(rho.log_prob((y == 7) | (y == 14)), rho.log_prob(y == 0))
    torch.testing.assert_close(p.exp() + rho.log_prob(y == 0).exp(), torch.ones((), dtype=torch.float64))
