"""Fits of trees: what they minimise, missing cells, weights, checkpoints, early stopping."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.nn import TreeLayer, Variable
from kdmkit.training import FitOptions, Rows, Table, fit, fit_tree, tree_options
from kdmkit.training.packing import Packing
from kdmkit.training.tree_objective import TreeObjective

K = 4
VARIABLES = [
    Variable("x", kdm.RBF(1.0), 1),
    Variable("y", kdm.Levels(3, 0.01), ()),
    Variable("z", kdm.RBF(1.0), 2),
    Variable("w", kdm.Levels(3, 0.01), ()),
]


def columns(n: int = 120, seed: int = 0) -> dict[str, Tensor]:
    """Four columns that depend on one hidden state."""
    state = torch.randint(3, (n,), generator=seeded(seed))
    other = torch.randint(3, (n,), generator=seeded(seed + 1))
    noisy = torch.rand(n, generator=seeded(seed + 2)) < 0.2
    return {
        "x": 2.0 * state[:, None] + 0.5 * normal(n, 1, seed=seed + 3),
        "y": torch.where(noisy, other, state),
        "z": torch.stack([-state, state], 1) + 0.5 * normal(n, 2, seed=seed + 4),
        "w": torch.where(noisy, state, other),
    }


def masks(n: int, share: float = 0.6) -> dict[str, Tensor]:
    names = [variable.name for variable in VARIABLES]
    return {name: torch.rand(n, generator=seeded(50 + i)) < share for i, name in enumerate(names)}


def started(data: dict[str, Tensor] | None = None, **options: Any) -> TreeLayer:
    data = columns() if data is None else data
    layer = TreeLayer(VARIABLES, K, dtype=torch.float64, generator=seeded(0))
    return layer.initialize(**data, generator=seeded(1), **options)


def options(n: int = 120, **changes: Any) -> FitOptions:
    return tree_options(n, **{"steps": 12, "batch_size": 40, "device": "cpu", **changes})


def objective(layer: TreeLayer, table: Table, **settings: Any) -> tuple[TreeObjective, Rows]:
    packing = Packing(layer, table)
    rows = packing.rows(table)
    return TreeObjective(layer, packing, rows, n_steps=10, **settings), rows


def same(one: TreeLayer, other: TreeLayer) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_without_regularisation_it_is_the_likelihood():
    data = columns()
    layer = started(data)
    made, rows = objective(layer, Table(data), shrinkage=0.0, smoothing=0.0, masking=0.0)
    close(made(*rows.tensors), -layer.log_prob(**data))
    close(made.eval()(*rows.tensors), -layer.log_prob(**data))


@pytest.mark.parametrize(("fading", "share"), [(2.0, 0.25), (1.0, 0.5), (0.0, 1.0)])
def test_regularisation_fades_with_a_power_of_the_time_left(fading: float, share: float):
    data = columns()
    layer = started(data)
    made, rows = objective(layer, Table(data), masking=0.0, fading=fading)
    plain = -layer.log_prob(**data)
    first = made(*rows.tensors) - plain
    made.step.fill_(5)  # of 10
    close(made(*rows.tensors) - plain, share * first)


def test_missing_cells_are_integrated_out():
    data, seen = columns(), masks(120)
    layer = started(data)
    broken = {**data, "x": torch.where(seen["x"][:, None], data["x"], torch.nan)}
    broken["y"] = torch.where(seen["y"], data["y"], -1)
    made, rows = objective(layer, Table(broken, seen), masking=0.0, shrinkage=0.0, smoothing=0.0)
    close(made(*rows.tensors), -layer.log_prob(**data, observed=seen))


def test_penalties_by_hand():
    data = columns()
    layer = started(data)
    made, rows = objective(layer, Table(data), shrinkage=3.0, smoothing=0.7, masking=0.0)
    found = made(*rows.tensors) + layer.log_prob(**data)
    wanted = 0.0
    edges, states = layer.edge_probs(), layer.state_probs()
    for v in range(3):
        for i in range(K):
            wanted -= 3.0 * float((states[v + 1] * edges[v, i].log()).sum().detach())
    for name in ("y", "w"):
        share = torch.bincount(data[name], minlength=3).double() / 120
        log_probs = layer.kernel(name).probs(layer.components[name]).log().detach()
        wanted -= 0.7 * float((share * log_probs).sum())
    close(found.detach(), torch.full((120,), wanted / 120, dtype=torch.float64))


def test_regularisation_fades():
    """The last step has almost no regularisation, and evaluation has none."""
    data = columns()
    layer = started(data)
    made, rows = objective(layer, Table(data), shrinkage=3.0, smoothing=0.7, masking=0.0)
    excess = [float((made(*rows.tensors) + layer.log_prob(**data)).mean().detach()) for _ in range(10)]
    for step, value in enumerate(excess):
        assert value == pytest.approx(excess[0] * (1 - step / 10) ** 2)


def test_masking_hides_cells():
    data = columns()
    layer = started(data)
    made, rows = objective(layer, Table(data), shrinkage=0.0, smoothing=0.0, masking=0.99)
    torch.manual_seed(0)
    hidden = made(*rows.tensors)
    assert float((hidden.abs() < 1e-9).double().mean()) > 0.8
    assert float(hidden.detach().abs().max()) > 0.1


def test_hidden_cells_fade_where_penalties_stay():
    data = columns()
    layer = started(data)
    plain = {"shrinkage": 0.0, "smoothing": 0.0, "masking": 0.9, "fading": 0.0}
    made, rows = objective(layer, Table(data), **plain)
    made.step.fill_(10)  # of 10
    close(made(*rows.tensors), -layer.log_prob(**data))


def test_default_shrinkage():
    data = columns()
    made, _ = objective(started(data), Table(data))
    assert made.losses.shrinkage.tolist() == [2.5] * (len(data) - 1)
    many, _ = objective(started(columns(900)), Table(columns(900)))
    assert many.losses.shrinkage.unique().item() == pytest.approx(450 * math.sqrt(K) / 900)
    weights = torch.cat([torch.ones(60), torch.zeros(60)])
    weighted, _ = objective(started(data), Table(data, weights=weights))
    assert weighted.losses.n_rows == pytest.approx(60.0)


def test_a_fit_raises_the_likelihood():
    data, held = columns(300), columns(300, seed=100)
    layer = started(data)
    before = float(layer.log_prob(**held).mean().detach())
    history = fit_tree(layer, Table(data), Table(held), options=options(300, steps=30))
    after = float(layer.log_prob(**held).mean().detach())
    assert after > before + 0.1
    assert -after == pytest.approx(min(entry["validation_loss"] for entry in history), abs=1e-9)


def test_a_fit_with_missing_cells_learns_the_dependence():
    """No row has all columns. x and y depend on each other; the fit finds p(y | x)."""
    n = 400
    data, seen = columns(n), masks(n, 0.7)
    layer = TreeLayer(VARIABLES, 12, dtype=torch.float64, generator=seeded(0))
    layer.initialize(**data, observed=seen, generator=seeded(1))
    fit_tree(layer, Table(data, seen), options=options(n, steps=50), shrinkage=0.1)
    held = columns(300, seed=200)
    right = layer(x=held["x"], target="y").probs.argmax(-1) == held["y"]
    assert float(right.double().mean()) > 0.75


def test_weights_are_repetitions():
    """A weight of 2 moves the parameters as a row that occurs twice does."""
    data = columns(40)
    weights = torch.arange(40).double() % 3
    twice = torch.arange(40).repeat_interleave(weights.long())
    repeated = {name: value[twice] for name, value in data.items()}
    settings: dict[str, Any] = {"shrinkage": 0.0, "smoothing": 0.0, "masking": 0.0}
    one, other = started(data), started(data)
    steps = {"max_epochs": 1, "batch_size": 1000, "learning_rate": 0.01, "averaging": None}
    fit_tree(one, Table(data, weights=weights), options=options(40, **steps), **settings)
    fit_tree(other, Table(repeated), options=options(40, **steps), **settings)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        close(a, b, atol=1e-8)


def test_resumes_from_a_checkpoint(tmp_path: Path):
    data, held = columns(), columns(60, seed=9)
    whole = started(data)
    wanted = fit_tree(whole, Table(data), Table(held), options=options())
    cut = started(data)
    packing = Packing(cut, Table(data))
    rows, other = packing.rows(Table(data)), packing.rows(Table(held))
    made = TreeObjective(cut, packing, rows, n_steps=12)
    settings = options(checkpoint_dir=tmp_path)
    regularisation = {
        "shrinkage": None,
        "smoothing": 0.5,
        "masking": 0.2,
        "fading": 2.0,
        "masking_fading": 2.0,
        "centre_step": None,
    }
    identity = {"parents": cut.parents, **regularisation}
    fit(made, rows, other, options=settings, identity=identity, epochs=2)
    resumed = started(data)
    found = fit_tree(resumed, Table(data), Table(held), options=settings)
    assert found == wanted
    assert same(resumed, whole)


def test_a_checkpoint_of_another_tree_is_not_continued(tmp_path: Path):
    data = columns()
    settings = options(checkpoint_dir=tmp_path)
    fit_tree(started(data), Table(data), options=settings)
    parents = {"x": None, "y": "x", "z": "y", "w": "z"}
    layer = TreeLayer(VARIABLES, K, parents=parents, dtype=torch.float64).initialize(**data)
    with pytest.raises(ValueError, match="checkpoint"):
        fit_tree(layer, Table(data), options=settings)


def test_the_same_seed_gives_the_same_fit():
    data = columns()
    one, other, third = started(data), started(data), started(data)
    fit_tree(one, Table(data), options=options(seed=3))
    fit_tree(other, Table(data), options=options(seed=3))
    fit_tree(third, Table(data), options=options(seed=4))
    assert same(one, other)
    assert not same(one, third)


def test_constant_and_empty_columns():
    data = columns()
    data["x"] = torch.full((120, 1), 3.0, dtype=torch.float64)
    data["y"] = torch.full((120,), 1)
    nothing = {"z": torch.zeros(120, dtype=torch.bool), "w": torch.zeros(120, dtype=torch.bool)}
    data["z"] = torch.full((120, 2), math.nan, dtype=torch.float64)
    layer = started(data, observed=nothing)
    history = fit_tree(layer, Table(data, nothing), Table(data, nothing), options=options())
    assert all(math.isfinite(entry["loss"]) for entry in history)
    assert all(value.isfinite().all() for value in layer.state_dict().values())


def test_options_count_steps():
    made = tree_options(1600)
    assert made.max_epochs == math.ceil(1500 / 7)
    assert tree_options(10**7).max_epochs == 1
    assert tree_options(100, learning_rate=0.5).learning_rate == 0.5


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Table({}), "columns: expected data for"),
        (Table({**columns(), "x": torch.zeros(3, 1)}), "columns: expected one or more rows"),
        (Table(columns(), {"y": torch.ones(120)}), r"observed\['y'\]: expected a boolean mask"),
        (Table(columns(), {"q": torch.ones(120).bool()}), "observed: expected variables among"),
        (Table({**columns(), "x": torch.full((120, 1), math.nan)}), "x"),
        (Table({**columns(), "y": torch.full((120,), 7)}), "y"),
        (Table(columns(), weights=-torch.ones(120)), "weights"),
    ],
)
def test_bad_tables(table: Table, message: str):
    with pytest.raises(ValueError, match=message):
        fit_tree(started(), table, options=options())


@pytest.mark.usefixtures("unchecked")
def test_columns_of_another_kind():
    layer = started()
    packing = Packing(layer, Table(columns()))
    with pytest.raises(ValueError, match="z: expected numbers of shape"):
        packing.rows(Table({**columns(), "z": torch.zeros(120, 1)}))
