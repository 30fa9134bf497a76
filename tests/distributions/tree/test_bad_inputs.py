"""What is no tree, no table of weights or no evidence raises an error that names the argument."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdmkit as kdm
from helpers import real

COMPONENTS = {"x": torch.zeros(2, 1), "y": torch.tensor([0, 1, 2]), "z": torch.tensor([0, 1])}
KERNELS = {"x": kdm.RBF(0.5), "y": kdm.Categorical(3), "z": kdm.Categorical(2)}
PARENTS = {"x": None, "y": "x", "z": "x"}
EDGES = {"y": torch.full((2, 3), 1 / 3), "z": torch.full((2, 2), 1 / 2)}


def make(**changes: Any) -> kdm.TreeKDM:
    parts: dict[str, Any] = {
        "components": COMPONENTS,
        "kernels": KERNELS,
        "parents": PARENTS,
        "edge_weights": EDGES,
    }
    return kdm.TreeKDM(**(parts | changes))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a cycle": ({"parents": {"x": None, "y": "z", "z": "y"}}, "parents: expected a tree, got a cycle"),
    "a node that is its own parent": ({"parents": {"x": None, "y": "y", "z": "x"}}, "parents: .* a cycle"),
    "no root": ({"parents": {"x": "z", "y": "x", "z": "y"}}, "parents: .* a cycle"),
    "two roots": ({"parents": {"x": None, "y": None, "z": "x"}}, "parents: expected one root"),
    "an unknown parent": ({"parents": {"x": None, "y": "w", "z": "x"}}, "parents: expected parents among"),
    "no nodes": ({"parents": {}}, "parents: expected one or more nodes"),
    "a variable without a node": (
        {"parents": {"x": None, "y": "x"}},
        "parents, nodes: expected",
    ),
    "a variable twice": (
        {"nodes": {"x": ("x", "y"), "y": ("y",), "z": ("z",)}},
        "nodes: expected every variable in one node",
    ),
    "other nodes": ({"nodes": {"x": ("x",), "y": ("y", "z")}}, "nodes: expected the nodes of parents"),
    "unequal numbers in one node": (
        {"parents": {"n": None}, "nodes": {"n": ("x", "y", "z")}, "edge_weights": {}},
        "components: expected the same number",
    ),
    "an edge too few": ({"edge_weights": {"y": EDGES["y"]}}, "edge_weights: expected weights of every node"),
    "an edge of the root": ({"edge_weights": {**EDGES, "x": EDGES["z"]}}, "edge_weights: expected weights"),
    "no edges": ({"edge_weights": None}, "edge_weights: expected weights of every node"),
    "an edge transposed": (
        {"edge_weights": {**EDGES, "y": EDGES["y"].mT}},
        r"edge_weights\['y'\]: expected shape \(..., 2, 3\)",
    ),
    "an edge that is a vector": (
        {"edge_weights": {**EDGES, "y": torch.full((3,), 1 / 3)}},
        r"edge_weights\['y'\]: expected shape",
    ),
    "rows that do not sum to 1": (
        {"edge_weights": {**EDGES, "z": torch.full((2, 2), 0.4)}},
        r"edge_weights\['z'\]: expected non-negative values that sum to 1",
    ),
    "columns that sum to 1": (
        {"edge_weights": {**EDGES, "z": torch.tensor([[0.9, 0.8], [0.1, 0.2]])}},
        r"edge_weights\['z'\]: .* sum",
    ),
    "a negative entry": (
        {"edge_weights": {**EDGES, "z": torch.tensor([[1.5, -0.5], [0.5, 0.5]])}},
        r"edge_weights\['z'\]: expected non-negative",
    ),
    "NaN in an edge": (
        {"edge_weights": {**EDGES, "z": torch.tensor([[torch.nan, 0.5], [0.5, 0.5]])}},
        r"edge_weights\['z'\]: expected finite",
    ),
    "logarithms of other sums": (
        {"edge_weights": None, "log_edge_weights": EDGES},
        r"log_edge_weights\['y'\]: expected logarithms",
    ),
    "both forms": ({"log_edge_weights": EDGES}, "edge_weights: expected either"),
    "root weights of another length": (
        {"root_weights": torch.full((3,), 1 / 3)},
        "root_weights: expected shape",
    ),
    "root weights that sum to 2": ({"root_weights": torch.ones(2)}, "root_weights: .* sum to 1"),
    "a latent root without weights": (
        {
            "parents": {"h": None, "x": "h", "y": "x", "z": "x"},
            "nodes": {"h": (), "x": ("x",), "y": ("y",), "z": ("z",)},
            "edge_weights": {**EDGES, "x": torch.full((2, 2), 0.5)},
        },
        "root_weights: expected weights, since the root 'h'",
    ),
    "a reserved name": (
        {"components": {"target": COMPONENTS["x"]}, "kernels": {"target": KERNELS["x"]}},
        "components: expected variables not named",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_tree(case: str) -> None:
    changes, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"parents": ["x", "y"]}, {"edge_weights": [EDGES["y"]]}, {"nodes": ["x"]}, {"kernels": {"x": "rbf"}}],
)
def test_what_has_another_type(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        make(**changes)


X, Y, Z = torch.zeros(4, 1), torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 1, 0])

QUERIES: dict[str, tuple[Callable[[kdm.TreeKDM], Any], str]] = {
    "a value too few": (lambda t: t.log_prob(x=X, y=Y), "values: expected all of"),
    "an unknown variable": (lambda t: t.log_prob(x=X, y=Y, z=Z, w=Z), "values: expected variables among"),
    "an unknown code": (lambda t: t.log_prob(x=X, y=Y + 1, z=Z), "y: expected labels in"),
    "NaN": (lambda t: t.log_prob(x=X + torch.nan, y=Y, z=Z), "x: expected finite values"),
    "batches that differ": (lambda t: t.log_prob(x=X[:3], y=Y, z=Z), "leading dimensions that broadcast"),
    "a mask of no value": (
        lambda t: t.infer(x=X, observed={"y": Y == 0}),
        "observed: expected variables with",
    ),
    "no evidence": (lambda t: t.infer(target="x"), "evidence: expected at least one"),
    "evidence on everything": (
        lambda t: t.infer(x=X, y=Y, z=Z),
        "evidence: expected a variable left",
    ),
    "a target with evidence": (lambda t: t.infer(x=X, target="x"), "target: expected variables without"),
    "an unknown target": (lambda t: t.marginal("w"), "target: expected variables among"),
    "a target twice": (lambda t: t.marginal("x", "x"), "target: expected one or more different"),
    "low > high": (lambda t: t.infer(x=kdm.Interval(1, 0)), "low ≤ high"),
    "an empty set": (lambda t: t.infer(y=kdm.OneOf([])), "values: expected one or more"),
    "an unknown level": (lambda t: t.infer(y=kdm.OneOf([0, 7])), "y: "),
    "one variable with itself": (lambda t: t.mutual_information("x", "x"), "a, b: expected two variables"),
    "a mode given weighted points": (
        lambda t: t.infer(y=t.marginal("y")).mode(),
        "evidence of the tree: expected points or regions",
    ),
    "information of a batch": (
        lambda t: t.infer(x=X).mutual_information("y", "z"),
        "mutual_information: expected a tree without a batch",
    ),
}


@pytest.mark.parametrize("case", QUERIES)
def test_what_is_no_query(case: str) -> None:
    query, message = QUERIES[case]
    with pytest.raises(ValueError, match=message):
        query(make())


def test_log_evidence_needs_evidence() -> None:
    for rho in (make(), make().marginal("x"), make().marginal("x", "y")):
        with pytest.raises(AttributeError, match="log_evidence: only a"):
            _ = rho.log_evidence


def test_a_kdm_is_no_evidence_for_a_mode() -> None:
    with pytest.raises(TypeError, match="y: expected points or a region"):
        make().mode(y=make().marginal("y"))


def test_zeros_are_legal_weights() -> None:
    edges = {"y": real([[1, 0, 0], [0, 0.5, 0.5]]), "z": real([[0, 1], [1, 0]])}
    log_p = make(root_weights=real([1, 0]), edge_weights=edges).log_prob(x=X, y=Y, z=Z)
    assert torch.isneginf(log_p).tolist() == [True, True, True, True]
    log_p = make(root_weights=real([1, 0]), edge_weights=edges).log_prob(x=X, y=Y, z=1 - Z)
    assert torch.isneginf(log_p).tolist() == [False, True, True, False]
