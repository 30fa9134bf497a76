"""Edges with tiny and zero entries, evidence that conflicts with them, and evidence that is impossible."""

import math

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from distributions.tree.brute import pair, parameters, rows
from helpers import close, normal, real
from kdmkit.ops.messages import Tables, collect, summed
from kdmkit.ops.messages.edge_tables import schedule
from kdmkit.ops.messages.plain import collect_plainly

PARENTS, SIZES = [-1, 0, 0, 1, 1], [3, 4, 2, 3, 3]


def messages(
    dtype: torch.dtype, spread: float, sharpness: float, zeros: bool, to: int
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Scores, logits of edges, and log p(z_to, scores) by `collect`."""
    scores = [(spread * normal(5, k, seed=i)).to(dtype).requires_grad_() for i, k in enumerate(SIZES)]
    logits = []
    for node in range(1, 5):
        logit = sharpness * normal(SIZES[PARENTS[node]], SIZES[node], seed=10 + node)
        if zeros:
            logit[0, 1:] = -math.inf
        logits.append(logit.to(dtype).requires_grad_())
    beta, shift = collect(PARENTS, scores, Tables.of([torch.log_softmax(e, -1) for e in logits]), to)
    return scores, logits, beta + shift.unsqueeze(-1)


def exact(scores: list[Tensor], logits: list[Tensor], to: int) -> Tensor:
    """The same by logsumexp along every edge."""
    tables = Tables.of([torch.log_softmax(e, -1) for e in logits])
    tables = Tables(tables.logs, tables.places, (True,) * len(logits))
    beta, shift = collect_plainly(
        schedule(PARENTS, tables, range(5), to, together=False), to, scores, tables.logs
    )
    return beta + shift


@pytest.mark.parametrize("to", [0, 1, 3])
@pytest.mark.parametrize(
    ("spread", "sharpness", "zeros"),
    [
        (1.0, 1.0, False),
        (500.0, 3.0, False),
        (3.0, 2000.0, False),
        (500.0, 2000.0, False),
        (300.0, 500.0, True),
    ],
)
def test_sums_that_underflow_are_exact(spread: float, sharpness: float, zeros: bool, to: int) -> None:
    scores, logits, actual = messages(torch.float64, spread, sharpness, zeros, to)
    wanted = exact(scores, logits, to)
    assert not bool(wanted.isnan().any())
    close(actual, wanted, rtol=1e-12, atol=1e-12)
    direction = torch.where(torch.isneginf(wanted), 0.0, normal(*wanted.shape, seed=9))
    leaves = [*scores, *logits]
    sums = [(torch.where(torch.isneginf(r), 0.0, r) * direction).sum() for r in (actual, wanted)]
    computed, expected = (torch.autograd.grad(total, leaves, retain_graph=True) for total in sums)
    for one, other in zip(computed, expected, strict=True):
        close(one, other, rtol=1e-10, atol=1e-12)


def test_sums_are_computed_again_only_where_they_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []

    def count(relative: Tensor, logs: Tensor, low: Tensor) -> Tensor:
        again.append(int(low.sum()))
        return log_sums(relative, logs, low)

    log_sums = summed._log_sums
    monkeypatch.setattr(summed, "_log_sums", count)
    messages(torch.float64, 500.0, 3.0, False, 0)
    assert not again, "no edge has entries below the threshold"
    messages(torch.float64, 500.0, 2000.0, False, 0)
    assert 0 < sum(again) < 5 * sum(SIZES)


def test_sharp_edges_in_float32() -> None:
    wide = messages(torch.float64, 200.0, 300.0, True, 0)[2]
    narrow = messages(torch.float32, 200.0, 300.0, True, 0)[2]
    assert bool(((narrow.double() - wide).abs() <= 1e-4 * (1 + wide.abs())).all())


def test_conflicting_evidence_has_its_exact_finite_density() -> None:
    """x and y want different states, which the edges forbid up to e^−800."""
    edge = torch.tensor([[0.0, -800.0], [-800.0, 0.0]])
    tree = kdm.TreeKDM(
        {"x": torch.tensor([[0.0], [100.0]]), "y": torch.tensor([[0.0], [100.0]])},
        {"x": kdm.RBF(1.0), "y": kdm.RBF(1.0)},
        {"x": None, "y": "x"},
        log_edge_weights={"y": edge.requires_grad_()},
        validate_args=False,
    )
    log_p = tree.log_prob(x=torch.tensor([[0.0]]), y=torch.tensor([[100.0]]))
    close(log_p, torch.tensor([-800 - math.log(2) - math.log(math.pi)]), rtol=1e-6)
    (slope,) = torch.autograd.grad(log_p.sum(), edge)
    close(slope, torch.tensor([[0.0, 1.0], [0.0, 0.0]]), atol=1e-6)


# ---- impossible evidence


def identity_tree() -> kdm.TreeKDM:
    """Both variables are the same code; no value of one has another of the other."""
    codes, kernel = torch.arange(3), kdm.Categorical(3)
    root = real([0.2, 0.3, 0.5])
    third = real([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9]])
    return kdm.TreeKDM(
        {"x": codes, "y": codes, "z": torch.tensor([0, 1])},
        {"x": kernel, "y": kernel, "z": kdm.Categorical(2)},
        {"x": None, "y": "x", "z": "y"},
        root,
        {"y": torch.eye(3, dtype=torch.float64), "z": third},
    )


def test_impossible_values_have_no_density() -> None:
    log_p = identity_tree().log_prob(x=torch.tensor([0, 2]), y=torch.tensor([1, 2]), z=torch.tensor([0, 0]))
    close(log_p.exp(), real([0.0, 0.05]))


def test_impossible_evidence_leaves_the_prior() -> None:
    tree = identity_tree()
    x, y = torch.tensor([0, 2]), torch.tensor([1, 2])
    rho = tree.infer(x=x, y=y)
    close(rho.log_evidence, real([-math.inf, math.log(0.5)]))
    close(rho.probs, torch.stack([tree.marginal("z").probs, real([0.1, 0.9])]).to(rho.probs.dtype), rtol=1e-6)
    several = tree.infer(
        x=kdm.KDM(torch.tensor([0]), None, kdm.Categorical(3)), y=torch.tensor(1), target=("z",)
    )
    close(several.probs, tree.marginal("z").probs)


def test_impossible_evidence_leaves_the_prior_of_several() -> None:
    tree = identity_tree()
    later = tree.infer(z=torch.tensor([0, 1])).infer(x=torch.tensor(0), target="y")
    close(later.probs, real([[1.0, 0, 0], [1, 0, 0]]).to(later.probs.dtype))
    impossible = tree.infer(x=torch.tensor([0, 0]), y=torch.tensor([1, 0]))
    assert bool(torch.isneginf(impossible.log_evidence[0]))
    pieces = kdm.KDM(torch.tensor([0, 2]), None, kdm.Categorical(3))
    mixed = tree.infer(x=pieces).infer(y=torch.tensor(2), target="z")
    close(mixed.probs, real([0.1, 0.9]).to(mixed.probs.dtype), rtol=1e-6)
    close(mixed.log_evidence.exp(), real(0.5), rtol=1e-6)


def test_several_targets_keep_the_prior_where_evidence_is_impossible() -> None:
    codes = torch.arange(2)
    even = torch.full((2, 2), 0.5, dtype=torch.float64)
    tree = kdm.TreeKDM(
        dict.fromkeys("wxyz", codes),
        dict.fromkeys("wxyz", kdm.Categorical(2)),
        {"w": None, "x": "w", "y": "w", "z": "w"},
        real([0.25, 0.75]),
        {"x": torch.eye(2, dtype=torch.float64), "y": torch.eye(2, dtype=torch.float64), "z": even},
    )
    rho = tree.infer(x=torch.tensor([0, 0]), y=torch.tensor([1, 0]))
    values = {"w": torch.tensor(0), "z": torch.tensor(1)}
    close(rho.log_prob(**values).exp(), real([0.125, 0.5]))
    drawn = rho.sample((500,), generator=torch.Generator().manual_seed(0))
    assert not bool(drawn["w"][:, 1].any())
    assert 0.65 < float(drawn["w"][:, 0].double().mean()) < 0.85


def test_impossible_evidence_has_no_gradient_that_is_nan() -> None:
    root = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    codes, kernel = torch.arange(3), kdm.Categorical(3)
    tree = kdm.TreeKDM(
        {"x": codes, "y": codes, "z": codes},
        dict.fromkeys("xyz", kernel),
        {"x": None, "y": "x", "z": "y"},
        log_root_weights=torch.log_softmax(root, -1),
        edge_weights={"y": torch.eye(3, dtype=torch.float64), "z": torch.full((3, 3), 1 / 3)},
    )
    rho = tree.infer(x=torch.tensor([0, 1]), y=torch.tensor([1, 1]))
    for result in (rho.log_weights, rho.log_evidence):
        finite = torch.where(torch.isneginf(result), 0.0, result).sum()
        assert bool(torch.autograd.grad(finite, root, retain_graph=True)[0].isfinite().all())


def test_far_evidence_still_tells_components_apart() -> None:
    """10⁴ bandwidths away scores are −10⁸: their differences still decide, in float32."""
    tree, _ = pair(parameters())
    x = rows(3)["a"] + 1e4
    wide = tree.infer(a=x, target="e").probs
    narrow = tree.to(torch.float32).infer(a=x.float(), target="e").probs
    close(narrow.double(), wide.double(), rtol=1e-4, atol=1e-4)
