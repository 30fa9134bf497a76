"""Fits in phases."""

import copy

import pytest
import torch
from torch import Tensor, nn

from helpers import normal, seeded
from kdmkit.kernels import RBF, Categorical
from kdmkit.nn import JointLayer
from kdmkit.training import PhasedFit, Rows, encode_rows, fit
from kdmkit.training.objectives import ConditionalObjective, DenseObjective
from training.problems import data, furthest, options, same

# Fits take twice the time where annotations are checked.
pytestmark = pytest.mark.usefixtures("unchecked")


def _encoder(dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))


def _rows(n: int = 120, seed: int = 0, *, weighted: bool = False) -> Rows:
    weights = torch.rand(n, generator=seeded(seed + 7)) if weighted else None
    return Rows(data(n, seed=seed, dtype=torch.float32), weights)


def _phases(kind: type[PhasedFit] = PhasedFit, encoder: nn.Module | None = None, **changes):
    """Phases over an encoder, unless told otherwise; what is no option of theirs is one of the loop."""
    chosen = {name: changes.pop(name) for name in ("head_epochs", "generative_weight") if name in changes}
    settings = options(**{"max_epochs": 3, "batch_size": 32, **changes})
    encoder = _encoder() if encoder is None else encoder
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        layer = JointLayer(2, 3, 9)
    return kind(encoder, layer, _rows(), _rows(40, seed=9), options=settings, **chosen)


def _state(*modules: nn.Module | None) -> dict[str, Tensor]:
    parts = nn.ModuleList([module for module in modules if module is not None])
    return copy.deepcopy(parts.state_dict())


class Watched(PhasedFit):
    """Says which of encoder, dense head and layer every phase moves."""

    def minimize(self, phase, objective, *arguments):
        before = [_state(part) for part in (self.encoder, self.dense, self.layer)]
        super().minimize(phase, objective, *arguments)
        after = [_state(part) for part in (self.encoder, self.dense, self.layer)]
        moved = [furthest(a, b) > 0 for a, b in zip(before, after, strict=True)]
        self.seen = {**getattr(self, "seen", {}), phase: moved}


def test_what_every_phase_trains():
    phases = _phases(Watched, head_epochs=2)
    histories = phases.run()
    assert list(histories) == ["pretraining", "head-before", "joint", "head-after"]
    assert [len(history) for history in histories.values()] == [3, 2, 3, 2]
    assert phases.seen == {
        "pretraining": [True, True, False],
        "head-before": [False, False, True],
        "joint": [True, False, True],
        "head-after": [False, False, True],
    }


def test_the_head_alone_is_off_by_default():
    assert list(_phases().run()) == ["pretraining", "joint"]


def test_without_an_encoder_there_is_one_phase():
    layer = JointLayer(3, 3, 9)
    phases = PhasedFit(None, layer, _rows(), options=options(), head_epochs=2)
    assert list(phases.run()) == ["joint"]
    assert phases.dense is None


def test_components_start_among_latent_vectors():
    phases = _phases()
    phases.pretrain()
    phases.place_components()
    z = encode_rows(phases.encoder, phases.train.tensors[0])
    nearest = torch.cdist(phases.layer.components["x"].detach(), z).amin(1)
    assert nearest.max() < z.std(0).max()


@pytest.mark.parametrize("phase", ["head-before", "head-after"])
def test_the_head_alone_learns_from_latent_vectors(phase):
    """The same as a fit of the layer to encoded rows, weights and validation rows included."""
    phases = _phases(head_epochs=4)
    phases.train = _rows(weighted=True)
    phases.place_components()
    layer = copy.deepcopy(phases.layer)
    phases.fit_head(phase)
    parts = (phases.train, phases.validation)
    train, unseen = (
        Rows((encode_rows(phases.encoder, r.tensors[0]), r.tensors[1]), r.weights) for r in parts
    )
    fit(ConditionalObjective(None, layer), train, unseen, options=options(max_epochs=4, batch_size=32))
    assert same(phases.layer, layer)


def test_likelihood_raises_the_density_of_latent_vectors_and_labels():
    phases = _phases(Watched, max_epochs=10)
    phases.run()
    rows = phases.latent_rows(phases.validation)

    def mean_log_prob() -> float:
        with torch.no_grad():
            return float(phases.layer.joint().log_prob(x=rows.tensors[0], y=rows.tensors[1]).mean())

    before = mean_log_prob()
    phases.fit_likelihood()
    assert mean_log_prob() > before + 0.1
    assert phases.seen["likelihood"] == [False, False, True]


def test_learning_rates_and_folders(tmp_path):
    phases = _phases(
        learning_rate=0.02, weight_decay=0.1, averaging=0.5, checkpoint_dir=tmp_path, head_epochs=7
    )
    result = {
        phase: phases.options_for(phase) for phase in ("pretraining", "head-before", "joint", "likelihood")
    }
    assert [o.learning_rate for o in result.values()] == pytest.approx([3e-3, 0.02, 9e-4, 0.02])
    assert [o.max_epochs for o in result.values()] == [3, 7, 3, 3]
    assert [o.checkpoint_dir for o in result.values()] == [tmp_path / phase for phase in result]
    assert {(o.weight_decay, o.averaging) for o in result.values()} == {(0.1, 0.5)}
    assert _phases(learning_rate=1e-4).options_for("pretraining").learning_rate == 1e-4
    alone = PhasedFit(None, JointLayer(3, 3, 9), _rows(), options=options(learning_rate=0.02))
    assert alone.options_for("joint").learning_rate == 0.02


class Killed(Exception):
    pass


@pytest.mark.parametrize("victim", ["pretraining", "head-before", "joint", "head-after"])
def test_a_killed_run_ends_where_the_uninterrupted_one_ends(tmp_path, victim):
    class Dying(PhasedFit):
        def minimize(self, phase, objective, prepare=lambda rows: rows):
            if phase == victim:
                unseen, settings = prepare(self.validation), self.options_for(phase)
                fit(objective, prepare(self.train), unseen, options=settings, epochs=1)
                raise Killed
            super().minimize(phase, objective, prepare)

    changes = {"head_epochs": 2, "averaging": 0.3, "max_epochs": 2}
    wanted = _phases(encoder=_encoder(0.2), **changes)
    torch.manual_seed(3)
    histories = wanted.run()
    torch.manual_seed(3)
    with pytest.raises(Killed):
        _phases(Dying, encoder=_encoder(0.2), checkpoint_dir=tmp_path, **changes).run()
    resumed = _phases(encoder=_encoder(0.2), checkpoint_dir=tmp_path, **changes)
    assert resumed.run() == histories
    assert same(resumed.layer, wanted.layer)
    assert same(resumed.encoder, wanted.encoder)


def test_other_objectives_between_the_phases():
    phases = _phases(max_epochs=2)
    phases.dense = nn.Linear(2, 3, bias=False)
    phases.minimize("own", DenseObjective(phases.encoder, phases.dense), max_epochs=1)
    phases.place_components()
    phases.fit_jointly()
    assert {phase: len(history) for phase, history in phases.histories.items()} == {"own": 1, "joint": 2}


def test_regression():
    """Targets with a fraction: the dense head has their dimensions, its loss is the squared error."""
    x = normal(200, 3, seed=0, dtype=torch.float32)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2]], 1)
    layer = JointLayer(2, 2, 20, out_kernel=RBF(torch.ones(2)))
    phases = PhasedFit(_encoder(), layer, Rows((x, y)), options=options(max_epochs=20, learning_rate=0.02))
    histories = phases.run()
    assert phases.dense.out_features == 2
    assert histories["pretraining"][-1]["loss"] < 0.8 * histories["pretraining"][0]["loss"]
    with torch.no_grad():
        wanted = (phases.dense(phases.encoder(x)) - y).square().mean(-1)
        assert torch.equal(DenseObjective(phases.encoder, phases.dense)(x, y), wanted)


def test_categories():
    """Codes have no dimensions: the dense head has one output per category."""
    layer = JointLayer(2, 3, 9, out_kernel=Categorical(3, 0.1))
    phases = PhasedFit(_encoder(), layer, _rows(), options=options(max_epochs=2))
    assert list(phases.run()) == ["pretraining", "joint"]
    assert phases.dense.out_features == 3


def test_a_negative_number_of_head_epochs():
    with pytest.raises(ValueError, match="head_epochs: expected a whole number ≥ 0, got -1"):
        _phases(head_epochs=-1)


def test_it_learns():
    phases = _phases(max_epochs=15, head_epochs=5, averaging=0.2)
    phases.run()
    x, y = data(300, seed=40, dtype=torch.float32)
    with torch.no_grad():
        assert (phases.layer(phases.encoder(x)).probs.argmax(-1) == y).double().mean() > 0.9


def test_latent_vectors_by_blocks():
    encoder, x = nn.Sequential(_encoder(0.5)), _rows().tensors[0]
    wanted = encoder.eval()(x).detach()
    got = encode_rows(encoder.train(), x, block=7)
    assert torch.allclose(got, wanted, atol=1e-6)
    assert not got.requires_grad
    assert encode_rows(encoder.double(), x.double()).dtype == torch.float32


@pytest.mark.parametrize("bad", [nn.Flatten(0), nn.Unflatten(1, (3, 1))])
def test_encoders_that_give_no_vectors(bad):
    with pytest.raises(ValueError, match=r"encoder: expected outputs of shape \(120, features\)"):
        encode_rows(bad, _rows().tensors[0])
