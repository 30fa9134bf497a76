"""Trees on other dtypes, copies of them, and their descriptions."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kdmkit as kdm
from distributions.tree.brute import NODES, PARENTS, pair, parameters, rows
from helpers import close, normal, simplex
from serialize.hostile import changed, contents, write

X = rows(4)
REST = {name: X[name] for name in "bcd"}


def plain() -> kdm.TreeKDM:
    made = parameters()
    for leaf in made.leaves:
        leaf.requires_grad_(False)
    return pair(made)[0]


def conditioned(points: bool = True) -> kdm.TreeKDM:
    bag = kdm.KDM(normal(3, 1, seed=1), simplex(4, 3, seed=2), kdm.RBF(1.0))
    result: Any = plain().infer(a=X["a"] if points else bag, e=X["e"])
    return result


TREES: dict[str, Callable[[], Any]] = {
    "tree": plain,
    "given points": conditioned,
    "given weighted points": lambda: conditioned(False),
    "given more": lambda: plain().infer(a=X["a"]).infer(e=X["e"]),
    "marginal": lambda: plain().marginal("b", "c", "d"),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda tree: pickle.loads(pickle.dumps(tree)),
    "to": lambda tree: tree.to(torch.float64),
}


def answers(tree: Any) -> dict[str, Any]:
    values = X if "a" in tree.variables else REST
    result = {"log_prob": tree.log_prob(**values), "mean": tree.marginal("c").mean}
    if hasattr(tree, "log_evidence"):
        result["log_evidence"] = tree.log_evidence
    return result


@pytest.mark.parametrize("name", TREES)
def test_copies_answer_alike(name: str) -> None:
    tree = TREES[name]()
    wanted = answers(tree)
    for copied in (how(tree) for how in COPIES.values()):
        result = answers(copied)
        assert result.keys() == wanted.keys()
        for key, value in wanted.items():
            close(result[key], value, rtol=0, atol=0)


def test_copies_share_no_memory() -> None:
    tree = plain()
    copied = copy.deepcopy(tree)
    copied.log_edge_weights["b"].fill_(0.0)
    copied.components["a"].zero_()
    assert not torch.equal(tree.log_edge_weights["b"], copied.log_edge_weights["b"])
    assert not torch.equal(tree.components["a"], copied.components["a"])


def test_to_float32_answers_in_float32() -> None:
    narrow = conditioned().to(torch.float32)
    values = {name: x.float() if x.is_floating_point() else x for name, x in REST.items()}
    close(narrow.log_prob(**values).double(), conditioned().log_prob(**REST), rtol=1e-4, atol=1e-4)
    assert narrow.log_root_weights.dtype == torch.float32


def test_inferred_kdms_expand_and_move() -> None:
    rho = plain().infer(a=X["a"], target="c")
    larger = rho.expand((2, 4))
    close(larger.log_prob(X["c"])[1], rho.log_prob(X["c"]))
    close(larger.log_evidence[1], rho.log_evidence)
    close(rho.to(torch.float32).mean.double(), rho.mean, rtol=1e-5, atol=1e-5)
    close(copy.deepcopy(rho).mean, rho.mean)


def test_what_it_is_made_of() -> None:
    tree = plain()
    assert tree.parents == PARENTS
    assert tree.nodes == NODES
    assert tree.n_components == {"a": 3, "b": 4, "cd": 2, "e": 3, "h": 2}
    assert tree.variables == ("a", "b", "c", "d", "e")
    assert tree.event_shapes["c"] == (2,)
    close(tree.root_weights.sum(), torch.ones((), dtype=torch.float64))
    assert set(tree.edge_weights) == {"b", "cd", "e", "h"}
    assert repr(tree).startswith("TreeKDM(batch_shape=(), n_components={'a': 3,")
    assert set(tree.marginal("a", "b").nodes) == {"a", "b"}
    between: Any = tree.marginal("a", "e")
    assert between.nodes == {"a": ("a",), "cd": (), "e": ("e",)}


# ---- files


@pytest.mark.parametrize("name", TREES)
def test_saved_trees_answer_alike(name: str, tmp_path: Path) -> None:
    tree = TREES[name]()
    kdm.save(tree, tmp_path / "tree")
    loaded = kdm.load(tmp_path / "tree", kind=kdm.TreeKDM)
    wanted, result = answers(tree), answers(loaded)
    for key, value in wanted.items():
        close(result[key], value, rtol=1e-12)
    assert loaded.parents == tree.parents
    assert loaded.nodes == tree.nodes


TAMPERED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a cycle": (("parents", "cd"), "e"),
    "two roots": (("parents", "b"), None),
    "an unknown parent": (("parents", "b"), "w"),
    "a number for a parent": (("parents", "b"), 3),
    "parents in a list": (("parents",), ["a", "b"]),
    "no parents": (("parents",), ...),
    "a variable in two nodes": (("nodes", "h"), ["a"]),
    "a node without its variable": (("nodes", "b"), []),
    "nodes that are text": (("nodes", "cd"), "cd"),
    "a number for nodes": (("nodes", "b"), 4),
    "another kernel": (("kernels", "b", "n"), 2),
    "another class": (("class",), "JointKDM"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "tree"
    kdm.save(conditioned(False), path)
    return path


@pytest.mark.parametrize("case", TAMPERED)
def test_tampered_descriptions_raise(case: str, saved: Path, tmp_path: Path) -> None:
    config, tensors = contents(saved)
    place, value = TAMPERED[case]
    write(tmp_path / "bad", changed(config, place, value), tensors)
    with pytest.raises(ValueError, match=r": expected .*, got "):
        kdm.load(tmp_path / "bad")


WEIGHTS = ["log_root_weights", "log_edge_weights.cd", "evidence_log_weights"]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, how) for name in WEIGHTS for how in ("shape", "nan", "sum", "missing")),
        *(("evidence.a", how) for how in ("shape", "nan")),
        *(("log_evidence", how) for how in ("shape", "nan")),
    ],
)
def test_tampered_tensors_raise(name: str, how: str, saved: Path, tmp_path: Path) -> None:
    config, tensors = contents(saved)
    tensor = tensors.pop(name)
    if how == "shape":
        tensors[name] = tensor[..., :1].contiguous()
    elif how != "missing":
        tensors[name] = tensor + (torch.nan if how == "nan" else 1.0)
    write(tmp_path / "bad", config, tensors)
    with pytest.raises(ValueError, match=r": expected .*, got "):
        kdm.load(tmp_path / "bad")
