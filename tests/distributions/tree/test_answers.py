"""Draws, completions, mutual information, regions, and blocks of rows."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from distributions.tree.brute import Brute, masks, pair, parameters, rows
from helpers import close, real, seeded
from kdmkit.distributions.tree import sources

X = rows(6)


@pytest.fixture(scope="module")
def both() -> tuple[kdm.TreeKDM, Brute]:
    with torch.no_grad():
        return pair(parameters())


# ---- draws


def test_draws_have_the_probabilities_of_the_tree(both: tuple[kdm.TreeKDM, Brute]) -> None:
    tree, brute = both
    n = 20_000
    with torch.no_grad():
        drawn = tree.sample((n,), generator=seeded(0))
        assert drawn["c"].shape == (n, 2)
        counts = torch.zeros(3, 3).index_put((drawn["b"], drawn["e"]), torch.ones(()), accumulate=True) / n
        b, e = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
        wanted = brute.log_prob({"b": b, "e": e}).exp()
    error = (wanted * (1 - wanted) / n).sqrt()
    assert bool(((counts - wanted).abs() < 5 * error).all())


def test_posterior_draws_are_joint(both: tuple[kdm.TreeKDM, Brute]) -> None:
    """Pairs of variables given evidence, with weighted points, have the conditional probabilities."""
    tree, _ = both
    n = 20_000
    bag = kdm.KDM(real([[-1.0], [0.5]]), real([[0.3, 0.7], [0.9, 0.1]]), kdm.RBF(1.0))
    with torch.no_grad():
        rho = tree.infer(a=bag, target=("b", "e"))
        drawn = rho.sample((n,), generator=seeded(1))
        b, e = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
        wanted = rho.log_prob(b=b.unsqueeze(-1), e=e.unsqueeze(-1)).exp()
    assert drawn["b"].shape == (n, 2)
    for i in range(2):
        counts = torch.zeros(3, 3).index_put(
            (drawn["b"][:, i], drawn["e"][:, i]), torch.ones(()), accumulate=True
        )
        error = (wanted[..., i] * (1 - wanted[..., i]) / n).sqrt()
        assert bool(((counts / n - wanted[..., i]).abs() < 5 * error).all())


def test_the_same_seed_gives_the_same_draws(both: tuple[kdm.TreeKDM, Brute]) -> None:
    first, second = (both[0].sample((4,), generator=seeded(3)) for _ in range(2))
    assert all(bool((first[name] == second[name]).all()) for name in first)


def test_states_of_weight_zero_are_never_drawn() -> None:
    edges = {"y": real([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])}
    codes = {"x": torch.arange(2), "y": torch.arange(3)}
    kernels = {"x": kdm.Categorical(2), "y": kdm.Categorical(3)}
    tree = kdm.TreeKDM(codes, kernels, {"x": None, "y": "x"}, real([0.4, 0.6]), edges)
    drawn = tree.sample((5000,), generator=seeded(0))
    assert bool(((drawn["x"] == 0) == (drawn["y"] == 1)).all())


# ---- the most probable completion


def best_by_enumeration(brute: Brute, factors: dict[str, Tensor]) -> Tensor:
    return brute.log_joint(factors).amax(-1)


@pytest.mark.parametrize("given", ["", "a", "be", "abcde"])
def test_mode_maximises_values_and_indices(both: tuple[kdm.TreeKDM, Brute], given: str) -> None:
    tree, brute = both
    with torch.no_grad():
        result = tree.mode(**{name: X[name] for name in given})
        factors = brute.factors({name: X[name] for name in given})
        for name in set("abcde") - set(given):
            kernel, c = tree.kernels[name], tree.components[name]
            factors[name] = kernel.log_overlap(kernel.mode(c), c) + kernel.log_norm(c)
        close(result.log_prob, best_by_enumeration(brute, factors))
        log_p = sum(brute._edge(node, result.indices) for node in brute.parents)
        for name, factor in brute.factors(result.values).items():
            index = result.indices["cd" if name in "cd" else name]
            log_p = log_p + factor.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        close(log_p, result.log_prob)


def test_mode_completes_masked_cells(both: tuple[kdm.TreeKDM, Brute]) -> None:
    keep = masks(6)
    with torch.no_grad():
        result = both[0].mode(**X, observed=keep)
        for i in range(6):
            evidence = {name: X[name][i] for name in X if keep[name][i]}
            single = both[0].mode(**evidence)
            close(result.log_prob[i], single.log_prob)
            for name, value in single.values.items():
                label = value.argmax(-1) if name == "d" and value.ndim else value
                assert bool((result.values[name][i] == label).all()), (i, name)


def test_mode_with_a_region(both: tuple[kdm.TreeKDM, Brute]) -> None:
    result = both[0].mode(b=kdm.OneOf([0, 2]))
    assert "b" not in result.values
    assert set(result.indices) == {"a", "b", "cd", "e", "h"}


@pytest.mark.parametrize("given", ["a", "be"])
def test_mode_of_a_tree_with_evidence(both: tuple[kdm.TreeKDM, Brute], given: str) -> None:
    """Evidence before and evidence now complete to the same values; the probability is conditional."""
    evidence = {name: X[name] for name in given}
    with torch.no_grad():
        tree = both[0].marginal(*"abcde")  # without the latent leaf, which evidence sums out
        earlier = tree.infer(**evidence)
        result, whole = earlier.mode(), tree.mode(**evidence)
        for node, index in result.indices.items():
            assert bool((index == whole.indices[node]).all())
        close(result.log_prob, whole.log_prob - earlier.log_evidence)
        more = earlier.mode(c=X["c"])
        close(more.log_prob, tree.mode(**evidence, c=X["c"]).log_prob - earlier.log_evidence)


# ---- marginals


@pytest.mark.parametrize("given", ["", "a", "be"])
def test_marginals_agree_with_single_ones(both: tuple[kdm.TreeKDM, Brute], given: str) -> None:
    tree = both[0].infer(**{name: X[name] for name in given}) if given else both[0]
    alone = {name: tree.marginal(name) for name in tree.variables}
    with torch.no_grad():
        result = tree.marginals()
        for name, rho in result.items():
            close(rho.log_weights, alone[name].log_weights, rtol=1e-7)
            if given:
                close(rho.log_evidence, alone[name].log_evidence)
    assert list(tree.marginals("d", "c")) == ["d", "c"]
    assert tree.marginals("c")["c"].log_weights.requires_grad == alone["c"].log_weights.requires_grad


# ---- mutual information


def test_information_between_indices_is_exact(both: tuple[kdm.TreeKDM, Brute]) -> None:
    tree, brute = both
    with torch.no_grad():
        joint = brute.log_joint({}).exp()
        table = torch.zeros(4, 3, dtype=torch.float64)
        sizes = brute.sizes
        for p, z in zip(joint, itertools.product(*(range(k) for k in sizes.values())), strict=True):
            table[z[1], z[3]] += p
        wanted = (table * (table / (table.sum(0) * table.sum(1, keepdim=True))).log()).sum()
        result = tree.mutual_information("b", "e", of="indices")
    assert result.method == "exact"
    assert result.value == pytest.approx(float(wanted), rel=1e-9)
    assert tree.mutual_information("c", "d", of="indices").value == pytest.approx(
        float(-(tree.marginal("c").weights * tree.marginal("c").log_weights).sum())
    )


def test_information_between_labels_is_exact(both: tuple[kdm.TreeKDM, Brute]) -> None:
    tree, brute = both
    with torch.no_grad():
        b, d = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
        table = brute.log_prob({"b": b, "d": d}).exp()
    wanted = (table * (table / (table.sum(0) * table.sum(1, keepdim=True))).log()).sum()
    result = tree.mutual_information("b", "d")
    assert (result.method, result.standard_error) == ("exact", 0.0)
    assert result.value == pytest.approx(float(wanted), rel=1e-6)


def test_information_by_draws_has_an_error_that_holds() -> None:
    """Well separated components: the variables know the indices."""
    edge = real([[0.9, 0.1], [0.2, 0.8]])
    c = real([[-10.0], [10.0]])
    tree = kdm.TreeKDM(
        {"x": c, "y": c}, dict.fromkeys("xy", kdm.RBF(1.0)), {"x": None, "y": "x"}, None, {"y": edge}
    )
    wanted = tree.mutual_information("x", "y", of="indices").value
    result = tree.mutual_information("x", "y", n_samples=4000, generator=seeded(0))
    assert result.method == "monte carlo"
    assert 0 < result.standard_error < 0.02
    assert abs(result.value - wanted) < 4 * result.standard_error


# ---- regions


def test_regions_as_evidence_and_values(both: tuple[kdm.TreeKDM, Brute]) -> None:
    tree, brute = both
    interval, codes = kdm.Interval(real([[-1.0], [0.0]]), real([[0.5], [math.inf]])), kdm.OneOf([0, 2])
    with torch.no_grad():
        factors = {"a": brute.score("a", interval), "b": brute.score("b", codes)}
        close(
            tree.infer(a=interval, b=codes, target="e").log_weights,
            brute.log_posterior("e", factors),
            rtol=1e-8,
            atol=1e-8,
        )
        wanted = torch.logsumexp(brute.log_joint(factors), -1)
        close(tree.infer(a=interval, b=codes).log_evidence, wanted, rtol=1e-8)
        close(tree.marginal("a", "b").log_prob(a=interval, b=codes), wanted, rtol=1e-8)


def test_regions_of_everything_change_nothing(both: tuple[kdm.TreeKDM, Brute]) -> None:
    rho = both[0].infer(a=kdm.Interval(None, None), b=kdm.OneOf([0, 1, 2]))
    close(rho.log_evidence, torch.zeros((), dtype=torch.float64), atol=1e-9)


# ---- blocks


@pytest.mark.parametrize("gradients", [False, True])
def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch, gradients: bool) -> None:
    made = parameters()
    tree, _ = pair(made)
    values = rows(12)
    queries: list[Any] = [
        lambda: tree.log_prob(**values, observed=masks(12)),
        lambda: tree.infer(a=values["a"], e=values["e"]).log_prob(**{n: values[n] for n in "bcd"}),
        lambda: tree.infer(a=values["a"], e=values["e"], target="c").log_weights.sum(-1),
    ]
    wanted = [query() for query in queries]
    monkeypatch.setattr(sources, "_NUMBERS", 128)
    monkeypatch.setattr(sources, "_NUMBERS_WITH_GRADIENTS", 64)
    for query, whole in zip(queries, wanted, strict=True):
        with torch.set_grad_enabled(gradients):
            blocks = query()
        close(blocks, whole, rtol=1e-12)
        if gradients:
            result, expected = (
                torch.autograd.grad(r.sum(), made.root, retain_graph=True)[0] for r in (blocks, whole)
            )
            close(result, expected, rtol=1e-10)


def test_information_given_evidence(both: tuple[kdm.TreeKDM, Brute]) -> None:
    """Between labels exact, by the table of their probabilities given the evidence."""
    tree, _ = both
    with torch.no_grad():
        given = {"a": X["a"][0]}
        b, d = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
        posterior = tree.infer(target=("b", "d"), **given)
        table = posterior.log_prob(b=b.flatten(), d=d.flatten()).exp().reshape(3, 3)
        wanted = (table * (table / (table.sum(0) * table.sum(1, keepdim=True))).log()).sum()
        result = posterior.mutual_information("b", "d")
        assert result.method == "exact"
        assert result.value == pytest.approx(float(wanted), rel=1e-6)
        drawn = tree.infer(target=("c", "e"), **given).mutual_information("c", "e", generator=seeded(0))
        assert drawn.method == "monte carlo"
        assert drawn.standard_error < 0.1


def test_draws_in_blocks_are_the_same(both: tuple[kdm.TreeKDM, Brute], monkeypatch: Any) -> None:
    with torch.no_grad():
        posterior = both[0].infer(target=("c", "e"), a=X["a"], b=X["b"])
        whole = posterior.sample((4000,), generator=seeded(0))
        monkeypatch.setattr("kdmkit.distributions.tree.sources._NUMBERS", 8)
        blocks = posterior.sample((4000,), generator=seeded(1))
    assert blocks["e"].shape == whole["e"].shape
    error = 4.5 * (2 * whole["c"].double().var(0) / 4000).sqrt()
    assert ((blocks["c"].double().mean(0) - whole["c"].double().mean(0)).abs() <= error).all()
