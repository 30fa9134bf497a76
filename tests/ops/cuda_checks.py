"""What the compiler makes of the kernels on a CUDA device; `test_cuda.py` runs this in another process."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import kdmkit as kdm
from kdmkit.ops import SquaredDistance, attend

CUDA = torch.device("cuda")


def draw(kind: str, n: int, m: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, components and the scale; half of the queries lie next to components."""
    g = torch.Generator(CUDA).manual_seed(0)
    x, c = torch.randn(n, d, generator=g, device=CUDA), torch.randn(m, d, generator=g, device=CUDA)
    sigma = math.sqrt(2) * m ** (-1 / (d + 4))
    if kind == "far from the origin":
        x, c = x + 1000, c + 1000
    elif kind == "clusters":
        places = 200 * torch.randn(50, d, generator=g, device=CUDA)
        x, c = (t + places[torch.randint(50, (len(t),), generator=g, device=CUDA)] for t in (x, c))
    elif kind == "tiny bandwidths":
        sigma *= 0.01
    elif kind == "huge bandwidths":
        sigma = 100.0
    near = torch.randint(m, (n // 2,), generator=g, device=CUDA)
    x[: n // 2] = c[near] + 0.3 * sigma * torch.randn(n // 2, d, generator=g, device=CUDA)
    return x, c, torch.full((1, 1), 1 / sigma, device=CUDA)


def check_few_dimensions(kind: str, d: int, v: int) -> None:
    """|Δ log p| ≤ 1e-5·(1 + |log p|), with local centres and with differences alone."""
    x, c, scale = draw(kind, 16384, 100_000, d)
    values = torch.rand(len(c), v, device=CUDA)
    log_weights = torch.full((len(c),), -math.log(len(c)), device=CUDA)
    few = torch.arange(0, len(x), 128, device=CUDA)
    term = SquaredDistance(x[few].double(), c.double(), scale.double())
    wanted, truth = attend(term, log_weights.double(), values.double(), backend="chunked")
    for rows in (torch.arange(len(x), device=CUDA), few):
        averages, lse = attend(SquaredDistance(x[rows], c, scale), log_weights, values, backend="triton")
        chosen = few if len(rows) > len(few) else torch.arange(len(few), device=CUDA)
        error = ((lse[chosen] - truth).abs() / (1 + truth.abs())).max().item()
        assert error <= 1e-5, (kind, d, v, len(rows), error)
        assert (averages[chosen] - wanted).abs().max() <= 2e-5, (kind, d, v, len(rows))


def check_gradients() -> None:
    x, c, scale = draw("clusters", 16384, 2000, 3)
    values, log_weights = torch.rand(len(c), 4, device=CUDA), torch.zeros(len(c), device=CUDA)
    result = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "chunked")):
        leaves = [t.to(dtype).requires_grad_() for t in (x, c, log_weights, values)]
        term = SquaredDistance(leaves[0], leaves[1], scale.to(dtype))
        averages, lse = attend(term, leaves[2], leaves[3], backend=backend)  # type: ignore[arg-type]
        result.append(torch.autograd.grad(lse.mean() + averages.square().sum(-1).mean(), leaves))
    for mine, reference in zip(*result, strict=True):
        assert (mine - reference).abs().max() <= 2e-5 * reference.abs().max()


def check_prepared(d: int) -> None:
    """The same answers, little extra memory, and at most 1.5 times the components' memory kept."""
    g = torch.Generator(CUDA).manual_seed(0)
    m, v = 1_000_000, 16
    components = {
        "x": torch.randn(m, d, generator=g, device=CUDA),
        "y": torch.rand(m, v, generator=g, device=CUDA),
    }
    kernels = {"x": kdm.RBF(math.sqrt(d)), "y": kdm.Cosine()}
    joint = kdm.JointKDM(components, None, kernels)
    x = torch.randn(2048, d, generator=g, device=CUDA)
    wanted, log_prob = joint.infer(x=x).probs, joint.marginal("x").log_prob(x)
    before = torch.cuda.memory_allocated()
    prepared = joint.prepared()
    torch.testing.assert_close(prepared.infer(x=x).probs, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(prepared.marginal("x").log_prob(x), log_prob, atol=1e-5, rtol=1e-5)
    kept = torch.cuda.memory_allocated() - before
    assert 1 <= kept / sum(tensor.nbytes for tensor in components.values()) <= 1.5
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert prepared.infer(x=x).probs.isfinite().all()
    assert torch.cuda.max_memory_allocated() - before < 20e6
    components["x"][: m // 2] += 0.5
    torch.testing.assert_close(prepared.infer(x=x).probs, joint.infer(x=x).probs, atol=1e-5, rtol=1e-4)


def check_labels() -> None:
    """log p(label | x) of a layer and its gradients: eager and compiled, beside float64 on a CPU."""
    g = torch.Generator().manual_seed(0)
    layer = kdm.nn.JointLayer(64, 10, n_components=512, in_kernel=kdm.RBF(8.0), generator=g)
    x, y = torch.randn(256, 64, generator=g), torch.randint(10, (256,), generator=g)
    layer.initialize(torch.randn(1000, 64, generator=g), torch.arange(1000) % 10, sigma=8.0, generator=g)
    layer.components["y"].data[:, 3] = 0.0  # a label that no component has
    results = {}
    for name, device, dtype in (("wanted", "cpu", torch.float64), ("eager", CUDA, torch.float32)):
        moved = copy.deepcopy(layer).to(device, dtype)
        results[name] = label_gradients(moved, moved, x.to(device, dtype), y.to(device))
    compiled = torch.compile(moved, fullgraph=True)
    results["compiled"] = label_gradients(compiled, moved, x.to(CUDA), y.to(CUDA))
    for name in ("eager", "compiled"):
        for mine, reference in zip(results[name], results["wanted"], strict=True):
            assert (mine - reference).abs().max() <= 1e-4 * reference.abs().max(), name


def label_gradients(
    call: Callable[[Tensor], kdm.KDM], layer: nn.Module, x: Tensor, y: Tensor
) -> list[Tensor]:
    """Log-probabilities of possible labels, and gradients of their mean by the parameters."""
    log_probs = call(x).log_prob(y)
    assert torch.equal(log_probs.isneginf(), y == 3)
    gradients = torch.autograd.grad(log_probs[y != 3].mean(), list(layer.parameters()))
    return [part.detach().double().cpu() for part in (log_probs[y != 3], *gradients)]


if __name__ == "__main__":
    check_labels()
    for name in ("plain", "far from the origin", "clusters", "tiny bandwidths", "huge bandwidths"):
        for sizes in ((16, 16), (3, 4)):
            check_few_dimensions(name, *sizes)
    check_gradients()
    for dimensions in (64, 16):
        check_prepared(dimensions)
