"""Few dimensions: products about local centres, differences where groups are wide, and staged memories."""

import math

import pytest
import torch
from torch import Tensor

import bounds
from kdmkit.ops import SquaredDistance, attend, log_mix
from kdmkit.ops.blocks import block_order
from kdmkit.ops.terms import robust_centre
from kdmkit.ops.triton import forward, prepared_sum, staging
from kdmkit.ops.triton.prepared_sum import PreparedSum
from kdmkit.ops.triton.staging_kernels import GROUP

N, M, D, V = 30, 300, 8, 3


@pytest.fixture(autouse=True)
def always_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LEAST_LOCAL_WORK", 0)


def draw(kind: str, *, m: int = M, d: int = D) -> list[Tensor]:
    """Queries, components, log-weights, values and scale; half of the queries lie on components."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    c, scale = normal(m, d), torch.ones(1, 1)
    if kind == "far from the origin":
        c += 1000
    elif kind == "clusters":
        # Two clusters of whole groups and some points between them.
        c[: m // 3] += 700
        c[m // 3 : 2 * m // 3] -= 900
    elif kind == "small bandwidths":
        scale *= 40
    elif kind == "large bandwidths":
        scale *= 0.01
    elif kind == "a bandwidth per dimension":
        scale = torch.rand(1, d, generator=g) + 0.5
    x = normal(N, d)
    x[::2] = c[torch.randint(m, (len(x[::2]),), generator=g)] + 0.1 * x[::2] / scale
    x[-1] *= 1e4
    return [x, c, torch.log_softmax(normal(m), 0), torch.rand(m, V, generator=g), scale]


def truth(x: Tensor, c: Tensor, log_weights: Tensor, values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    x, c, log_weights, values, scale = (t.double() for t in (x, c, log_weights, values, scale))
    term = SquaredDistance(x, c, scale)
    return attend(term, log_weights, values, backend="reference")


def spread(x: Tensor, c: Tensor) -> Tensor:
    """Sums of absolute values behind each squared distance of points in units of the bandwidth, in float64.

    In many dimensions distances are expanded about one centre. In few it is the middle of a group's box, if
    the group is compact: with a radius r, ‖x‖ + ‖c‖ ≤ ‖x − c‖ + 2r. Other groups are compared by differences.
    """
    if x.shape[1] > staging.DIRECT_DIMENSIONS:
        return bounds.spread_about(robust_centre(c), x, c)
    distances = torch.cdist(x, c, compute_mode="donot_use_mm_for_euclid_dist")
    radii = torch.zeros(len(c), dtype=x.dtype)
    for group in block_order(c, GROUP.value).split(GROUP.value):
        low, high = c[group].aminmax(dim=0)
        squared = (c[group] - (low + high) / 2).square().sum(-1).max()
        radii[group] = squared.sqrt() if squared <= forward.LARGEST_SQUARED_RADIUS else 0.0
    return (distances + 2 * radii).square()


def scores_with_error(x: Tensor, c: Tensor, log_weights: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Scores in float64, and bounds of their errors in float32."""
    x, c, log_weights, scale = (t.double() for t in (x, c, log_weights, scale))
    error = bounds.distance_error(x.shape[1], spread(x * scale, c * scale))
    return SquaredDistance(x, c, scale).exact() + log_weights, error


def assert_exact(
    got: tuple[Tensor, Tensor], x: Tensor, c: Tensor, log_weights: Tensor, values: Tensor, scale: Tensor
) -> None:
    """Logsumexps are exact to float32; averages are, except far from all components."""
    averages, lse = truth(x, c, log_weights, values, scale)
    scores, error = scores_with_error(x, c, log_weights, scale)
    assert ((got[1] - lse).abs() <= bounds.log_mix_error(scores, error)).all()
    near = lse > -1e3
    assert ((got[0] - averages).abs() <= bounds.average_error(scores, error, values))[near].all()


KINDS = [
    "far from the origin",
    "clusters",
    "small bandwidths",
    "large bandwidths",
    "a bandwidth per dimension",
]


@pytest.mark.parametrize("kind", KINDS)
def test_products_about_local_centres_are_exact_to_float32(kind: str) -> None:
    operands = draw(kind)
    x, c, log_weights, values, scale = operands
    staged = forward.stage_in_segments(False, x, c, log_weights, values, scale, local=True)
    result = {part.plan.local for part, _ in staged.parts(N)}
    wanted = {"clusters": {True, False}, "small bandwidths": {False}}
    assert result == wanted.get(kind, {True})
    got = attend(SquaredDistance(x, c, scale), log_weights, values, backend="triton")
    assert_exact(got, *operands)


def test_a_metric_has_local_centres_too() -> None:
    x, c, log_weights, values, _ = draw("plain")
    factor = torch.eye(D) + 0.3 * torch.ones(D, D).tril(-1)
    got = attend(SquaredDistance(x, c, factor, metric=True), log_weights, values, backend="triton")
    exact = factor.double().T
    assert_exact(got, x.double() @ exact, c.double() @ exact, log_weights, values, torch.ones(1, 1))


def test_gradients_after_a_local_forward_pass() -> None:
    x, c, log_weights, values, scale = draw("plain", m=100, d=2)
    gradients = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "reference")):
        leaves = [t.to(dtype).requires_grad_() for t in (x[:-1], c, log_weights, values, scale)]
        term = SquaredDistance(leaves[0], leaves[1], leaves[4])
        averages, lse = attend(term, leaves[2], leaves[3], backend=backend)  # type: ignore[arg-type]
        gradients.append(torch.autograd.grad(lse.mean() + averages.square().sum(), leaves))
    # Weights are exponentials of scores, forward and backward. Entries are sums of terms that cancel.
    of_weights = bounds.log_mix_error(*scores_with_error(x[:-1], c, log_weights, scale)).max().item()
    tolerance = 2 * of_weights + bounds.rounding(N + len(c))
    for mine, reference in zip(*gradients, strict=True):
        assert (mine - reference).abs().max() <= tolerance * reference.abs().max()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_points_and_components_that_are_not_finite() -> None:
    x, c, log_weights, values, scale = draw("plain")
    x[0], x[1], c[0] = math.inf, 1e30, -1e30
    log_weights[1] = -math.inf
    averages, lse = attend(SquaredDistance(x, c, scale), log_weights, values, backend="triton")
    assert (lse[:2] == -math.inf).all()
    assert (averages[:2] == 0).all()
    kept = log_mix(SquaredDistance(x[2:], c[2:], scale), log_weights[2:], backend="reference")
    torch.testing.assert_close(lse[2:], kept)


@pytest.mark.parametrize(
    ("d", "kind", "room"), [(D, "clusters", math.inf), (20, "plain", 0), (2, "plain", 0)]
)
def test_a_memory_answers_exactly(d: int, kind: str, room: float) -> None:
    x, c, log_weights, values, scale = draw(kind, d=d)
    kept = PreparedSum(c, log_weights, scale, metric=False)
    staged = kept.values(values.__getitem__, V, most_bytes=room)
    assert staged is not None
    assert (staged.staged is None) == (room == 0)
    got = kept.reduce(x, staged)
    assert_exact(got, x, c, log_weights, values, scale)
    bytes_kept = prepared_sum.bytes_per_component(d) * staging.padded(M)
    assert kept.n_bytes <= 1.05 * bytes_kept


def test_a_memory_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many points read values that are staged in every call, segment by segment."""
    x, c, log_weights, values, scale = draw("plain")
    monkeypatch.setattr(prepared_sum, "slots_of", lambda device: 0)
    monkeypatch.setattr(staging, "SEGMENT_BYTES", 1)
    kept = PreparedSum(c, log_weights, scale, metric=False, sorted_together=256)
    assert [part.components.rows for part in kept.parts] == [256, 128]
    for room in (math.inf, 0):
        staged = kept.values(values.__getitem__, V, most_bytes=room)
        assert_exact(kept.reduce(x, staged), x, c, log_weights, values, scale)


def test_too_many_values_for_a_memory_of_few_dimensions() -> None:
    _, c, log_weights, _, scale = draw("plain")
    kept = PreparedSum(c, log_weights, scale, metric=False)
    assert kept.values(torch.ones(M, 17).__getitem__, 17, most_bytes=math.inf) is None


def test_lower_precision_of_products_leaves_few_dimensions_exact() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        plan = forward.components_plan(staging.Plan(D, V, 1))
    finally:
        torch.set_float32_matmul_precision(before)
    assert plan.local
    assert plan.passes == 3
