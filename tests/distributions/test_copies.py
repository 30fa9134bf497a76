"""Constructors, expansion and moves."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, real, simplex
from kdmkit.distributions.weights import Inferred


def test_expand_repeats_without_copying_components():
    rho = kdm.KDM(normal(4, 2, seed=0), simplex(3, 4, seed=1), kdm.RBF(0.5))
    wide = rho.expand((5, 3))
    assert wide.batch_shape == (5, 3)
    assert wide.components.data_ptr() == rho.components.data_ptr()
    x = normal(5, 3, 2, seed=2)
    close(wide.log_prob(x), rho.log_prob(x))
    close(wide.mean, rho.mean.expand(5, 3, 2))
    assert wide.sample((2,)).shape == (2, 5, 3, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_to_leaves_the_original_alone(dtype):
    kernel = kdm.RBF(torch.tensor(0.3), trainable=True)
    rho = kdm.KDM(normal(4, 2, seed=0).float(), simplex(4, seed=1).float(), kernel)
    before = copy.deepcopy(kernel.state_dict())
    moved = rho.to(dtype)
    assert moved.components.dtype == moved.log_weights.dtype == moved.kernel.sigma.dtype == dtype
    assert rho.components.dtype == rho.log_weights.dtype == kernel.sigma.dtype == torch.float32
    assert rho.kernel is kernel
    for name, value in kernel.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        kernel.sigma = 2.0
    assert moved.kernel.sigma.item() == pytest.approx(0.3, rel=0.01)


def test_to_moves_a_joint_and_what_was_inferred():
    components = {"x": normal(4, 2, seed=0).float(), "y": torch.tensor([0, 1, 2, 1])}
    joint = kdm.JointKDM(components, None, {"x": kdm.RBF(0.3), "y": kdm.Categorical(3, 0.1)})
    wide = joint.to(torch.float64)
    assert wide.components["x"].dtype == torch.float64
    assert wide.components["y"].dtype == torch.int64
    assert all(wide.kernels[name] is not joint.kernels[name] for name in joint.variables)
    x = normal(5, 2, seed=1)
    close(wide.infer(x=x).probs, joint.infer(x=x.float()).to(torch.float64).probs, rtol=1e-5)


def test_codes_survive_a_move_to_half_precision():
    codes = torch.tensor([257, 4095, 4999])  # not representable in bfloat16
    rho = kdm.KDM(codes, None, kdm.Categorical(5000)).to(torch.bfloat16)
    assert torch.equal(rho.components, codes)


def test_constructors():
    x = normal(4, 2, seed=0)
    kernel = kdm.RBF(0.5)
    nonparametric = kdm.KDM.from_samples(x, kernel)
    close(nonparametric.weights, torch.full((4,), 0.25).double())
    weighted = kdm.KDM.from_samples(x, kernel, weights=[0.1, 0.2, 0.3, 0.4])
    close(weighted.weights, real([0.1, 0.2, 0.3, 0.4]))
    pure = kdm.KDM.pure(x, kernel)
    assert pure.batch_shape == (4,)
    assert pure.n_components == 1
    close(pure.log_prob(x), kernel.log_norm(x).expand(4))
    assert kdm.KDM.pure(torch.tensor([1, 0]), kdm.Categorical(2)).probs.tolist() == [[0, 1], [1, 0]]
    p = simplex(3, 5, seed=1)
    close(kdm.KDM.from_probs(p).probs, p)
    assert kdm.KDM.from_probs(p).components.shape == (5, 5)


def test_numpy_arrays_lists_and_log_weights_are_welcome():
    c, w = normal(3, 2, seed=0), simplex(3, seed=1)
    rho = kdm.KDM(c, w, kdm.RBF(0.5))
    x = normal(6, 2, seed=2)
    for made in (
        kdm.KDM(c.numpy(), w.numpy(), kdm.RBF(0.5)),
        kdm.KDM(c, w.tolist(), kdm.RBF(0.5)),
        kdm.KDM(c, None, kdm.RBF(0.5), log_weights=w.log()),
    ):
        close(made.log_prob(x.numpy()), rho.log_prob(x), rtol=1e-7)
    sure = kdm.KDM(c, [1, 0, 0], kdm.RBF(0.5))
    close(sure.mean, c[0])


def test_only_inferred_kdms_have_evidence():
    with pytest.raises(AttributeError, match="log_evidence: only a KDM that `infer` returned"):
        _ = kdm.KDM(torch.zeros(1, 1), None, kdm.RBF(1.0)).log_evidence


def test_representations_name_shapes_and_kernels():
    rho = kdm.KDM(torch.zeros(3, 2), None, kdm.RBF(0.5))
    assert repr(rho) == "KDM(batch_shape=(), event_shape=(2,), n_components=3, kernel=RBF(sigma=0.5))"
    joint = kdm.JointKDM({"x": torch.zeros(3, 2)}, None, {"x": kdm.RBF(0.5)})
    assert repr(joint) == "JointKDM(batch_shape=(), n_components=3, kernels={'x': RBF(sigma=0.5)})"


def test_dtypes_may_be_mixed():
    c, w = normal(6, 1, seed=0).float(), simplex(3, 6, seed=1)
    mixed, wide = kdm.KDM(c, w, kdm.RBF(0.5)), kdm.KDM(c.double(), w, kdm.RBF(0.5))
    x = normal(5, 1, 1, seed=2)
    for value in (x, x.float()):
        close(mixed.log_prob(value), wide.log_prob(value.double()), rtol=1e-5)
        close(mixed.cdf(value), wide.cdf(value.double()), rtol=1e-4)
    close(mixed.mean, wide.mean, rtol=1e-5)
    close(mixed.variance, wide.variance, rtol=1e-5)
    close(mixed.purity(), wide.purity(), rtol=1e-5)
    close(mixed.icdf(real([[0.3]])), wide.icdf(real([[0.3]])), rtol=1e-4)
    for method in ("implicit", "gumbel"):
        assert mixed.rsample((4,), method=method).dtype == mixed.sample((4,)).dtype == torch.float32

    components = {"x": c, "y": normal(6, 3, seed=3), "k": torch.arange(6)}
    kernels = {"x": kdm.RBF(0.5), "y": kdm.Cosine(), "k": kdm.Categorical(6, 0.1)}
    joint = kdm.JointKDM(components, w[0], kernels)
    exact = kdm.JointKDM(components | {"x": c.double()}, w[0], kernels)
    for value in (x[:, 0], x[:, 0].float()):
        close(
            joint.infer(x=value, target="y").probs, exact.infer(x=value.double(), target="y").probs, rtol=1e-5
        )
        inferred = joint.infer(x=value, observed={"x": value[:, 0] > 0})
        close(
            inferred.log_evidence,
            exact.infer(x=value.double(), observed={"x": value[:, 0] > 0}).log_evidence,
            rtol=1e-5,
            atol=1e-6,
        )
        bag = kdm.KDM(value, None, kdm.RBF(1.0))
        close(
            joint.infer(x=bag, target="k").log_prob(torch.arange(6)),
            exact.infer(x=bag, target="k").log_prob(torch.arange(6)),
            rtol=1e-5,
        )


# ---- shifted


@pytest.mark.parametrize("inferred", [False, True])
def test_shifted_moves_the_density(inferred: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    cx, cy = (torch.randn(6, 1, generator=rng, dtype=torch.float64) for _ in range(2))
    kernel = kdm.RBF(torch.linspace(0.3, 0.8, 6, dtype=torch.float64).unsqueeze(-1))
    x, by = torch.randn(4, 1, generator=rng).double(), torch.randn(4, 1, generator=rng).double()
    joint = kdm.JointKDM({"x": cx, "y": cy}, None, {"x": kdm.RBF(0.7), "y": kernel})
    rho = joint.infer(x=x) if inferred else joint.marginal("y").expand((4,))
    moved, y = rho.shifted(by), torch.randn(5, 4, 1, generator=rng).double()
    torch.testing.assert_close(moved.log_prob(y), rho.log_prob(y - by))
    torch.testing.assert_close(moved.cdf(y), rho.cdf(y - by))
    torch.testing.assert_close(moved.mean, rho.mean + by)
    torch.testing.assert_close(moved.variance, rho.variance)
    q = torch.full((4,), 0.2, dtype=torch.float64)
    torch.testing.assert_close(moved.icdf(q), rho.icdf(q) + by)
    torch.testing.assert_close(kdm.metrics.crps(moved, y[0]), kdm.metrics.crps(rho, y[0] - by[:, 0:1]))
    if inferred:
        torch.testing.assert_close(moved.log_evidence, rho.log_evidence)


@pytest.fixture(params=["inferred", "shared"])
def broad(request: pytest.FixtureRequest) -> tuple[kdm.KDM, torch.Tensor]:
    """A KDM of batch shape (4,), and a variance to convolve it with."""
    rng = torch.Generator().manual_seed(0)
    cx, cy = (torch.randn(6, 1, generator=rng, dtype=torch.float64) for _ in range(2))
    kernel = kdm.RBF(torch.linspace(0.3, 0.8, 6, dtype=torch.float64).unsqueeze(-1))
    joint = kdm.JointKDM({"x": cx, "y": cy}, None, {"x": kdm.RBF(0.7), "y": kernel})
    x = torch.randn(4, 1, generator=rng).double()
    rho = joint.infer(x=x) if request.param == "inferred" else joint.marginal("y").expand((4,))
    return rho, torch.tensor([[0.0], [0.1], [1.0], [25.0]], dtype=torch.float64)


def one_by_one(rho: kdm.KDM, by: torch.Tensor) -> list[kdm.KDM]:
    """The elements of a batch as KDMs with a kernel each."""
    std = rho.kernel.std
    return [
        kdm.KDM(rho.components, None, kdm.RBF.from_std((std.square() + v).sqrt()), log_weights=w)
        for v, w in zip(by, rho.log_weights, strict=True)
    ]


def test_convolved_adds_noise(broad: tuple[kdm.KDM, torch.Tensor]) -> None:
    rho, by = broad
    wide, single = rho.convolved(by), one_by_one(rho, by)
    y = torch.randn(5, 4, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = torch.full((4,), 0.2, dtype=torch.float64)

    def each(function: Any) -> torch.Tensor:
        return torch.stack([function(one, y[:, i], q[i]) for i, one in enumerate(single)], -1)

    torch.testing.assert_close(wide.log_prob(y), each(lambda one, y, _: one.log_prob(y)))
    torch.testing.assert_close(wide.cdf(y), each(lambda one, y, _: one.cdf(y)))
    torch.testing.assert_close(wide.icdf(q)[:, 0], each(lambda one, _, q: one.icdf(q)[0]))
    torch.testing.assert_close(wide.mean, rho.mean)
    torch.testing.assert_close(wide.variance, rho.variance + by)
    crps = each(lambda one, y, _: kdm.metrics.crps(one, y[0]))
    torch.testing.assert_close(kdm.metrics.crps(wide, y[0]), crps)
    assert wide.batch_shape == (4,)
    torch.testing.assert_close(wide.to(torch.float32).variance.double(), wide.variance, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(wide.expand((3, 4)).log_prob(y[:3]), wide.log_prob(y[:3]))
    # Twice is once with the sum.
    torch.testing.assert_close(wide.convolved(by).log_prob(y), rho.convolved(2 * by).log_prob(y))


@pytest.mark.parametrize("method", ["sample", "implicit", "gumbel"])
def test_draws_of_a_convolved_kdm(broad: tuple[kdm.KDM, torch.Tensor], method: Any) -> None:
    rho, by = broad
    wide, generator = rho.convolved(by), torch.Generator().manual_seed(0)
    draws = (
        wide.sample((40_000,), generator=generator)
        if method == "sample"
        else wide.rsample((40_000,), method=method, generator=generator)
    )
    torch.testing.assert_close(draws.mean(0), wide.mean, atol=0.1, rtol=0)
    torch.testing.assert_close(draws.var(0), wide.variance, atol=0, rtol=0.04)


@pytest.mark.parametrize("batch", [(1,), (2, 1), (1, 3), (2, 3)])
def test_convolved_by_any_batch(batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    rho = kdm.KDM(torch.randn(5, 2, generator=generator), None, kdm.RBF(0.5))
    by = torch.rand(*batch, 2, generator=generator)
    wide = rho.convolved(by)
    x = torch.randn(7, *batch, 2, generator=generator)
    std = torch.sqrt(0.125 + by)
    normal = torch.distributions.Normal(rho.components, std.unsqueeze(-2))
    wanted = normal.log_prob(x.unsqueeze(-2)).sum(-1).logsumexp(-1) - torch.tensor(5.0).log()
    torch.testing.assert_close(wide.log_prob(x), wanted, rtol=1e-4, atol=1e-4)


def test_widths_carry_gradients() -> None:
    by = torch.tensor([[0.0], [2.0]], dtype=torch.float64, requires_grad=True)
    rho = kdm.KDM(torch.zeros(1, 1, dtype=torch.float64), None, kdm.RBF.from_std(1.0))
    (slope,) = torch.autograd.grad(rho.convolved(by).variance.sum(), by)
    assert slope.flatten().tolist() == pytest.approx([1, 1])


def test_only_some_kdms_are_convolved(unchecked: None) -> None:
    with pytest.raises(TypeError, match="kernel: expected an RBF kernel without a metric"):
        kdm.KDM.from_samples(torch.zeros(3, 2), kdm.Epanechnikov(1.0)).convolved(torch.zeros(2))
    rho = kdm.KDM.from_samples(torch.zeros(3, 2), kdm.RBF(1.0))
    with pytest.raises(ValueError, match="variance: expected values ≥ 0"):
        rho.convolved(torch.tensor([0.0, -1.0]))
    noisy = rho.convolved(torch.ones(4, 2))
    with pytest.raises(TypeError, match="kernel: expected one with a learned bandwidth, got RBF"):
        noisy.kernel.sigma = 2.0  # type: ignore[union-attr]


def test_only_continuous_kdms_are_shifted() -> None:
    with pytest.raises(TypeError, match="shifted: expected a continuous kernel"):
        kdm.KDM.from_probs(torch.tensor([0.5, 0.5])).shifted(torch.zeros(2))
    rho = kdm.KDM.from_samples(torch.zeros(3, 2), kdm.RBF(1.0))
    with pytest.raises(ValueError, match="by: expected shape"):
        rho.shifted(torch.zeros(3))


# ---- copies of what was inferred


def _inferred(x: Any = None, **options: Any) -> kdm.KDM:
    layer = kdm.nn.JointLayer(2, 2, 6, out_kernel=kdm.RBF(0.5 + simplex(6, 2, seed=0)), dtype=torch.float64)
    with torch.no_grad():
        layer.components["x"].copy_(normal(6, 2, seed=1))
        layer.components["y"].copy_(normal(6, 2, seed=2))
        layer.logits.copy_(normal(6, seed=3))
    rho: kdm.KDM = layer.joint().infer(x=normal(4, 2, seed=4) if x is None else x, target="y", **options)
    return rho


INFERRED: dict[str, Callable[[], kdm.KDM]] = {
    "points": _inferred,
    "missing evidence": lambda: _inferred(observed={"x": torch.tensor([True, False, True, True])}),
    "a KDM": lambda: _inferred(kdm.KDM(normal(4, 7, 2, seed=5), None, kdm.RBF(1.0))),
    "an inferred KDM": lambda: _inferred(_inferred().with_kernel(kdm.RBF(1.0))),
    "one KDM": lambda: _inferred(kdm.KDM(normal(7, 2, seed=5), None, kdm.RBF(1.0))).expand((4,)),
    "shifted": lambda: _inferred().shifted(normal(4, 2, seed=6)),
    "convolved": lambda: _inferred().convolved(normal(4, 2, seed=6).square().requires_grad_() * 2),
    "shifted and convolved": lambda: (
        _inferred().convolved(normal(4, 2, seed=6).square()).shifted(normal(4, 2, seed=7))
    ),
    "coordinates": lambda: _inferred().convolved(normal(4, 2, seed=6).square()).coordinates([1, 0]),
    "expanded": lambda: _inferred(normal(1, 2, seed=4)).expand((4,)),
}
every_inferred = pytest.mark.parametrize("name", INFERRED)
COPIES: dict[str, Callable[[kdm.KDM], kdm.KDM]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda rho: pickle.loads(pickle.dumps(rho)),
    "to": lambda rho: rho.to("cpu", torch.float64),
}


@every_inferred
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("asked", [False, True])
def test_copies_of_inferred_kdms_answer_alike_and_stay_inferred(name: str, way: str, asked: bool) -> None:
    rho = INFERRED[name]()
    y = normal(3, 4, 2, seed=8)
    if asked:  # cached values must not get in the way
        _ = rho.log_weights, rho.log_evidence
    copied = COPIES[way](rho)
    assert isinstance(copied._weights, Inferred)
    assert copied.kernel is not rho.kernel
    close(copied.log_prob(y).detach(), rho.log_prob(y).detach())
    close(copied.log_evidence.detach(), rho.log_evidence.detach())
    close(copied.mean.detach(), rho.mean.detach())


@every_inferred
def test_inferred_kdms_expand_without_computing_weights(name: str) -> None:
    rho = INFERRED[name]()
    wide = rho.expand((3, 4))
    assert isinstance(wide._weights, Inferred)
    assert wide.batch_shape == (3, 4)
    y = normal(2, 3, 4, 2, seed=8)
    close(wide.log_prob(y), rho.log_prob(y))
    close(wide.log_prob(y[0, 0, 0]), rho.log_prob(y[0, 0, 0]).expand(3, 4))
    close(wide.log_evidence, rho.log_evidence.expand(3, 4))
    close(wide.mean, rho.mean.expand(3, 4, 2))
    close(wide.log_weights, rho.log_weights.expand(3, 4, 6))
    assert wide.sample((2,)).shape == (2, 3, 4, 2)


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_a_batch_does_not_expand_to() -> None:
    batched = kdm.KDM(normal(3, 5, 2, seed=0), None, kdm.RBF(0.5))
    for rho in (batched, kdm.KDM(normal(5, 2, seed=0), simplex(3, 5, seed=1), kdm.RBF(0.5))):
        for shape in [(4,), (3, 1), ()]:
            with pytest.raises(ValueError, match="batch_shape"):
                rho.expand(shape)


def test_copies_are_independent_but_results_stay_in_the_graph() -> None:
    c, logits = normal(4, 2, seed=0).requires_grad_(), normal(4, seed=1).requires_grad_()
    rho = kdm.KDM(c, None, kdm.RBF(0.5, trainable=True), log_weights=logits.log_softmax(-1))
    copied = copy.deepcopy(rho)
    copied.log_prob(normal(3, 2, seed=2)).sum().backward()
    assert logits.grad is not None  # the weights were computed from it
    assert c.grad is None  # copied as a leaf, as torch does
    assert copied.components.grad is not None
    assert copied.kernel.bandwidth.raw.grad is not None  # type: ignore[union-attr]
    with torch.no_grad():
        copied.components.zero_()
    assert c.any()


def test_joints_are_copied_with_their_kernels() -> None:
    joint = kdm.JointKDM(
        {"x": normal(4, 2, seed=0), "y": torch.arange(4)}, None, {"x": kdm.RBF(0.5), "y": kdm.Categorical(4)}
    )
    x, y = normal(3, 2, seed=1), torch.arange(3)
    for copied in (copy.deepcopy(joint), pickle.loads(pickle.dumps(joint))):
        close(copied.log_prob(x=x, y=y), joint.log_prob(x=x, y=y))
        copied.kernels["x"].sigma = 9.0
    assert joint.kernels["x"].sigma.item() == pytest.approx(0.5)  # type: ignore[union-attr, operator]
