"""The same quantities, written in the ways in which people write them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.neighbors import KernelDensity
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.nn.functional import scaled_dot_product_attention

from kdmkit import KDM, RBF, Cosine, JointKDM, PreparedKDM
from kdmkit.nn import JointLayer
from kdmkit.ops import attend
from kdmkit.training import nll


@dataclass(frozen=True)
class Inputs:
    """Queries x (n, d), components c (m, d), log-weights (m,), values (m, v), labels (n,) and σ."""

    x: Tensor
    c: Tensor
    log_weights: Tensor
    values: Tensor
    labels: Tensor
    sigma: float

    @classmethod
    def random(cls, n: int, m: int, d: int, v: int, device: torch.device, seed: int = 0) -> Inputs:
        """Standard-normal points, σ = √d, values that are distributions over v labels."""
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device)

        values = torch.softmax(normal(m, v), -1)
        labels = torch.randint(v, (n,), generator=generator, device=device)
        return cls(normal(n, d), normal(m, d), torch.log_softmax(normal(m), -1), values, labels, math.sqrt(d))

    def leaves(self) -> Inputs:
        """The same numbers, asking for gradients."""
        return self._mapped(lambda tensor: tensor.clone().requires_grad_())

    def double(self) -> Inputs:
        return self._mapped(Tensor.double)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        return replace(
            self,
            x=change(self.x),
            c=change(self.c),
            log_weights=change(self.log_weights),
            values=change(self.values),
        )


# ---- averages of values: (n, v)


def kdmkit_attend(p: Inputs) -> Tensor:
    return attend(RBF(p.sigma).term(p.x, p.c), p.log_weights, p.values)[0]


def kdmkit_probs(p: Inputs) -> Callable[[], Tensor]:
    """Class probabilities as users ask for them, of a joint KDM that is prepared beforehand."""
    joint = _joint(p).prepared()
    return lambda: _probs(joint, p.x)


def unprepared_probs(p: Inputs) -> Callable[[], Tensor]:
    joint = _joint(p)
    return lambda: _probs(joint, p.x)


def _joint(p: Inputs) -> JointKDM:
    kernels = {"x": RBF(p.sigma), "y": Cosine()}
    components = {"x": p.c, "y": p.values.sqrt()}
    return JointKDM(components, None, kernels, log_weights=p.log_weights)


def _probs(joint: JointKDM, x: Tensor) -> Tensor:
    return joint.infer(x=x, target="y").probs


def plain_attend(p: Inputs) -> Tensor:
    """One matrix product and a softmax."""
    scores = torch.addmm(p.log_weights - p.c.square().sum(-1) / p.sigma**2, p.x, p.c.mT, alpha=2 / p.sigma**2)
    return torch.softmax(scores, -1) @ p.values


def sdpa_attend(p: Inputs) -> Tensor:
    """torch's fused attention, the bias as one more dimension of the keys."""
    bias = (p.log_weights - p.c.square().sum(-1) / p.sigma**2).unsqueeze(-1)
    query = torch.cat([p.x * (2 / p.sigma**2), torch.ones_like(p.x[:, :1])], -1)
    key = torch.cat([p.c, bias], -1)
    return scaled_dot_product_attention(query[None], key[None], p.values[None], scale=1.0)[0]


def materialised_attend(p: Inputs) -> Tensor:
    """Differences of all pairs, weights packed with vectors, outputs expanded to (n, m, v), a clamp."""
    overlap = torch.exp(-(p.x.unsqueeze(1) - p.c.unsqueeze(0)).square().sum(-1) / p.sigma**2)
    weights = p.log_weights.exp() * overlap
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
    packed = torch.cat([weights.unsqueeze(-1), p.values.sqrt().expand(len(p.x), -1, -1)], -1)
    out_weights, amplitudes = packed[..., 0], packed[..., 1:]
    amplitudes = amplitudes / amplitudes.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return torch.einsum("ij,ijk->ik", out_weights, amplitudes.square())


def both_ways(forward: Callable[[Inputs], Tensor], p: Inputs) -> Callable[[], Tensor]:
    """Forward, and backward to points, components, log-weights and values."""

    def call() -> Tensor:
        leaves = (p.x, p.c, p.log_weights, p.values)
        result = forward(p)
        torch.autograd.grad(result.square().sum(), leaves)
        return result.detach()

    return call


def in_precision(precision: str, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The call under another float32 matmul precision."""

    def changed() -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            return call()
        finally:
            torch.set_float32_matmul_precision(before)

    return changed


def graphed(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step captured once as a CUDA graph and replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


# ---- one training step: loss and gradients of all parameters


class Head(nn.Module):
    """Parameters of a classifier's joint KDM."""

    def __init__(self, p: Inputs) -> None:
        super().__init__()
        self.c, self.logits = nn.Parameter(p.c.clone()), nn.Parameter(p.log_weights.clone())
        self.amplitudes = nn.Parameter(p.values.sqrt())
        self.log_sigma = nn.Parameter(torch.tensor(math.log(p.sigma), device=p.c.device))

    def inputs(self, p: Inputs) -> Inputs:
        """The same queries and labels with this module's parameters."""
        values = torch.nn.functional.normalize(self.amplitudes, dim=-1).square()
        return Inputs(p.x, self.c, torch.log_softmax(self.logits, -1), values, p.labels, p.sigma)


class KdmkitHead(nn.Module):
    """The library's layer, as users have it."""

    def __init__(self, p: Inputs) -> None:
        super().__init__()
        (m, d), v = p.c.shape, p.values.shape[1]
        self.layer = JointLayer(d, v, m, in_kernel=RBF(p.sigma), device=p.c.device)
        with torch.no_grad():
            self.layer.components["x"].copy_(p.c)
            self.layer.components["y"].copy_(p.values.sqrt())
            self.layer.logits.copy_(p.log_weights)

    def forward(self, p: Inputs) -> Tensor:
        return nll(self.layer(p.x), p.labels).mean()


class PlainHead(Head):
    def forward(self, p: Inputs) -> Tensor:
        q, precision = self.inputs(p), torch.exp(-2 * self.log_sigma)
        scores = torch.addmm(q.log_weights - q.c.square().sum(-1) * precision, p.x * (2 * precision), q.c.mT)
        probs = torch.softmax(scores, -1) @ q.values
        return -probs.gather(1, p.labels.unsqueeze(1)).log().mean()


class MaterialisedHead(Head):
    def forward(self, p: Inputs) -> Tensor:
        sigma = self.log_sigma.exp()
        overlap = torch.exp(-(p.x.unsqueeze(1) - self.c.unsqueeze(0)).square().sum(-1) / sigma**2)
        weights = torch.softmax(self.logits, -1) * overlap
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
        packed = torch.cat([weights.unsqueeze(-1), self.amplitudes.expand(len(p.x), -1, -1)], -1)
        out_weights, amplitudes = packed[..., 0], packed[..., 1:]
        amplitudes = amplitudes / amplitudes.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        probs = torch.einsum("ij,ijk->ik", out_weights, amplitudes.square())
        return -probs.gather(1, p.labels.unsqueeze(1)).clamp_min(1e-12).log().mean()


def training_step(head: nn.Module, p: Inputs) -> Callable[[], Tensor]:
    """A function that does one step's forward and backward pass and returns the loss."""

    def step() -> Tensor:
        head.zero_grad(set_to_none=True)
        loss: Tensor = head(p)
        loss.backward()
        return loss.detach()

    return step


# ---- log-densities: (n,)


def kdmkit_density(p: Inputs) -> Tensor:
    return KDM(p.c, None, RBF(p.sigma), log_weights=p.log_weights, validate_args=False).log_prob(p.x)


def exact_prepared_density(p: Inputs) -> Callable[[], Tensor]:
    """Exact; components are put in order beforehand."""
    prepared = _prepared(p)
    return lambda: prepared.log_prob(p.x)


def prepared_density(p: Inputs) -> Callable[[], Tensor]:
    """A density with an error of a thousandth; components are put in order beforehand."""
    prepared = _prepared(p)
    return lambda: prepared.log_prob(p.x, rtol=1e-3)


def preparing_density(p: Inputs) -> Tensor:
    """A density with an error of a thousandth; putting components in order is timed as well."""
    return _prepared(p).log_prob(p.x, rtol=1e-3)


def _prepared(p: Inputs) -> PreparedKDM:
    return PreparedKDM(KDM(p.c, None, RBF(p.sigma), log_weights=p.log_weights))


def sklearn_density(p: Inputs) -> Callable[[], Tensor]:
    """scikit-learn's tree at its default exactness; building the tree is not counted."""
    tree = KernelDensity(bandwidth=p.sigma / math.sqrt(2)).fit(
        p.c.cpu().numpy(), sample_weight=p.log_weights.exp().cpu().numpy()
    )
    return lambda: torch.from_numpy(tree.score_samples(p.x.cpu().numpy()))


def mixture_density(p: Inputs) -> Tensor:
    std = torch.full_like(p.c, p.sigma / math.sqrt(2))
    parts = Independent(Normal(p.c, std, validate_args=False), 1, validate_args=False)
    weights = Categorical(logits=p.log_weights, validate_args=False)
    return MixtureSameFamily(weights, parts, validate_args=False).log_prob(p.x)


def keops_density(p: Inputs) -> Callable[[], Tensor]:
    """PyKeOps' symbolic reduction."""
    from pykeops.torch import LazyTensor

    norm = -p.x.shape[1] / 2 * math.log(math.pi * p.sigma**2)

    def density() -> Tensor:
        x, c = LazyTensor(p.x[:, None, :]), LazyTensor(p.c[None, :, :])
        w = LazyTensor(p.log_weights[None, :, None].contiguous())
        result: Any = (w - ((x - c) ** 2).sum(-1) / p.sigma**2).logsumexp(dim=1)
        return result.squeeze(-1) + norm

    return density


def has_keops() -> bool:
    """Whether PyKeOps is installed and finds a compiler."""
    try:
        import pykeops.torch  # noqa: F401
    except Exception as error:
        warnings.warn(f"PyKeOps is left out: {error}", stacklevel=2)
        return False
    return True
