"""Accuracy in float32 and memory at scale."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal

CLASSES = 10

pytestmark = pytest.mark.usefixtures("unchecked")


def _model(dtype, shift, d=128, m=64):
    """Standard-normal components with labels, moved by `shift`; the same numbers in every dtype."""
    x = (normal(m, d, seed=0).float() + shift).to(dtype).requires_grad_()
    y = torch.eye(CLASSES, dtype=dtype)[torch.arange(m) % CLASSES]
    y = (0.99 * y + 0.01 / CLASSES).sqrt().requires_grad_()
    joint = kdm.JointKDM({"x": x, "y": y}, None, {"x": kdm.RBF(1.0), "y": kdm.Cosine()})
    points = (normal(256, d, seed=1).float() + shift).to(dtype)
    return joint, points, torch.arange(256) % CLASSES


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_float32_against_float64_in_128_dimensions(shift):
    results = {}
    for dtype in (torch.float32, torch.float64):
        joint, points, labels = _model(dtype, shift)
        inferred = joint.infer(x=points)
        both = joint.log_prob(x=points, y=labels)
        conditional = inferred.log_prob(labels)
        loss = -both.mean() - conditional.mean()
        gradients = torch.autograd.grad(loss, list(joint.components.values()))
        results[dtype] = (
            inferred.probs,
            inferred.log_evidence,
            both,
            conditional,
            inferred.weights,
            *gradients,
        )
    narrow, wide = (results[dtype] for dtype in (torch.float32, torch.float64))
    close(narrow[0], wide[0].float(), rtol=0, atol=1e-4)
    for got, wanted in zip(narrow[1:4], wide[1:4], strict=True):
        assert ((got - wanted).abs() <= 1e-4 * (1 + wanted.abs())).all()
    responsible = wide[4].amax(0) > 1e-3
    assert responsible.sum() >= 10
    for got, wanted in zip(narrow[5:], wide[5:], strict=True):
        assert torch.isfinite(got).all()
        assert (got[responsible] != 0).any(-1).all()
        close(got, wanted.float(), rtol=0, atol=1e-3 * wanted.abs().max().item())


@pytest.mark.parametrize("d", [2, 32])
def test_float32_in_few_dimensions_far_from_the_origin(d):
    results = {}
    for dtype in (torch.float32, torch.float64):
        joint, points, _ = _model(dtype, 1e3, d)
        results[dtype] = joint.infer(x=points).probs, joint.marginal("x").log_prob(points)
    close(results[torch.float32][0], results[torch.float64][0].float(), rtol=0, atol=1e-4)
    wanted = results[torch.float64][1]
    assert ((results[torch.float32][1] - wanted).abs() <= 1e-4 * (1 + wanted.abs())).all()


def test_inference_shares_components():
    joint, points, _ = _model(torch.float32, 0.0)
    inferred = joint.infer(x=points)
    assert inferred.batch_shape == (256,)
    assert inferred.components.data_ptr() == joint.components["y"].data_ptr()
    assert inferred.components.shape == joint.components["y"].shape
    assert joint.marginal("x").components.data_ptr() == joint.components["x"].data_ptr()


def _peak_of(body):
    """The growth of a fresh process's peak memory over `body`, in bytes; `body` follows the imports."""
    script = """
        import resource, torch, kdmkit as kdm
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    """
    script = textwrap.dedent(script) + textwrap.dedent(body) + "\nprint(peak() - before)"
    # One thread: beside other tests several only wait for each other.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout.split()[-1])


def test_inference_at_scale_stays_under_a_gibibyte():
    grown = _peak_of("""
        m, n, d = 100_000, 4096, 16
        components = {"x": torch.randn(m, d), "y": torch.eye(10)[torch.arange(m) % 10]}
        joint = kdm.JointKDM(components, None, {"x": kdm.RBF(2.0), "y": kdm.Cosine()})
        x = torch.randn(n, d)
        joint.infer(x=x[:8]).probs  # what the libraries load on first use is not the inference's
        before = peak()
        rho = joint.infer(x=x)
        probs = rho.probs
        assert rho.components.data_ptr() == joint.components["y"].data_ptr()
        assert probs.shape == (n, 10) and bool((probs.sum(-1) - 1).abs().max() < 1e-4)
    """)
    assert grown < 2**30


def test_chains_at_scale_never_pair_rows_with_components():
    # The weights of one link alone, 4,000 rows by 5,000 components, would take 80 MB.
    grown = _peak_of("""
        m, n = 5000, 4000
        x, y, z = torch.randn(m, 4), torch.randn(m, 2), torch.eye(5)[torch.arange(m) % 5]
        xy = kdm.JointKDM({"x": x, "y": y}, None, {"x": kdm.RBF(1.0), "y": kdm.RBF(1.0)})
        yz = kdm.JointKDM({"y": y, "z": z}, None, {"y": kdm.RBF(1.0), "z": kdm.Cosine()})
        yz.infer(y=xy.infer(x=x[:8])).probs
        before = peak()
        probs = yz.infer(y=xy.infer(x=torch.randn(n, 4))).probs
        assert probs.shape == (n, 5) and bool((probs.sum(-1) - 1).abs().max() < 1e-4)
    """)
    assert grown < 60 * 2**20


# Every fast path has a slow twin: all of the algebra once more by blocks.
def _everything(joint, x, z, mask):
    rho = joint.infer(x=x)
    bag = kdm.KDM(x[:9], None, type(joint.kernels["x"])(1.0))
    masked = joint.infer(x=x, z=z, observed={"x": mask})
    return [
        rho.marginal("z").probs,
        rho.marginal("y").mean,
        rho.marginal("y").variance,
        rho.marginal("y").log_prob(x[:, :1]),
        rho.log_evidence,
        joint.infer(x=bag).marginal("z").probs,
        joint.infer(x=bag).marginal("y").log_prob(x[:9, :1]),
        masked.mean,
        masked.log_evidence,
        joint.log_prob(x=x, y=x[:, :1], z=z),
    ]


@pytest.mark.parametrize("family", ["rbf", "metric", "per-component", "epanechnikov"])
def test_blocks_change_nothing(family, monkeypatch):
    m, n = 4200, 140  # with several blocks of 128 queries and 2,048 or 4,096 components
    kernel = {
        "rbf": lambda: kdm.RBF([0.8, 1.2], trainable=True),
        "metric": lambda: kdm.RBF.from_metric(
            torch.tensor([[1.5, 0.0], [-0.8, 0.9]]).double(), trainable=True
        ),
        "per-component": lambda: kdm.RBF(0.5 + torch.linspace(0, 1, m).double()[:, None], trainable=True),
        "epanechnikov": lambda: kdm.Epanechnikov(2.0, trainable=True),
    }[family]()
    leaves = [normal(m, 2, seed=0), normal(m, 1, seed=1), normal(m, 3, seed=2), normal(m, seed=3)]
    x, y, z, logits = [leaf.requires_grad_() for leaf in leaves]
    points, labels, mask = normal(n, 2, seed=4).requires_grad_(), torch.arange(n) % 3, torch.arange(n) % 2 > 0
    results = []
    for pairs in (1 << 22, 0):
        monkeypatch.setattr("kdmkit.ops.dense.LARGEST_ON_CPU", pairs)
        joint = kdm.JointKDM(
            {"x": x, "y": y, "z": z},
            None,
            {"x": kernel, "y": kdm.RBF(0.5), "z": kdm.Cosine()},
            log_weights=logits.log_softmax(-1),
        )
        values = _everything(joint, points, labels, mask)
        finite = [v.masked_fill(torch.isneginf(v), 0) for v in values]
        loss = sum((v * torch.linspace(0, 1, v.numel()).double().reshape(v.shape)).sum() for v in finite)
        gradients = torch.autograd.grad(loss, [*leaves, points, *kernel.parameters()])
        results.append([*values, *gradients])
    for whole, blocks in zip(*results, strict=True):
        close(blocks, whole, rtol=1e-8, atol=1e-9)
