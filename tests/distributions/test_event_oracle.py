"""Events as evidence of joints and trees agree with sums over cells and states in numpy."""

import numpy as np
import pytest
import torch

import kdmkit as kdm
from distributions.event_oracle import (
    Codes,
    Line,
    Model,
    Said,
    WithAtoms,
    compare,
    random_event,
    random_joint,
    random_tree,
)

_TOLERANCE = 1e-7


def model_of(seed: int) -> tuple[np.random.Generator, Model]:
    rng = np.random.default_rng(seed)
    return rng, random_tree(rng) if seed % 2 else random_joint(rng)


def check(seed: int) -> None:
    rng, model = model_of(seed)
    for _ in range(4):
        said = random_event(rng, model.variables)
        order, shares = model.shares(said)
        total = float(shares.sum())
        p = model.rho.log_prob(said.event).exp().item()
        assert abs(p - (total if order == 0 else 0.0)) <= _TOLERANCE, (seed, str(said.event), p, total, order)
        if order == 0:
            assert abs(model.rho.log_prob(said.event).item() - np.log(total)) <= _TOLERANCE * (
                1 + 1e-9 / total
            )
        if total < 1e-12:
            continue
        for target in model.variables:
            check_posterior(rng, model, said, target, order, shares)


def check_posterior(
    rng: np.random.Generator, model: Model, said: Said, target: str, order: int, shares: np.ndarray
) -> None:
    where = (str(said.event), target)
    rho = model.rho.infer(said.event, target=target)
    total = shares.sum()
    assert abs(rho.log_evidence.item() - np.log(total)) <= _TOLERANCE * (1 + abs(np.log(total))), where
    if target not in said.cuts:
        weights = np.bincount(model.places[target], shares, len(rho.weights)) / total
        np.testing.assert_allclose(rho.weights.numpy(), weights, atol=_TOLERANCE, err_msg=str(where))
    variable = model.variables[target]
    if isinstance(variable, Codes):
        for code in variable.values:
            both = model.shares(said & compare(target, "=", code))
            wanted = both[1].sum() / total if both[0] == order else 0.0
            assert abs(rho.probs[code].item() - wanted) <= _TOLERANCE, (*where, code)
        return
    for value in rng.choice(variable.values, 2):
        both = model.shares(said & compare(target, "<=", float(value)))
        wanted = both[1].sum() / total if both[0] == order else 0.0
        got = rho.log_mass(kdm.Interval(None, float(value))).exp().item()
        assert abs(got - wanted) <= _TOLERANCE, (*where, value, got, wanted)
    if order == 0 and total > 1e-6 and isinstance(variable, Line | WithAtoms):
        wanted = model.mean(said, target)
        assert abs(rho.mean.item() - wanted) <= 1e-6 * (1 + abs(wanted)), (*where, rho.mean.item(), wanted)


@pytest.mark.parametrize("seed", range(30))
def test_events_agree_with_the_oracle(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1300))
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
        values = {name: x.reshape(-1).numpy() for name, x in drawn.items()}
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
        assert abs(rho.log_prob(other.event).exp().item() - wanted) <= _TOLERANCE, (seed, str(other.event))


def _gradients_of(model: Model, said: Said) -> None:
    """Gradients by logits of the weights and by components agree with central differences."""
    rho = model.rho
    logits = torch.tensor(np.log(model.weights)).requires_grad_()
    components = {n: v.clone().requires_grad_(v.is_floating_point()) for n, v in rho.components.items()}

    def log_prob() -> torch.Tensor:
        joint = kdm.JointKDM(components, kernels=rho.kernels, log_weights=torch.log_softmax(logits, -1))
        return joint.log_prob(said.event)

    value = log_prob()
    inputs = [logits, *(part for part in components.values() if part.requires_grad)]
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    assert gradients[0] is not None, str(said.event)
    with torch.no_grad():
        for part, gradient in zip(inputs, gradients, strict=True):
            flat = part.view(-1)
            for i in range(min(4, len(flat))):
                old = flat[i].item()
                ends = []
                for step in (1e-5, -1e-5):
                    flat[i] = old + step
                    ends.append(log_prob().item())
                flat[i] = old
                wanted = (ends[0] - ends[1]) / 2e-5
                got = 0.0 if gradient is None else gradient.reshape(-1)[i].item()
                assert abs(got - wanted) <= 1e-6 * (1 + abs(wanted)), (str(said.event), got, wanted)


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_gradients_of_the_probability(seed: int) -> None:
    rng, model = model_of(seed)
    for _ in range(4):
        said = random_event(rng, model.variables)
        order, shares = model.shares(said)
        if order == 0 and 1e-4 < shares.sum() < 1 - 1e-9:
            _gradients_of(model, said)


def test_regions_of_circles_meet_in_one_turn() -> None:
    kernel = kdm.Periodic(2.0, 7, whole=True)
    rho = kdm.JointKDM({"y": torch.tensor([[1.0], [5.5]], dtype=torch.float64)}, None, {"y": kernel})
    y = kdm.col("y")
    p = rho.log_prob(y != 7)
    torch.testing.assert_close(rho.log_prob((y != 7) & (y <= 7)), p)
    torch.testing.assert_close(rho.log_prob((y == 7) | (y == 14)), rho.log_prob(y == 0))
    torch.testing.assert_close(p.exp() + rho.log_prob(y == 0).exp(), torch.ones((), dtype=torch.float64))
