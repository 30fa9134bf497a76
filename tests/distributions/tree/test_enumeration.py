"""Every query of a tree agrees with the sum over all combinations of states, and so do its gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from distributions.tree.brute import Brute, masks, pair, parameters, rows
from helpers import close, normal, simplex

N = 5
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def agree(query: Callable[[Any], Tensor], twin: Callable[[Brute], Tensor]) -> None:
    """Values, and gradients of a random combination of them by every parameter of the tree."""
    made = parameters()
    tree, brute = pair(made)
    actual, wanted = query(tree), twin(brute)
    close(actual, wanted, **TOLERANCE)
    direction = normal(*wanted.shape, seed=7)
    computed, expected = (
        torch.autograd.grad(
            (result * direction).sum(), made.leaves, None, True, allow_unused=True, materialize_grads=True
        )
        for result in (actual, wanted)
    )
    for one, other in zip(computed, expected, strict=True):
        close(one, other, **TOLERANCE)


X, KEEP = rows(N), masks(N)


def some(names: str) -> dict[str, Tensor]:
    return {name: X[name] for name in names}


def kept(names: str) -> dict[str, Tensor]:
    return {name: KEEP[name] for name in names}


def test_log_prob() -> None:
    agree(lambda tree: tree.log_prob(**X), lambda brute: brute.log_prob(X))


def test_log_prob_of_the_observed_part_of_rows() -> None:
    with_nan = {**X, "a": torch.where(KEEP["a"].unsqueeze(-1), X["a"], torch.nan)}
    agree(lambda tree: tree.log_prob(**with_nan, observed=KEEP), lambda brute: brute.log_prob(X, KEEP))


@pytest.mark.parametrize("names", ["be", "ad", "cd", "bce"])
def test_marginal_of_several_variables(names: str) -> None:
    values = some(names)
    agree(lambda tree: tree.marginal(*names).log_prob(**values), lambda brute: brute.log_prob(values))


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e"])
def test_marginal_of_one_variable_is_a_kdm(name: str) -> None:
    agree(lambda tree: tree.marginal(name).log_prob(X[name]), lambda brute: brute.log_prob({name: X[name]}))


@pytest.mark.parametrize(
    ("given", "target"), [("a", "e"), ("e", "a"), ("be", "c"), ("abde", "c"), ("d", "c")]
)
def test_posterior_weights_of_one_variable(given: str, target: str) -> None:
    node = "cd" if target in "cd" else target

    def wanted(brute: Brute) -> Tensor:
        return brute.log_posterior(node, brute.factors(some(given)))

    agree(lambda tree: tree.infer(**some(given), target=target).log_weights, wanted)


@pytest.mark.parametrize(("given", "target"), [("a", "be"), ("e", "abcd"), ("bc", "ade"), ("ad", "bc")])
def test_conditional_density_of_several_variables(given: str, target: str) -> None:
    def wanted(brute: Brute) -> Tensor:
        return brute.log_prob(some(given + target)) - brute.log_prob(some(given))

    values = some(target)
    agree(lambda tree: tree.infer(**some(given), target=tuple(target)).log_prob(**values), wanted)


def test_missing_evidence() -> None:
    def wanted(brute: Brute) -> Tensor:
        return brute.log_posterior("cd", brute.factors(some("abe"), kept("abe")))

    agree(lambda tree: tree.infer(**some("abe"), observed=kept("abe"), target="c").log_weights, wanted)


@pytest.mark.parametrize("target", ["e", "bd"])
def test_log_evidence(target: str) -> None:
    agree(
        lambda tree: tree.infer(**some("ac"), observed=kept("c"), target=tuple(target)).log_evidence,
        lambda brute: brute.log_prob(some("ac"), kept("c")),
    )


# ---- weighted points


POINTS, WEIGHTS = normal(4, 1, seed=31), simplex(N, 4, seed=32)
INPUT = kdm.KDM(POINTS, WEIGHTS, kdm.RBF(1.0))


def points(brute: Brute) -> tuple[Tensor, dict[str, Tensor]]:
    """log p(x_l, b), `(L, N)`, and the factors of all pieces."""
    factors = brute.factors({"a": POINTS.unsqueeze(1), "b": X["b"]})
    return torch.logsumexp(brute.log_joint(factors), -1), factors


def test_weighted_points_and_one_target() -> None:
    def wanted(brute: Brute) -> Tensor:
        each = brute.log_posterior("e", points(brute)[1])
        return torch.logsumexp(each + WEIGHTS.log().mT.unsqueeze(-1), 0)

    agree(lambda tree: tree.infer(a=INPUT, b=X["b"], target="e").log_weights, wanted)


def test_weighted_points_and_several_targets() -> None:
    def wanted(brute: Brute) -> Tensor:
        alone, factors = points(brute)
        together = torch.logsumexp(brute.log_joint({**factors, **brute.factors(some("de"))}), -1)
        return torch.logsumexp(together - alone + WEIGHTS.log().mT, 0)

    values = some("de")
    agree(lambda tree: tree.infer(a=INPUT, b=X["b"], target=("d", "e")).log_prob(**values), wanted)


def test_log_evidence_of_weighted_points() -> None:
    agree(
        lambda tree: tree.infer(a=INPUT, b=X["b"], target="e").log_evidence,
        lambda brute: torch.logsumexp(points(brute)[0] + WEIGHTS.log().mT, 0),
    )


def test_a_joint_kdm_as_evidence() -> None:
    """Its components tie the points of two variables in different nodes."""
    codes = torch.tensor([0, 1, 2, 1])
    kernels = {"a": kdm.RBF(1.0), "e": kdm.Categorical(3).double()}
    given = kdm.JointKDM({"a": POINTS, "e": codes}, WEIGHTS, kernels)

    def wanted(brute: Brute) -> Tensor:
        at = {"a": POINTS.unsqueeze(1), "e": codes.unsqueeze(1), "b": X["b"]}
        ratio = brute.log_prob({**at, **some("cd")}) - brute.log_prob(at)
        return torch.logsumexp(ratio + WEIGHTS.log().mT, 0)

    agree(lambda tree: tree.infer(given, b=X["b"]).log_prob(**some("cd")), wanted)


# ---- evidence after evidence


def test_evidence_after_evidence_is_evidence_on_both() -> None:
    agree(
        lambda tree: tree.infer(**some("ae")).infer(b=X["b"], target=("c", "d")).log_prob(**some("cd")),
        lambda brute: brute.log_prob(X) - brute.log_prob(some("abe")),
    )


def test_log_evidence_of_later_evidence_is_conditional() -> None:
    agree(
        lambda tree: tree.infer(**some("ae")).infer(b=X["b"], target="c").log_evidence,
        lambda brute: brute.log_prob(some("abe")) - brute.log_prob(some("ae")),
    )


def test_evidence_after_weighted_points() -> None:
    """Σ_l p_l p(b | x_l) p(c | b, x_l) / Σ_l p_l p(b | x_l)."""

    def wanted(brute: Brute) -> Tensor:
        at = {"a": POINTS.unsqueeze(1)}
        alone, with_b, all_ = (brute.log_prob({**at, **some(names)}) for names in ("", "b", "bc"))
        log_p = WEIGHTS.log().mT
        return torch.logsumexp(all_ - alone + log_p, 0) - torch.logsumexp(with_b - alone + log_p, 0)

    agree(lambda tree: tree.infer(a=INPUT).infer(b=X["b"], target="c").log_prob(X["c"]), wanted)


# ---- the forms in which weights come


def test_leading_dimensions_broadcast() -> None:
    tree, brute = pair(parameters())
    values = {**X, "a": normal(4, 1, 1, seed=3)}
    close(tree.log_prob(**values), brute.log_prob(values), **TOLERANCE)
    rho = tree.infer(a=values["a"])
    assert rho.batch_shape == (4, 1)
    wanted = brute.log_prob(values) - brute.log_prob({"a": values["a"]})
    close(rho.log_prob(**some("bcde")), wanted, **TOLERANCE)


def test_second_derivatives() -> None:
    made = parameters()
    tree, brute = pair(made)
    computed = []
    for result in (tree.log_prob(**X).sum(), brute.log_prob(X).sum()):
        (first,) = torch.autograd.grad(result, made.root, create_graph=True)
        computed.append(torch.autograd.grad(first.square().sum(), made.edges["b"], retain_graph=True)[0])
    close(*computed, **TOLERANCE)


def test_functional_gradients() -> None:
    made = parameters()

    def loss(a: Tensor) -> Tensor:
        return pair(replace(made, components={**made.components, "a": a}))[0].log_prob(**X).sum()

    actual = torch.func.grad(loss)(made.components["a"].detach())
    (wanted,) = torch.autograd.grad(pair(made)[1].log_prob(X).sum(), made.components["a"])
    close(actual, wanted, **TOLERANCE)


def test_vmap() -> None:
    made = parameters()
    tree, _ = pair(made)
    tree = kdm.TreeKDM._made(tree.components, tree.kernels, tree._tree, False)

    def log_p(a: Tensor) -> Tensor:
        return tree.log_prob(a=a, b=X["b"], c=X["c"], d=X["d"], e=X["e"])

    with torch.no_grad():
        several = torch.stack([X["a"], X["a"] + 1, X["a"] - 1])
        close(torch.func.vmap(log_p)(several), torch.stack([log_p(a) for a in several]))
