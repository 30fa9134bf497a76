"""Joints, densities and layers that keep what questions need of their components: the same answers."""

import copy
import pickle

import pytest
import torch

import kdmkit as kdm
from kdmkit.kernels import rbf
from kdmkit.ops.triton import backend

M, D, V = 120, 32, 3
SIZE = 4 * M * (D + V)


@pytest.fixture
def reductions(monkeypatch):
    """Lets Triton's interpreter stand for a GPU; the list grows by one with every use of what is kept."""
    from kdmkit.ops.triton.prepared_sum import PreparedSum

    done, reduce = [], PreparedSum.reduce
    monkeypatch.setattr(backend, "LEAST_COMPONENTS", 1)
    monkeypatch.setattr(backend, "is_usable", lambda reduction: True)
    monkeypatch.setattr(rbf, "score_dtype", lambda x, components: torch.float32)
    monkeypatch.setattr(PreparedSum, "reduce", lambda self, *a: (done.append(1), reduce(self, *a))[1])
    return done


def _joint(d=D, v=V, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    components = {
        "x": torch.randn(M, d, generator=generator).to(dtype),
        "y": torch.rand(M, v, generator=generator).to(dtype),
    }
    weights = torch.rand(M, generator=generator).to(dtype)
    kernels = {"x": kdm.RBF(d**0.5), "y": kdm.Cosine()}
    x = torch.randn(7, d, generator=generator).to(dtype)
    return kdm.JointKDM(components, weights / weights.sum(), kernels), x


def _assert_same(rho, other, x):
    torch.testing.assert_close(other.infer(x=x).probs, rho.infer(x=x).probs, atol=1e-6, rtol=1e-5)


def test_the_same_answers_by_what_is_kept(reductions):
    rho, x = _joint()
    prepared = rho.prepared()
    for ask in (
        lambda joint: joint.infer(x=x).probs,
        lambda joint: joint.infer(x=x.view(1, 7, -1)).probs,
        lambda joint: joint.infer(x=x).log_evidence,
        lambda joint: joint.marginal("x").log_prob(x),
    ):
        used = len(reductions)
        torch.testing.assert_close(ask(prepared), ask(rho), atol=1e-6, rtol=1e-5)
        assert len(reductions) == used + 1
    # Rows are padded to 128.
    assert SIZE < prepared._weights.n_bytes <= 1.5 * SIZE * 128 / M


def test_other_questions_are_answered_as_before(reductions):
    rho, x = _joint()
    prepared, y = rho.prepared(), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    mask = {"x": torch.tensor([True, False] * 3 + [True])}
    for ask in (
        lambda joint: joint.log_prob(x=x, y=y),
        lambda joint: joint.infer(x=x).log_prob(y),
        lambda joint: joint.infer(x=x, observed=mask).probs,
        lambda joint: joint.infer(y=y).mean,
        lambda joint: joint.marginal("y").probs,
    ):
        torch.testing.assert_close(ask(prepared), ask(rho))
    assert not reductions


@pytest.mark.parametrize("part", ["components", "values", "weights", "bandwidth", "replaced"])
def test_nothing_outdated_is_used(reductions, part):
    rho, x = _joint()
    rho.kernels["x"] = kdm.RBF(4.0, trainable=True).requires_grad_(False)
    prepared = rho.prepared()
    before = prepared.infer(x=x).probs
    with torch.no_grad():
        if part == "components":
            rho.components["x"][0] += 1
        elif part == "values":
            rho.components["y"][0] += 1
        elif part == "weights":
            rho._weights._log_weights.copy_(torch.log_softmax(torch.arange(M).float(), 0))
        elif part == "bandwidth":
            rho.kernels["x"].sigma = 2.0
        else:
            rho.components["x"].data = rho.components["x"] + 1
    _assert_same(rho, prepared, x)
    assert not torch.equal(prepared.infer(x=x).probs, before)


def test_gradients_are_those_of_the_joint(reductions):
    rho, x = _joint()
    prepared, x = rho.prepared(), x.requires_grad_()
    wanted, result = (torch.autograd.grad(j.infer(x=x).probs[:, 0].sum(), x)[0] for j in (rho, prepared))
    assert torch.equal(result, wanted)
    assert not reductions


def test_what_would_take_too_much_memory_is_not_kept(reductions):
    # Halves are padded to 32 dimensions.
    rho, x = _joint(d=17, v=1)
    prepared = rho.prepared()
    _assert_same(rho, prepared, x)
    assert not reductions
    assert prepared._weights.n_bytes < 0.2 * SIZE


def test_float64_and_a_cpu_keep_the_values_alone():
    rho, x = _joint(dtype=torch.float64)
    prepared = rho.prepared()
    assert torch.equal(prepared.infer(x=x).probs, rho.infer(x=x).probs)
    kept = prepared._weights.n_bytes
    assert 0 < kept <= 8 * V * (M + 1)
    assert torch.equal(prepared.infer(x=x).probs, rho.infer(x=x).probs)
    assert prepared._weights.n_bytes == kept


def test_pickles_and_copies(reductions):
    rho, x = _joint()
    prepared = rho.prepared()
    prepared.infer(x=x).probs  # noqa: B018
    loaded = pickle.loads(pickle.dumps(prepared))
    assert len(pickle.dumps(prepared)) < 1.3 * len(pickle.dumps(rho))
    used = len(reductions)
    _assert_same(rho, loaded, x)
    assert len(reductions) == used + 1
    for copied in (copy.deepcopy(prepared), prepared.to(torch.float64)):
        _assert_same(rho.to(torch.float64), copied.to(torch.float64), x.double())
    assert len(reductions) == used + 1


def test_densities(reductions):
    rho, x = _joint()
    density = rho.marginal("x")
    torch.testing.assert_close(kdm.PreparedKDM(density).log_prob(x), density.log_prob(x))
    assert len(reductions) == 1


def test_a_batch_is_refused():
    rho, x = _joint()
    rho = kdm.JointKDM({**rho.components, "z": rho.components["x"]}, None, {**rho.kernels, "z": kdm.RBF(1.0)})
    with pytest.raises(ValueError, match="prepared: expected weights and components without a batch"):
        rho.infer(x=x).prepared()
    kernels = {"x": kdm.RBF(1.0), "z": kdm.RBF(1.0)}
    batch = kdm.JointKDM({name: torch.randn(2, 5, 3) for name in kernels}, None, kernels)
    with pytest.raises(ValueError, match="without a batch"):
        batch.prepared()


def test_a_kernel_that_fails_is_given_up(reductions, monkeypatch):
    rho, x = _joint()
    monkeypatch.setattr(backend, "_REASONS", {})
    monkeypatch.setattr(backend, "_warned", False)

    def fail(*_, **__):
        raise backend.KernelError("out of registers")

    monkeypatch.setattr("kdmkit.ops.triton.prepared_sum.Whitening", fail)
    with pytest.warns(RuntimeWarning, match="out of registers"):
        prepared = rho.prepared()
    _assert_same(rho, prepared, x)
    assert not reductions


def test_numbers_of_many_components_are_computed_in_blocks():
    """More than 2¹⁸ components, against the formulas: p(y) = Σ_j w_j p_j(y), given x with its weights."""
    m = 265_000
    generator = torch.Generator().manual_seed(0)
    c, amplitudes = (f(m, k, generator=generator).double() for f, k in ((torch.randn, 2), (torch.rand, V)))
    rho = kdm.JointKDM({"x": c, "y": amplitudes}, None, {"x": kdm.RBF(0.5), "y": kdm.Cosine()})
    x = torch.randn(3, 2, generator=generator).double()
    probs = amplitudes.square() / amplitudes.square().sum(-1, keepdim=True)
    weights = torch.softmax(-((x.unsqueeze(1) - c) / 0.5).square().sum(-1), -1)
    accuracy = m * 2.0**-52  # sums of m products are divided by sums of m weights: 2·m roundings of 2⁻⁵³
    torch.testing.assert_close(rho.infer(x=x).probs, weights @ probs, rtol=accuracy, atol=0)
    torch.testing.assert_close(rho.marginal("y").probs, probs.mean(0), rtol=accuracy, atol=0)
    exact = amplitudes.clone().requires_grad_()
    (weights[0] @ (exact[:, 0].square() / exact.square().sum(-1))).backward()
    leaf = rho.components["y"].requires_grad_()
    rho.infer(x=x).probs[0, 0].backward()
    largest = exact.grad.abs().max().item()
    torch.testing.assert_close(leaf.grad, exact.grad, rtol=accuracy, atol=accuracy * largest)


def test_layers_prepare_once_and_notice_changes(reductions):
    layer = kdm.nn.JointLayer(D, V, M).requires_grad_(False)
    x = torch.randn(4, D)
    wanted = layer(x).probs
    assert not reductions
    layer.prepare()
    torch.testing.assert_close(layer(x).probs, wanted)
    assert layer.joint()._weights is layer.joint()._weights
    assert len(reductions) == 1
    with torch.no_grad():
        layer.logits[0] += 3
    changed = layer(x).probs
    copied = pickle.loads(pickle.dumps(layer))
    torch.testing.assert_close(copied(x).probs, changed)
    layer._prepares = False
    torch.testing.assert_close(layer(x).probs, changed)
    layer.prepare().requires_grad_()
    layer(x).probs[0, 0].backward()
    assert layer.logits.grad is not None
