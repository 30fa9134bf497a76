"""Steps that are replayed: on a CPU a replay calls the work again with the tensor of its graph."""

import warnings

import pytest
import torch
from torch import nn

from kdmkit.nn import Dropout
from kdmkit.training import FitOptions, Rows, fit
from kdmkit.training import devices as devices_module
from kdmkit.training import steps as steps_module
from kdmkit.training.devices import Replayed
from kdmkit.training.seeds import is_replayable
from training.problems import Objective, fitted, furthest, options, rows, same

CPU = torch.device("cpu")


@pytest.fixture
def replayed(monkeypatch):
    """Captures on a CPU; returns the tensors that graphs were given, one for every capture."""
    made = []

    def captured(self, work, given):
        made.append(given)
        return lambda: work(given)

    monkeypatch.setattr(steps_module, "can_replay", lambda device: True)
    monkeypatch.setattr(steps_module, "is_replayable", lambda module: True)
    monkeypatch.setattr(Replayed, "_captured", captured)
    return made


@pytest.mark.parametrize("averaging", [None, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_replays_are_the_steps(replayed, monkeypatch, averaging, weighted):
    """Sixty rows in batches of 16: one graph for the batches of 16, one for the last one of 12."""
    settings = {"train": rows(weighted=weighted), "validation": rows(20, seed=50), "averaging": averaging}
    one, history = fitted(**settings)
    assert sorted(len(given) for given in replayed) == [12, 16, 20]
    monkeypatch.undo()
    other, wanted = fitted(**settings)
    assert history == wanted
    assert same(one, other)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_replayed_updates_follow_the_schedule(replayed, monkeypatch, schedule):
    """The learning rate is a tensor in float32."""
    one, history = fitted(schedule=schedule, max_epochs=6)
    monkeypatch.undo()
    other, wanted = fitted(schedule=schedule, max_epochs=6)
    assert furthest(one.state_dict(), other.state_dict()) < 1e-6
    assert [entry["learning_rate"] for entry in history] == [entry["learning_rate"] for entry in wanted]
    assert furthest(one.state_dict(), Objective().state_dict()) > 1e-2


def test_a_replayed_fit_resumes(replayed, tmp_path):
    settings = {"schedule": "cosine", "averaging": 0.3, "max_epochs": 6}
    fitted(**settings, checkpoint_dir=tmp_path, epochs=4)
    one, _ = fitted(**settings, checkpoint_dir=tmp_path)
    assert same(one, fitted(**settings)[0])


def test_random_numbers_are_new_in_every_replay(replayed):
    class Noise(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope, self.drop, self.seen = nn.Parameter(torch.zeros(1)), Dropout(0.5), []

        def forward(self, x):
            dropped = self.drop(x)
            self.seen.append(dropped[:, 0].tolist())
            return (dropped[:, 0] - self.slope).square()

    model = Noise()
    fit(model, Rows((torch.ones(40, 1),)), options=options(batch_size=40, max_epochs=5))
    assert len({tuple(seen) for seen in model.seen}) == 5


def test_each_shape_has_a_graph_of_its_own(monkeypatch):
    calls = []

    def captured(self, work, given):
        return lambda: calls.append(("graph", given.tolist()))

    monkeypatch.setattr(Replayed, "_captured", captured)
    replayed = Replayed(CPU)
    for argument in ([0], [1], [2], [3], [5, 6]):
        replayed(lambda given: calls.append(("call", given.tolist())), torch.tensor(argument))
    wanted = [("call", [0]), ("call", [1]), ("graph", [2]), ("graph", [3]), ("call", [5, 6])]
    assert calls == wanted


def test_work_that_cannot_be_captured_is_called(monkeypatch):
    """One warning, and no second attempt."""

    def captured(self, work, given):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Replayed, "_captured", captured)
    total = torch.zeros(())
    replayed = Replayed(CPU)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(6):
            replayed(lambda argument: total.add_(argument.sum()), torch.ones(2))
    assert [str(warning.message)[:44] for warning in seen] == ["steps are not replayed as CUDA graphs and ta"]
    assert float(total) == 12


def test_modules_of_others_are_not_captured():
    """Their Python code would run once only."""
    assert is_replayable(nn.Sequential(nn.Linear(2, 2), Dropout(0.1)))
    assert not is_replayable(Objective())

    class Replayable(nn.Module):
        replayable = True

    assert is_replayable(nn.Sequential(Replayable(), nn.Linear(2, 2)))
    assert not is_replayable(nn.Sequential(Replayable(), Objective()))
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *arguments: None)
    assert not is_replayable(nn.Sequential(hooked))


def test_no_graphs_on_a_cpu():
    assert not devices_module.can_replay(CPU)


# ---- on a CUDA device

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _fit_on_cuda(**changes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), Dropout(0.2), nn.Linear(8, 1))
    model.append(nn.Flatten(0))
    train = Rows((torch.randn(300, 3, generator=torch.Generator().manual_seed(1)),))
    settings = {"max_epochs": 5, "batch_size": 64, "device": "cuda", **changes}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        history = fit(model, train, train, options=FitOptions(**settings))
    return model.cpu(), history


@NEEDS_CUDA
@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "constant"])
@pytest.mark.parametrize("averaging", [None, 0.3])
def test_graphs_train_as_calls_do(monkeypatch, schedule, averaging):
    one, history = _fit_on_cuda(schedule=schedule, averaging=averaging)
    again, _ = _fit_on_cuda(schedule=schedule, averaging=averaging)
    monkeypatch.setattr(steps_module, "can_replay", lambda device: False)
    other, wanted = _fit_on_cuda(schedule=schedule, averaging=averaging)
    assert same(one, again)
    assert furthest(one.state_dict(), other.state_dict()) < 1e-4
    for mine, theirs in zip(history, wanted, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


@NEEDS_CUDA
def test_work_that_waits_for_the_device_is_called():
    total = torch.zeros((), device="cuda")

    def work(argument):
        if float(argument.sum()) > 0:
            total.add_(1)

    replayed = Replayed(total.device)
    one = torch.ones(2, device="cuda")
    replayed(work, one)
    replayed(work, one)
    with pytest.warns(RuntimeWarning, match="steps are not replayed as CUDA graphs"):
        replayed(work, one)
    replayed(work, one)
    assert float(total) == 4
    assert torch.rand(2, device="cuda").isfinite().all()


class Line(nn.Module):
    """Squared errors of a linear function, with gradients that are written out if that is wanted."""

    def __init__(self, *, writes_gradients: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3, 1), 0.3, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.writes_gradients = writes_gradients

    def forward(self, x, y):
        return (x @ self.weight + self.bias - y.unsqueeze(1)).square().squeeze(1)

    def with_gradients(self, x, y, share):
        error = (x @ self.weight + self.bias - y.unsqueeze(1)).squeeze(1)
        slopes = 2 * share * error
        return error.square(), ((x.mT @ slopes).unsqueeze(1), slopes.sum().unsqueeze(0))


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_written_steps_are_those_of_autograd(schedule, weighted, clip_norm):
    """A norm of .5 is less than that of most gradients here."""
    given = {"schedule": schedule, "clip_norm": clip_norm, "weight_decay": 0.1, "max_epochs": 6}
    fits = []
    for writes_gradients in (True, False):
        line = Line(writes_gradients=writes_gradients)
        fits.append((line, fit(line, rows(weighted=weighted), options=options(learning_rate=0.05, **given))))
    (one, history), (other, wanted) = fits
    assert furthest(one.state_dict(), other.state_dict()) < 1e-9
    for entry, truth in zip(history, wanted, strict=True):
        assert entry == pytest.approx(truth, rel=1e-9)
    # Parameters have memory of their own again.
    assert one.weight.untyped_storage().nbytes() == one.weight.nbytes
