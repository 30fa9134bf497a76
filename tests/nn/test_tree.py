"""Layers that are trees: structure from data, starting values, and the same answers as `TreeKDM`."""

import math

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.nn import TreeLayer, Variable
from kdmkit.nn.pair_information import bin_codes
from kdmkit.nn.tree_cells import TreeCells
from kdmkit.nn.tree_start import _row_keys, learn_tree, spanning_tree

K = 5


def variables() -> list[Variable]:
    return [
        Variable("age", kdm.RBF(1.0), 1),
        Variable("job", kdm.Levels(4, 0.01), ()),
        Variable("place", kdm.RBF(torch.ones(K, 1)), 2),
        Variable("code", kdm.Categorical(3, 0.2), ()),
        Variable("sex", kdm.Levels(4, 0.01), ()),
    ]


def columns(n: int = 40) -> dict[str, Tensor]:
    generator = seeded(1)
    return {
        "age": normal(n, 1, seed=2),
        "job": torch.randint(4, (n,), generator=generator),
        "place": normal(n, 2, seed=3),
        "code": torch.randint(3, (n,), generator=generator),
        "sex": torch.randint(4, (n,), generator=generator),
    }


def scrambled() -> TreeLayer:
    """A tree with random parameters."""
    layer = TreeLayer(variables(), K, dtype=torch.float64, generator=seeded(0))
    layer.initialize(**columns(), generator=seeded(4))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=seeded(5)))
    return layer


def explicit(layer: TreeLayer) -> kdm.TreeKDM:
    """The tree of a layer's parameters, put together by hand."""
    edges = (1 - 1e-6) * layer.edge_logits.detach().softmax(-1) + 1e-6 / K
    names = [name for name, parent in layer.parents.items() if parent is not None]
    return kdm.TreeKDM(
        {name: value.detach() for name, value in layer.components.items()},
        dict(layer.kernels.items()),
        layer.parents,
        layer.root_logits.detach().softmax(-1),
        dict(zip(names, edges, strict=True)),
    )


def drawn_from_a_chain(n: int, flip: float = 0.15) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Columns of different kinds, each a noisy copy of the one before in a shuffled order; and the links."""
    generator = seeded(6)
    names = ["c", "a", "e", "b", "d"]
    states = [torch.randint(4, (n,), generator=generator)]
    for _ in names[1:]:
        changed = torch.rand(n, generator=generator) < flip
        states.append(torch.where(changed, torch.randint(4, (n,), generator=generator), states[-1]))
    result = dict(zip(names, states, strict=True))
    data = {
        name: state if name in "ab" else state[:, None] + 0.2 * normal(n, 1, seed=i)
        for i, (name, state) in enumerate(result.items())
    }
    return {name: data[name] for name in sorted(names)}, dict(zip(names[1:], names, strict=False))


def chain_variables() -> list[Variable]:
    return [
        Variable(name, kdm.Levels(4, 0.01) if name in "ab" else kdm.RBF(1.0), () if name in "ab" else 1)
        for name in "abcde"
    ]


def links(parents: dict[str, str | None]) -> set[frozenset[str]]:
    return {frozenset((name, parent)) for name, parent in parents.items() if parent is not None}


# ---- the distribution


def test_answers_are_those_of_the_tree_of_its_parameters():
    layer, data = scrambled(), columns(7)
    wanted = explicit(layer)
    close(layer.log_prob(**data), wanted.log_prob(**data))
    close(layer(age=data["age"], target="job").probs, wanted.infer(age=data["age"], target="job").probs)
    several = layer(age=data["age"], code=data["code"])
    assert isinstance(several, kdm.TreeKDM)
    assert set(several.variables) == {"job", "place", "sex"}


def test_state_probs_are_marginals():
    layer = scrambled()
    tree = explicit(layer)
    probs = dict(zip(layer.parents, layer.state_probs(), strict=True))
    for name in layer.variables:
        close(probs[name], tree.marginal(name).weights)


@pytest.mark.parametrize("missing", [False, True])
def test_grouped_rows_agree_with_the_tree(missing):
    """The fast path of training and the public answer, values and gradients."""
    layer, data = scrambled(), columns(9)
    data["age"][3:] = data["age"][:1]
    masks = None
    if missing:
        masks = {name: torch.rand(9, generator=seeded(i)) < 0.6 for i, name in enumerate(data)}
    wanted = layer.tree().log_prob(**data, observed=masks)
    cells = TreeCells(layer, data, masks or {})
    codes, numbers = cells.encode(data, masks or {})
    seen = None if masks is None else torch.stack(list(masks.values()), 1)
    scores = cells(layer, codes, numbers, seen, cells.levels.tables(layer.components))
    result = layer.row_log_prob(scores, edges=layer.edge_probs())
    close(result, wanted)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    for one, other in zip(
        torch.autograd.grad(result.sum(), parameters),
        torch.autograd.grad(wanted.sum(), parameters),
        strict=True,
    ):
        close(one, other)


def test_edges_have_a_floor():
    layer = scrambled()
    with torch.no_grad():
        layer.edge_logits[0, 0] = 1e4 * torch.eye(5, dtype=torch.float64)[0]
    edges = layer.edge_probs().detach()
    assert float(edges.min()) >= 0.99e-6 / K
    close(edges.sum(-1), torch.ones_like(edges[..., 0]))
    assert layer.tree().log_prob(**columns()).isfinite().all()


def test_gradients_reach_every_parameter():
    layer, data = scrambled(), columns()
    (-layer.log_prob(**data).sum()).backward()
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert bool((parameter.grad != 0).any()), name


def test_one_variable():
    layer = TreeLayer([Variable("x", kdm.RBF(1.0), 1)], 3, dtype=torch.float64)
    x = normal(20, 1, seed=1)
    layer.initialize(x=x, generator=seeded(1))
    assert layer.parents == {"x": None}
    flat = kdm.KDM(layer.components["x"].detach(), None, layer.kernel("x"))
    close(layer.log_prob(x=x), flat.log_prob(x))


# ---- the structure


def test_the_tree_of_a_chain_is_found():
    data, wanted = drawn_from_a_chain(2000)
    layer = TreeLayer(chain_variables(), 8).initialize(**data, generator=seeded(0))
    assert links(layer.parents) == {frozenset(pair) for pair in wanted.items()}
    # The middle of the chain is the root.
    assert layer.parents["e"] is None


def test_the_tree_is_found_with_missing_cells():
    data, wanted = drawn_from_a_chain(4000)
    seen = {name: torch.rand(4000, generator=seeded(i)) < 0.6 for i, name in enumerate(data)}
    broken = {
        name: torch.where(seen[name].reshape(-1, *[1] * (value.ndim - 1)), value, value.new_tensor(-7))
        for name, value in data.items()
    }
    broken["c"] = torch.where(seen["c"][:, None], data["c"], torch.nan)
    layer = TreeLayer(chain_variables(), 8).initialize(**broken, observed=seen, generator=seeded(0))
    assert links(layer.parents) == {frozenset(pair) for pair in wanted.items()}
    for value in layer.components.values():
        assert value.isfinite().all()


def test_weights_of_rows_choose_the_tree():
    """Rows of weight 0 say nothing; a weight of 2 is a row that occurs twice."""
    data, wanted = drawn_from_a_chain(2000)
    noise = {
        name: value[torch.randperm(2000, generator=seeded(i))] for i, (name, value) in enumerate(data.items())
    }
    both = {name: torch.cat([data[name], noise[name]]) for name in data}
    weights = torch.cat([torch.ones(2000), torch.zeros(2000)])
    layer = TreeLayer(chain_variables(), 8).initialize(**both, sample_weight=weights, generator=seeded(0))
    assert links(layer.parents) == {frozenset(pair) for pair in wanted.items()}
    chosen = layer.components["d"].detach()
    assert bool((chosen == data["d"].to(chosen).mT).any(1).all())


def test_spanning_tree_against_all_trees():
    """The largest sum of information over all labelled trees of five nodes (by Prüfer sequences)."""
    weights = torch.rand(5, 5, dtype=torch.float64, generator=seeded(9))
    weights = (weights + weights.mT).fill_diagonal_(0)
    parents = spanning_tree(weights)
    result = sum(float(weights[i, p]) for i, p in enumerate(parents) if p >= 0)
    best = max(
        sum(float(weights[i, j]) for i, j in _tree_of(code))
        for code in torch.cartesian_prod(*[torch.arange(5)] * 3)
    )
    assert result == pytest.approx(best)


def _tree_of(code: Tensor) -> list[tuple[int, int]]:
    code = code.tolist()
    degree = [1 + code.count(i) for i in range(5)]
    edges = []
    for node in code:
        leaf = next(i for i in range(5) if degree[i] == 1)
        edges.append((leaf, node))
        degree[leaf] -= 1
        degree[node] -= 1
    edges.append(tuple(i for i in range(5) if degree[i] == 1))
    return edges


def test_bins_of_numbers_and_rare_levels():
    number = Variable("x", kdm.RBF(1.0), 1)
    value = torch.cat([torch.zeros(500), torch.linspace(1, 2, 500)])[:, None]
    codes = bin_codes(number, value, None)
    assert codes[:500].unique().numel() == 1
    assert 4 <= codes.unique().numel() <= 16
    rare = torch.cat([torch.zeros(9700), torch.linspace(-1, 2, 300)])[:, None]
    codes = bin_codes(number, rare, None)
    assert codes[:9700].unique().numel() == 1
    assert codes[9700:].unique().numel() >= 6
    assert codes[9700:].bincount().max() < 60
    level = Variable("y", kdm.Levels(100, 0.01), ())
    codes = torch.cat([torch.zeros(50), torch.ones(40), torch.arange(100)]).long()
    binned = bin_codes(level, codes, torch.arange(190) > 0)
    assert binned.unique().tolist() == [-1, *range(16)]
    assert binned[1:50].unique().tolist() == [0]


def test_given_parents_stay():
    parents = {name: None if name == "a" else "a" for name in "abcde"}
    layer = TreeLayer(chain_variables(), 4, parents=parents)
    layer.initialize(**drawn_from_a_chain(50)[0], generator=seeded(0))
    assert layer.parents == parents


def test_the_tree_of_a_wide_table():
    """A random walk over 50 columns: neighbours are linked."""
    generator = seeded(2)
    walk = torch.randn(5000, 50, generator=generator).cumsum(1)
    columns = [Variable(f"v{i}", kdm.RBF(1.0), 1) for i in range(50)]
    parents = learn_tree(columns, {f"v{i}": walk[:, i : i + 1] for i in range(50)}, {}).parents
    neighbours = {frozenset((f"v{i}", f"v{i + 1}")) for i in range(49)}
    assert len(links(parents) & neighbours) >= 47


def test_a_target_has_more_neighbours_where_its_information_counts_more():
    """y follows from x1, x2, x3, which are close to one another: one neighbour is enough for the joint."""
    generator = seeded(3)
    common = torch.randn(4000, 1, generator=generator)
    data = {f"x{i}": common + 0.5 * torch.randn(4000, 1, generator=generator) for i in range(3)}
    score = sum(data.values())[:, 0] + torch.randn(4000, generator=generator)
    data["y"] = (score > 3).long()
    columns = [Variable(f"x{i}", kdm.RBF(1.0), 1) for i in range(3)] + [Variable("y", kdm.Levels(2), ())]
    degree = {
        preference: sum(
            "y" in link
            for link in links(learn_tree(columns, data, {}, targets=["y"], preference=preference).parents)
        )
        for preference in (1.0, 10.0)
    }
    assert degree == {1.0: 1, 10.0: 3}


# ---- starting values


def test_components_start_at_rows():
    data = columns()
    layer = TreeLayer(variables(), K, dtype=torch.float64).initialize(**data, generator=seeded(4))
    ages = layer.components["age"].detach()
    rows = (ages == data["age"].mT).int().argmax(1)
    close(layer.components["place"].detach(), data["place"][rows])
    assert torch.equal(layer.components["code"], data["code"][rows])
    probs = layer.kernel("job").probs(layer.components["job"]).detach()
    assert torch.equal(probs.argmax(-1), data["job"][rows])
    assert float(probs.max()) < 0.85
    diagonal = layer.edge_probs().detach().diagonal(dim1=-2, dim2=-1)
    assert float(diagonal.mean()) > 0.8


def test_rows_of_the_start_are_different():
    """Nine of ten rows are equal: one of them is chosen, and four others."""
    data = columns(50)
    repeated = torch.where(torch.arange(50) < 45, 0, torch.arange(50))
    data = {name: value[repeated] for name, value in data.items()}
    layer = TreeLayer(variables(), K, dtype=torch.float64).initialize(**data, generator=seeded(4))
    assert len(layer.components["age"].detach().unique()) == K
    missing = {name: torch.zeros(50, dtype=torch.bool) for name in ("age", "place")}
    keys = _row_keys(data, missing)
    hidden = torch.stack([data[name] for name in ("job", "code", "sex")], 1).unique(dim=0)
    assert len(keys.unique()) == len(hidden)


def test_smoothed_components_share_the_column():
    """(1 − share) at the chosen level, the rest as often as levels occur; atoms likewise."""
    column = torch.tensor([0, 0, 0, 2])
    kernel = kdm.Levels(3)
    probs = kernel.probs(kernel.smoothed_components(torch.tensor([2]), column, torch.Size(), 0.3))
    close(
        probs, torch.tensor([[0.3 * 3.5 / 5.5, 0.3 * 0.5 / 5.5, 0.7 + 0.3 * 1.5 / 5.5]], dtype=torch.float64)
    )
    numbers = torch.tensor([[0.0], [0.0], [5.0], [7.0]], dtype=torch.float64)
    inflated = kdm.Inflated(kdm.RBF(1.0), [0.0])
    made = inflated.smoothed_components(numbers[2:3], numbers, torch.Size([1]), 0.3)
    atom = inflated.log_mass(kdm.OneOf([0.0]), made).exp()
    close(atom, torch.tensor([0.7 * 0.005 + 0.3 * 0.5], dtype=torch.float64))
    assert float(made[0, -1]) == 5.0


def test_constant_and_empty_columns():
    data = columns()
    data["age"] = torch.full((40, 1), 3.0, dtype=torch.float64)
    data["job"] = torch.full((40,), 2)
    data["place"] = torch.full((40, 2), math.nan, dtype=torch.float64)
    data["sex"] = torch.full((40,), 99)
    nothing = torch.zeros(40, dtype=torch.bool)
    observed = {"place": nothing, "sex": nothing}
    layer = TreeLayer(variables(), K, dtype=torch.float64, generator=seeded(0))
    layer.initialize(**data, observed=observed, generator=seeded(1))
    values = {**data, "place": torch.zeros(40, 2), "sex": torch.zeros(40, dtype=torch.long)}
    log_prob = layer.log_prob(**values, observed=observed)
    assert log_prob.isfinite().all()
    (-log_prob.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_more_states_than_rows():
    data = columns(3)
    layer = TreeLayer(variables(), K, dtype=torch.float64).initialize(**data, generator=seeded(0))
    assert layer.log_prob(**data).isfinite().all()


def test_the_same_generator_gives_the_same_start():
    one, other = (
        TreeLayer(variables(), K, generator=seeded(0)).initialize(**columns(), generator=seeded(3))
        for _ in "ab"
    )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# ---- bad input, copies and files


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"a": "b", "b": "a"}, "parents"),
        ({"a": None, "b": "z"}, "parents: expected parents among"),
        ({"a": None}, "parents: expected a parent, or None, of each"),
        ({"a": None, "b": None}, "parents: expected one root"),
    ],
)
def test_bad_parents(parents, message):
    with pytest.raises(ValueError, match=message):
        TreeLayer([Variable(name, kdm.RBF(1.0), 1) for name in "ab"], 2, parents=parents)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"age": torch.zeros(39, 1)}, ValueError, "columns: expected one or more rows"),
        ({"age": torch.full((40, 1), math.nan)}, ValueError, "age"),
        ({"job": torch.full((40,), 4)}, ValueError, "job"),
        ({"observed": {"job": torch.ones(40)}}, TypeError, r"observed\['job'\]: expected a boolean mask"),
        (
            {"observed": {"job": torch.ones(3).bool()}},
            ValueError,
            r"observed\['job'\]: expected shape \(40,\)",
        ),
        ({"observed": {"who": torch.ones(40).bool()}}, ValueError, "observed: expected variables among"),
        ({"sample_weight": -torch.ones(40)}, ValueError, "sample_weight: expected finite values"),
        ({"sample_weight": torch.ones(4)}, ValueError, r"sample_weight: expected shape \(40,\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_data_changes_nothing(change, error, message):
    layer = scrambled()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(error, match=message):
        layer.initialize(**{**columns(), **change})
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.usefixtures("unchecked")
def test_bad_variables():
    with pytest.raises(ValueError, match="variables: expected one or more"):
        TreeLayer([], 3)
    with pytest.raises(ValueError, match="different names"):
        TreeLayer([Variable("a", kdm.RBF(1.0), 1)] * 2, 3)
    with pytest.raises(ValueError, match="a name other than sample_weight"):
        TreeLayer([Variable("sample_weight", kdm.RBF(1.0), 1)], 3)
    with pytest.raises(ValueError, match=r"columns: expected data for \['age'"):
        scrambled().initialize(age=torch.zeros(3, 1))


def test_save_and_load(tmp_path):
    layer, data = scrambled(), columns()
    kdm.save(layer, tmp_path / "tree")
    loaded = kdm.load(tmp_path / "tree")
    assert loaded.parents == layer.parents
    assert list(loaded.parents) == list(layer.parents)
    assert torch.equal(loaded.log_prob(**data), layer.log_prob(**data))
    assert loaded.config() == layer.config()
    again = TreeLayer.from_config(layer.config())
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.log_prob(**data), layer.log_prob(**data))
