"""The training loop."""

import gc
import math
import warnings
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from helpers import normal, seeded
from kdmkit.nn import DensityLayer
from kdmkit.training import FitOptions, Rows, fit, nll
from kdmkit.training.loop import Progress
from training.problems import N, Objective, data, fitted, furthest, options, rows, same


class Density(nn.Module):
    """A density's negative log-likelihood."""

    def __init__(self, m: int = 4) -> None:
        super().__init__()
        self.layer = DensityLayer(3, m, dtype=torch.float64).initialize(data()[0], generator=seeded(0))

    def forward(self, x):
        return nll(self.layer(), x)


class Watched(nn.Module):
    """A linear model that remembers the rows it was shown, the first column being their number."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.seen: list[list[int]] = []

    def forward(self, x):
        if self.training:
            self.seen.append(x[:, 0].long().tolist())
        return (x[:, 1] - self.slope).square()


def numbered(n):
    return Rows((torch.stack([torch.arange(n).double(), normal(n, seed=0)], 1),))


# ---- seeds


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_seed_gives_the_same_bits(dropout):
    torch.manual_seed(1)
    one, history = fitted(objective=Objective(dropout=dropout), validation=rows(20, seed=50))
    torch.manual_seed(2)
    other, again = fitted(objective=Objective(dropout=dropout), validation=rows(20, seed=50))
    assert same(one, other)
    assert history == again


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_other_seeds_give_other_fits(dropout):
    """Without dropout through the order of rows alone; with one batch through dropout alone."""
    changes = {"batch_size": N} if dropout else {}
    one, _ = fitted(objective=Objective(dropout=dropout), seed=0, **changes)
    other, _ = fitted(objective=Objective(dropout=dropout), seed=1, **changes)
    assert furthest(one.state_dict(), other.state_dict()) > 1e-6


def test_dropout_differs_between_epochs():
    noise = []

    class Noisy(Watched):
        def forward(self, x):
            if self.training:
                noise.append(torch.rand(()).item())
            return super().forward(x)

    fit(Noisy(), numbered(8), options=options(batch_size=8))
    assert len(set(noise)) == 4


def test_torchs_own_randomness_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fitted(objective=Objective(dropout=0.3))
    assert torch.equal(torch.get_rng_state(), before)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(objective=Objective(dropout=0.3), on_epoch=interrupt)
    assert torch.equal(torch.get_rng_state(), before)


# ---- batches


def test_every_row_once_per_epoch_in_a_new_order():
    model = Watched()
    fit(model, numbered(50), options=options(batch_size=16, max_epochs=2))
    assert [len(batch) for batch in model.seen] == [16, 16, 18] * 2
    epochs = [list(chain(*model.seen[:3])), list(chain(*model.seen[3:]))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("n", "size", "sizes"),
    [
        (33, 16, [16, 17]),
        (39, 16, [16, 23]),
        (40, 16, [16, 16, 8]),
        (9, 4, [4, 5]),
        (16, 16, [16]),
        (1, 16, [1]),
        (3, 1, [1, 1, 1]),
        (5, 100, [5]),
    ],
)
def test_a_small_last_batch_joins_the_one_before(n, size, sizes):
    model = Watched()
    fit(model, numbered(n), options=options(batch_size=size, max_epochs=1))
    assert [len(batch) for batch in model.seen] == sizes


def test_batch_normalisation_survives_a_row_too_many():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1), nn.Flatten(0))
    fit(model, Rows((normal(33, 3, seed=0, dtype=torch.float32),)), options=options(batch_size=16))


# ---- weights of samples


def _one_step(train, **changes):
    model = Density()
    whole = {"max_epochs": 1, "batch_size": 10_000, "schedule": "constant", "clip_norm": None}
    history = fit(model, train, options=options(**{**whole, **changes}))
    return model, history


def test_weights_are_repetitions():
    x, counts = data()[0], torch.arange(N) % 4
    weighted, history = _one_step(Rows((x,), counts.double()))
    repeated, wanted = _one_step(Rows((x.repeat_interleave(counts, 0),)))
    assert furthest(weighted.state_dict(), repeated.state_dict()) < 1e-10
    assert furthest(weighted.state_dict(), Density().state_dict()) > 1e-3
    assert history[0]["loss"] == pytest.approx(wanted[0]["loss"], rel=1e-12)


def test_only_the_proportions_of_weights_count():
    """Weights of any size: the loss is divided by their sum."""
    x, weights = data()[0], torch.rand(N, generator=seeded(0), dtype=torch.float64)
    one, history = _one_step(Rows((x,), weights))
    other, again = _one_step(Rows((x,), 1000 * weights))
    assert furthest(one.state_dict(), other.state_dict()) < 1e-10
    assert history[0]["loss"] == pytest.approx(again[0]["loss"], rel=1e-12)


def test_the_step_follows_the_gradient_of_the_weighted_mean():
    """AdamW's first step is the learning rate against the gradient's sign."""
    x, weights = normal(6, seed=0), torch.rand(6, generator=seeded(1), dtype=torch.float64)
    train = Rows((torch.stack([torch.arange(6).double(), x], 1),), weights)
    model = Watched()
    history = fit(model, train, options=options(max_epochs=1, batch_size=6, schedule="constant"))
    assert history[0]["loss"] == pytest.approx(float((weights * x**2).sum() / weights.sum()), rel=1e-12)
    assert float(model.slope.detach()) == pytest.approx(float(0.01 * (weights * x).sum().sign()), rel=1e-6)


def test_the_history_holds_weighted_means():
    model = Watched()
    with torch.no_grad():
        model.slope.fill_(0.7)
    train, unseen = (
        numbered(20),
        Rows(numbered(30).tensors, torch.rand(30, generator=seeded(0), dtype=torch.float64)),
    )
    history = fit(model, train, unseen, options=options(max_epochs=1, batch_size=4, learning_rate=1e-12))
    x, (held_x,) = train.tensors[0][:, 1], unseen.tensors
    assert history[0]["loss"] == pytest.approx(float((x - 0.7).square().mean()), rel=1e-9)
    wanted = (unseen.weights * (held_x[:, 1] - 0.7).square()).sum() / unseen.weights.sum()
    assert history[0]["validation_loss"] == pytest.approx(float(wanted), rel=1e-9)
    assert set(history[0]) == {"epoch", "loss", "validation_loss", "learning_rate"}


def test_a_batch_whose_rows_count_nothing():
    """0/0 must not poison the parameters."""
    weights = torch.zeros(64, dtype=torch.float64)
    weights[5] = 1.0
    model, history = _one_step(Rows((data(64)[0],), weights), batch_size=8, max_epochs=2)
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert math.isfinite(history[-1]["loss"])


def test_evaluation_by_blocks():
    """More validation rows than one block of 4,096 holds."""
    unseen = rows(5000, seed=9, weighted=True)
    model, history = fitted(validation=unseen)
    with torch.no_grad():
        wanted = float((unseen.weights * model(*unseen.tensors)).sum() / unseen.weights.sum())
    assert min(entry["validation_loss"] for entry in history) == pytest.approx(wanted, rel=1e-12)


# ---- stopping


class Overfitting(nn.Module):
    """Its parameter counts up by one learning rate per step; validation is best at 5 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return -x[:, 0] * self.slope if self.training else (self.slope - 0.05).square() * x[:, 0]


def _overfit(**changes):
    ones = Rows((torch.ones(4, 1, dtype=torch.float64),))
    states = []
    model = Overfitting()
    history = fit(
        model,
        ones,
        ones,
        options=options(max_epochs=20, batch_size=4, schedule="constant", learning_rate=0.01, **changes),
        on_epoch=lambda m: states.append(m.slope.item()),
    )
    return model, history, states


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_restores_the_best_weights(patience):
    model, history, states = _overfit(patience=patience)
    assert len(history) == len(states) == 5 + patience
    assert model.slope.item() == states[4] == pytest.approx(0.05)
    assert min(e["validation_loss"] for e in history) == history[4]["validation_loss"]


def test_without_patience_all_epochs_run_and_the_best_weights_stay():
    model, history, states = _overfit(patience=None)
    assert len(history) == 20
    assert model.slope.item() == states[4]


def test_without_validation_the_last_weights_stay():
    states = []
    model, history = fitted(
        on_epoch=lambda m: states.append({k: v.clone() for k, v in m.state_dict().items()})
    )
    assert len(history) == 4
    assert furthest(model.state_dict(), states[-1]) == 0


def test_the_objective_comes_back_in_evaluation_mode_and_clean():
    """What Accelerate patches and wraps must not show."""
    for precision in ("no", "bf16"):
        model = Objective(dtype=torch.float32)
        before = set(vars(model))
        x, y = data(dtype=torch.float32)
        fit(model, Rows((x, y)), options=options(precision=precision, max_epochs=1))
        assert set(vars(model)) == before
        assert not model.training


def test_part_of_the_way():
    """The schedule is that of all epochs."""
    whole = fitted()[1]
    part = fitted(epochs=2)[1]
    assert part == whole[:2]


@pytest.mark.parametrize("epochs", [0, -1, 5])
def test_epochs_are_within_the_schedule(epochs):
    with pytest.raises(ValueError, match=r"epochs: expected 1 to max_epochs \(4\)"):
        fitted(epochs=epochs)


# ---- optimizer


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "constant"])
@pytest.mark.parametrize("steps", range(1, 14))
def test_schedules_of_any_length(schedule, steps):
    history = fit(Watched(), numbered(4), options=options(max_epochs=steps, batch_size=4, schedule=schedule))
    rates = [entry["learning_rate"] for entry in history]
    assert all(0 <= rate <= 0.01 for rate in rates)
    if schedule == "constant":
        assert set(rates) == {0.01}
    else:
        assert rates[-1] < 1e-4


def test_one_cycle_warms_up_and_comes_down():
    history = fit(Watched(), numbered(4), options=options(max_epochs=50, batch_size=4))
    rates = [entry["learning_rate"] for entry in history]
    peak = rates.index(max(rates))
    assert 2 <= peak <= 6
    assert max(rates) == pytest.approx(0.01, rel=0.05)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_gradients_are_clipped(monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def spy(self, *args, **options):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(torch.stack([g.norm() for g in gradients]).norm().item())
        return step(self, *args, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    fitted(clip_norm=1e-3)
    assert norms == pytest.approx([1e-3] * len(norms), rel=1e-3)
    norms.clear()
    fitted(clip_norm=None)
    assert max(norms) > 0.1


def test_frozen_parameters_stay():
    model = Objective()
    model.encoder.requires_grad_(False)
    before = {k: v.clone() for k, v in model.encoder.state_dict().items()}
    fitted(objective=model)
    assert furthest(model.encoder.state_dict(), before) == 0
    assert furthest(model.layer.state_dict(), Objective().layer.state_dict()) > 0


# ---- precision


def test_bf16():
    model = Objective(dtype=torch.float32)
    seen = []
    model.encoder.register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    x, y = data(dtype=torch.float32)
    history = fit(model, Rows((x, y)), Rows((x, y)), options=options(precision="bf16", max_epochs=15))
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert history[-1]["loss"] < history[0]["loss"] - 0.3


def test_every_fit_has_its_own_precision():
    """Accelerate remembers the first it was given."""
    model = Objective(dtype=torch.float32)
    seen = []
    model.encoder.register_forward_hook(lambda m, i, output: seen.append(output.dtype))
    x, y = data(dtype=torch.float32)
    for precision, dtype in (("no", torch.float32), ("bf16", torch.bfloat16), ("no", torch.float32)):
        seen.clear()
        fit(model, Rows((x, y)), options=options(precision=precision, max_epochs=1))
        assert set(seen) == {dtype}


def test_fp16_needs_a_gpu():
    with pytest.raises(ValueError, match="precision: expected 'no' or 'bf16' on a CPU, got 'fp16'"):
        fitted(precision="fp16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device():
    with pytest.raises(ValueError, match="device: expected 'cpu' or 'auto' where there is no CUDA device"):
        fitted(device="cuda")
    one, other = fitted(device="auto")[0], fitted(device="cpu")[0]
    assert same(one, other)


# ---- what goes wrong


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(bad):
    x, y = data()
    x[7] = bad
    with pytest.raises(
        FloatingPointError, match=r"^loss: expected a finite value, got .* in epoch 0 .*learning_rate"
    ):
        fitted(train=Rows((x, y)))


def test_a_validation_loss_that_is_no_number():
    x, y = data()
    x[7] = math.nan
    with pytest.raises(
        FloatingPointError, match=r"^validation_loss: expected a finite value, got nan in epoch 0"
    ):
        fitted(validation=Rows((x, y)))


def test_an_infinite_validation_loss_is_never_the_best():
    class Once(Watched):
        def forward(self, x):
            losses = super().forward(x)
            return losses if self.training or len(self.seen) != 1 else losses + math.inf

    history = fit(Once(), numbered(8), numbered(8), options=options(batch_size=8, patience=2, max_epochs=3))
    assert math.isinf(history[0]["validation_loss"])
    assert len(history) > 1


@pytest.mark.parametrize("spoil", [lambda x: x.mean(), lambda x: x.unsqueeze(-1), lambda x: x[1:]])
def test_an_objective_gives_one_loss_per_row(spoil):
    class Wrong(Watched):
        def forward(self, x):
            return spoil(super().forward(x))

    with pytest.raises(ValueError, match=r"objective: expected one loss per row, shape \(8,\)"):
        fit(Wrong(), numbered(8), options=options())


def test_nothing_to_train():
    with pytest.raises(ValueError, match="objective: expected at least one trainable parameter, got none"):
        fitted(objective=Objective().requires_grad_(False))


ROWS = {
    "no tensors": ((), None, "rows: expected one or more rows"),
    "no rows": ((torch.zeros(0, 2),), None, "rows: expected one or more rows"),
    "lengths differ": ((torch.zeros(3, 2), torch.zeros(4)), None, "rows: expected one or more rows"),
    "too few weights": ((torch.zeros(3, 2),), torch.ones(2), r"weights: expected shape \(3,\), got \(2,\)"),
    "a column of weights": ((torch.zeros(3, 2),), torch.ones(3, 1), r"weights: expected shape \(3,\)"),
    "negative": ((torch.zeros(2, 2),), torch.tensor([1.0, -1.0]), "weights: expected non-negative values"),
    "all zero": ((torch.zeros(2, 2),), torch.zeros(2), "weights: expected non-negative values, at least one"),
    "no number": ((torch.zeros(2, 2),), torch.tensor([1.0, math.nan]), "weights: expected finite values"),
}


@pytest.mark.parametrize("case", ROWS)
@pytest.mark.usefixtures("unchecked")
def test_bad_rows(case):
    tensors, weights, message = ROWS[case]
    with pytest.raises(ValueError, match=message):
        Rows(tensors, weights)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_epochs", 0, "max_epochs: expected a whole number ≥ 1, got 0"),
        ("max_epochs", 2.0, "max_epochs: expected a whole number"),
        ("max_epochs", True, "max_epochs: expected a whole number"),
        ("batch_size", 0, "batch_size: expected a whole number"),
        ("patience", 0, "patience: expected a whole number"),
        ("seed", -1, "seed: expected a whole number ≥ 0"),
        ("seed", None, "seed: expected a whole number ≥ 0"),
        ("learning_rate", 0.0, "learning_rate: expected a finite number > 0"),
        ("learning_rate", math.nan, "learning_rate: expected a finite number > 0"),
        ("learning_rate", math.inf, "learning_rate: expected a finite number > 0"),
        ("weight_decay", -1.0, "weight_decay: expected a finite number ≥ 0"),
        ("clip_norm", 0.0, "clip_norm: expected > 0 or None"),
        ("averaging", 0.0, "averaging: expected 0 < averaging ≤ 1, or None, got 0.0"),
        ("averaging", 1.5, "averaging: expected 0 < averaging ≤ 1, or None"),
        ("averaging", math.nan, "averaging: expected 0 < averaging ≤ 1, or None"),
        ("schedule", "linear", "schedule: expected one of 'one-cycle'"),
        ("device", "tpu", "device: expected one of 'auto', 'cpu', 'cuda'"),
        ("precision", "fp8", "precision: expected one of 'no', 'bf16', 'fp16'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options(option, value, message):
    with pytest.raises(ValueError, match=message):
        FitOptions(**{option: value})


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers():
    """Grids of scikit-learn searches hold them."""
    model, history = fitted(max_epochs=np.int64(2), batch_size=np.int32(16), seed=np.int64(3))
    assert len(history) == 2
    assert furthest(model.state_dict(), Objective().state_dict()) > 0


# ---- surroundings


def test_progress_only_when_asked_for(capsys):
    fitted(validation=rows(20, seed=9))
    assert capsys.readouterr() == ("", "")
    fitted(validation=rows(20, seed=9), verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "4/4" in shown.err
    assert "validation_loss=" in shown.err


def test_no_warnings():
    """Accelerate and torch have several for loops like this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(objective=initialized(), validation=rows(20, seed=9))
        fitted(objective=initialized(), precision="bf16")


def initialized() -> Objective:
    objective, (x, y) = Objective(dtype=torch.float64), data()
    with torch.no_grad():
        objective.layer.initialize(objective.encoder(x), y, generator=seeded(0))
    return objective


def _tensors():
    gc.collect()
    return sum(1 for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_epochs():
    counts = []
    fitted(validation=rows(20, seed=9), max_epochs=8, on_epoch=lambda _: counts.append(_tensors()))
    assert len(set(counts[1:])) == 1


def test_a_finished_fit_is_let_go():
    """Neither Accelerate nor the loop keeps models or rows alive."""
    fitted(max_epochs=1)
    before = _tensors()
    for _ in range(3):
        fitted(max_epochs=1)
    assert _tensors() == before


def test_training_learns():
    x, y = data(300)
    model = Objective()
    model.layer.initialize(model.encoder(x), y, method="balanced", generator=seeded(0))
    fit(model, Rows((x, y)), options=options(max_epochs=20, batch_size=32))
    assert model.accuracy(*data(300, seed=40)) > 0.9


@pytest.mark.parametrize(
    ("min_improvement", "losses", "best"),
    [
        (0.0, [1.0, 0.999, 0.998], 2),
        (0.01, [1.0, 0.999, 0.995], 0),
        (0.01, [1.0, 0.98, 0.979], 2),
        (0.01, [1.0, 0.979, 0.98], 1),
        (0.01, [float("inf"), 5.0, 4.99], 2),
        (0.1, [-1.0, -1.05, -1.2], 2),
    ],
)
def test_a_loss_counts_if_it_beats_the_first_by_the_minimum(
    min_improvement: float, losses: list[float], best: int
) -> None:
    progress, model = Progress(), nn.Linear(1, 1)
    for loss in losses:
        progress.record({"validation_loss": loss}, model, min_improvement=min_improvement)
    assert progress.best_epoch == best


@pytest.mark.parametrize(
    ("losses", "kept"),
    [
        ([1.0, 0.5, 0.59], 2),
        ([1.0, 0.5, 0.61], 1),
        ([1.0, 0.5, 0.55, 0.59, 0.64], 3),  # against the least loss, not against the last that counted
        ([1.0, 0.5, 0.7, 0.55], 3),
    ],
)
def test_the_last_weights_within_the_tolerance_are_kept(losses: list[float], kept: int) -> None:
    progress, model = Progress(), nn.Linear(1, 1)
    for epoch, loss in enumerate(losses):
        nn.init.constant_(model.bias, epoch)
        progress.record({"validation_loss": loss}, model, tolerance=0.1)
    assert progress.best_epoch == kept
    assert float(progress.best_weights["bias"]) == kept
    assert progress.best_loss == min(losses)


def test_the_least_improvement_is_a_share() -> None:
    with pytest.raises(ValueError, match="min_improvement: expected 0 ≤ min_improvement < 1, got 1"):
        FitOptions(min_improvement=1)


def test_the_start_competes() -> None:
    """Later losses have to be better than the first weights, by `min_improvement` of their loss."""
    progress, model = Progress(), nn.Linear(1, 1)
    nn.init.constant_(model.bias, -1.0)
    progress.start(1.0, model)
    for epoch, loss in enumerate([1.2, 0.95, 0.92]):
        nn.init.constant_(model.bias, epoch)
        progress.record({"validation_loss": loss}, model, min_improvement=0.1)
    assert progress.best_epoch == -1
    assert progress.best_weights["bias"] == -1
    progress.record({"validation_loss": 0.8}, model, min_improvement=0.1)
    assert progress.best_epoch == 3


def test_a_fit_keeps_its_start() -> None:
    """Weights that no epoch improves are kept, if the start is validated."""
    truth = torch.tensor([[2.0]], dtype=torch.float64)
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(truth.clone())

        def forward(self, x, y):
            return (x @ self.slope - y).square().squeeze(1)

    # Labels to learn from are wrong, those to validate on are right.
    train, validation = Rows((x, -x)), Rows((x, x @ truth))
    slopes = {}
    for keep in (True, False):
        objective = Linear()
        settings = FitOptions(max_epochs=2, device="cpu", keep_start=keep)
        fit(objective, train, validation, options=settings)
        slopes[keep] = objective.slope.item()
    assert slopes[True] == 2.0
    assert slopes[False] < 2.0
