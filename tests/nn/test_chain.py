"""ChainLayer against the forward–backward algorithm in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.nn import ChainLayer, Variable

K, BATCH, STEPS = 6, 3, 40
LENGTHS = torch.tensor([40, 17, 1])


def layer(dtype: torch.dtype = torch.float64, n_states: int = K) -> ChainLayer:
    variables = [
        Variable("x", kdm.RBF([0.8, 1.5]), 2),
        Variable("y", kdm.Levels(3, 0.1), ()),
        Variable("hour", kdm.Periodic(2.0, 24.0), 1),
    ]
    made = ChainLayer(variables, K, n_states=n_states, dtype=dtype, generator=seeded(0))
    made.initialize(**columns())
    with torch.no_grad():
        made.start_logits.copy_(normal(n_states, seed=1))
        made.transition_logits.copy_(2 * normal(n_states, n_states, seed=2))
        made.logits.copy_(normal(K, seed=7))
    return made


def columns() -> dict[str, torch.Tensor]:
    return {
        "x": normal(BATCH, STEPS, 2, seed=3),
        "y": torch.randint(3, (BATCH, STEPS), generator=seeded(4)),
        "hour": 24 * torch.rand(BATCH, STEPS, 1, dtype=torch.float64, generator=seeded(5)),
    }


def masks() -> dict[str, torch.Tensor]:
    generator = seeded(6)
    drawn = {name: torch.rand(BATCH, STEPS, generator=generator) < 0.7 for name in ("x", "y")}
    whole_step = torch.rand(BATCH, STEPS, generator=generator) < 0.1
    return {name: mask & ~whole_step for name, mask in drawn.items()} | {"hour": ~whole_step}


def emissions(made: ChainLayer, observed: dict[str, torch.Tensor] | None) -> np.ndarray:
    """log f̂(x_t | z) of the observed part of every step, state by state."""
    total = np.zeros((BATCH, STEPS, K))
    for name, value in columns().items():
        for z in range(K):
            one = kdm.KDM(made.components[name][z : z + 1].detach(), None, made.kernel(name))
            score = one.log_prob(value).detach().double().numpy()
            total[..., z] += score if observed is None else np.where(observed[name].numpy(), score, 0.0)
    return total


def forward_backward(made: ChainLayer, score: np.ndarray) -> dict[str, np.ndarray]:
    """Written out for one sequence, `(steps, k)`: a component is a state of a larger chain."""
    n = K // made.n_states
    within = made.logits.detach().double().reshape(-1, n).log_softmax(-1).flatten().numpy()
    start = made.start_logits.detach().double().log_softmax(-1).numpy().repeat(n) + within
    table = made.transition_probs().detach().double().log().numpy().repeat(n, 0).repeat(n, 1) + within
    alpha, beta = [start + score[0]], [np.zeros(K)]
    for row in score[1:]:
        alpha.append(logsumexp(alpha[-1][:, None] + table, axis=0) + row)
    for row in score[:0:-1]:
        beta.insert(0, logsumexp(table + row + beta[0], axis=1))
    a, b = np.array(alpha), np.array(beta)
    return {
        "log_prob": logsumexp(a[-1]),
        "filtered": np.exp(a - logsumexp(a, axis=1, keepdims=True)),
        "smoothed": np.exp(a + b - logsumexp(a + b, axis=1, keepdims=True)),
        "next": np.exp(a[-1] - logsumexp(a[-1])) @ np.exp(table),
        "in three": np.exp(a[-1] - logsumexp(a[-1])) @ np.linalg.matrix_power(np.exp(table), 3),
    }


CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "missing": {"observed": masks()},
    "lengths": {"lengths": LENGTHS},
    "both": {"observed": masks(), "lengths": LENGTHS},
}


@pytest.mark.parametrize("n_states", [K, 3, 1])
@pytest.mark.parametrize("case", CASES)
def test_all_answers_are_those_of_forward_backward(case: str, n_states: int) -> None:
    made, options, data = layer(n_states=n_states), CASES[case], columns()
    score = emissions(made, options.get("observed"))
    lengths = options.get("lengths", torch.full((BATCH,), STEPS))
    log_prob = made.log_prob(**data, **options)
    filtered, smoothed = made.filter(**data, **options), made.smooth(**data, **options)
    ahead = made.forecast(3, **data, **options)
    assert filtered.batch_shape == smoothed.batch_shape == (BATCH, STEPS)
    assert ahead.batch_shape == (BATCH, 3)
    for i, n in enumerate(lengths.tolist()):
        wanted = forward_backward(made, score[i, :n])
        pairs = {
            "log_prob": log_prob[i],
            "filtered": filtered.weights[i, :n],
            "smoothed": smoothed.weights[i, :n],
            "next": ahead.weights[i, 0],
            "in three": ahead.weights[i, 2],
        }
        for name, value in pairs.items():
            scale = 1 + abs(wanted[name]).max()
            error = np.abs(value.detach().numpy() - wanted[name]).max() / scale
            assert error < 1e-10, (name, error)
    close(made(**data, **options).weights, ahead.weights[:, 0])
    close(made.step_log_prob(**data, **options).sum(-1), log_prob)


def test_draws_have_the_distributions_of_answers() -> None:
    made, data = layer(n_states=3), {name: value[:, :8] for name, value in columns().items()}
    observed = {name: torch.ones(BATCH, 8, dtype=torch.bool) for name in data}
    for mask in observed.values():
        mask[:, 3:6] = False
    n, generator = 400, seeded(9)
    many = {name: value.expand(n, *value.shape) for name, value in data.items()}
    masks = {name: mask.expand(n, *mask.shape) for name, mask in observed.items()}
    drawn = made.complete(**many, observed=masks, generator=generator)
    smooth = made.smooth(**data, observed=observed)
    pairs = [(drawn["x"].mean(0)[:, 3:6], smooth.marginal("x")[:, 3:6])]
    ahead = made.sample(4, (n,), **data, generator=generator)
    assert ahead["y"].shape == (n, BATCH, 4)
    pairs.append((ahead["x"].mean(0), made.forecast(4, **data).marginal("x")))
    new = made.sample(5, (n,), generator=generator)
    nothing = {name: torch.zeros(5, dtype=torch.bool) for name in data}
    rho = made.smooth(**{name: value[0, :5] for name, value in data.items()}, observed=nothing)
    pairs.append((new["x"].mean(0), rho.marginal("x")))
    for mean, answer in pairs:
        assert bool(((mean - answer.mean).abs() < 5 * answer.stddev / n**0.5).all())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_states", [K, 3])
def test_gradients_are_those_of_a_loop_of_logsumexp(case: str, n_states: int) -> None:
    made, options = layer(n_states=n_states), CASES[case]
    made.log_prob(**columns(), **options).sum().backward()
    ours = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    made.zero_grad()
    scores, tops, _ = made._scores(columns(), options.get("observed"), options.get("lengths"))
    within = made.logits.reshape(n_states, -1).log_softmax(-1)
    scores = (scores.unflatten(-1, (n_states, -1)) + within).logsumexp(-1)
    message, table = made.start_logits.log_softmax(-1) + scores[0], made.transition_probs().log()
    for score in scores[1:]:
        message = (message.unsqueeze(-1) + table).logsumexp(-2) + score
    (message.logsumexp(-1) + tops.sum(0)).sum().backward()
    assert set(ours) >= {"start_logits", "transition_logits", "components.x", "kernels.hour.bandwidth.raw"}
    for name, parameter in made.named_parameters():
        if parameter.grad is not None:
            close(ours[name], parameter.grad, rtol=1e-8, atol=1e-8)


def test_a_chain_is_a_tree() -> None:
    """Four steps as a TreeKDM with a node for every step and equal tables."""
    made, n = layer(), 4
    data = {name: value[:, :n] for name, value in columns().items()}
    parents = {"0": None, **{str(t): str(t - 1) for t in range(1, n)}}
    components = {f"x{t}": made.components["x"].detach() for t in range(n)}
    kernels = {f"x{t}": made.kernel("x") for t in range(n)}
    edges = {str(t): made.transition_probs().detach() for t in range(1, n)}
    nodes = {str(t): [f"x{t}"] for t in range(n)}
    tree = kdm.TreeKDM(
        components, kernels, parents, made.start_logits.softmax(-1).detach(), edges, nodes=nodes
    )
    close(made.log_prob(x=data["x"]), tree.log_prob(**{f"x{t}": data["x"][:, t] for t in range(n)}))
    posterior = tree.infer(**{f"x{t}": data["x"][:, t] for t in range(n) if t != 2}, target="x2")
    seen = torch.ones(BATCH, n, dtype=torch.bool)
    seen[:, 2] = False
    close(made.smooth(x=data["x"], observed={"x": seen}).weights[:, 2], posterior.weights)


def test_long_sequences_stay_exact_in_float32() -> None:
    wide, narrow = layer(), layer(torch.float32)
    narrow.load_state_dict(wide.state_dict())
    x = 30 * normal(20_000, 2, seed=8)  # far from all components
    exact = wide.log_prob(x=x).detach()
    assert abs(float(narrow.log_prob(x=x.float()).detach() - exact)) < 1e-4 * (1 + abs(float(exact)))


def test_impossible_steps() -> None:
    made = ChainLayer([Variable("x", kdm.Epanechnikov(1.0), 1)], 3, generator=seeded(0))
    x = torch.zeros(2, 20, 1)
    made.initialize(x=x + 0.1 * torch.arange(20).view(20, 1))
    made.kernel("x").initialize_bandwidth(made.components["x"], 5.0)
    x[1, 7] = 1e3
    log_prob = made.log_prob(x=x)
    assert log_prob[0].isfinite()
    assert log_prob[1].item() == -torch.inf
    log_prob[0].backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in made.parameters())
    assert bool(made.smooth(x=x).marginal("x").mean.isfinite().all())


@pytest.mark.usefixtures("unchecked")
def test_learning_finds_the_states() -> None:
    generator = seeded(3)
    state, rows = 0, []
    for _ in range(600):
        if float(torch.rand((), generator=generator)) < 0.05:
            state = 1 - state
        rows.append(3.0 * state + torch.randn(1, generator=generator))
    x = torch.stack(rows)
    made = ChainLayer([Variable("x", kdm.RBF(1.0), 1)], 2, generator=generator)
    made.initialize(x=x, method="kmeans", generator=generator)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    before = float(made.log_prob(x=x).detach())
    for _ in range(60):
        optimizer.zero_grad()
        (-made.log_prob(x=x) / len(x)).backward()
        optimizer.step()
    assert float(made.log_prob(x=x).detach()) > before + 20
    stay = made.transition_probs().diagonal()
    assert bool((stay > 0.9).all())
    centres = made.components["x"].detach().flatten().sort().values
    close(centres, torch.tensor([0.0, 3.0]), rtol=0, atol=0.3)


@pytest.mark.parametrize("n_states", [K, 2])
def test_saved_and_copied_layers(tmp_path: Any, n_states: int) -> None:
    made = layer(n_states=n_states)
    kdm.save(made, tmp_path / "chain.safetensors")
    loaded = kdm.load(tmp_path / "chain.safetensors")
    close(loaded.log_prob(**columns()), made.log_prob(**columns()))


def test_bad_sequences() -> None:
    made, data = layer(), columns()
    with pytest.raises(ValueError, match="n_states: expected a divisor of the number of components"):
        layer(n_states=4)
    for options, message in (
        ({"x": data["x"], "y": data["y"][:, :5]}, "columns: expected one or more steps"),
        ({"x": data["x"], "lengths": [1, 2]}, "lengths: expected numbers in 1 … 40"),
        ({"x": data["x"], "lengths": [1, 2, 41]}, "lengths: expected numbers in 1 … 40"),
        ({"z": data["x"]}, "columns: expected variables among"),
        ({}, "columns: expected one or more variables"),
    ):
        with pytest.raises(ValueError, match=message):
            made.log_prob(**options)
