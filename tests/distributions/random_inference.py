"""Random joints, evidence and values in float32, and conditional log-probabilities of them in float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import kdmkit as kdm

QUERIES = 8


class Draw:
    """Random numbers of one configuration."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=self.generator).item()

    def power(self, low: float, high: float) -> float:
        """Between 10^low and 10^high, uniform in the logarithm."""
        return 10 ** self.uniform(low, high)

    def count(self, high: int) -> int:
        """Between 1 and `high`, uniform in the logarithm."""
        return min(high, int(math.exp(self.uniform(0, math.log(high + 1)))))

    def choose(self, *options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def weights(self, *shape: int) -> Tensor:
        logits = self.uniform(0, 4) * self.normal(*shape)
        return torch.softmax(logits, -1).float()


@dataclass
class Part:
    """One variable: its kernel and components, values near and far, and exact log-densities."""

    kernel: kdm.Kernel
    components: Tensor
    values: Callable[[int], Tensor]
    log_density: Callable[[Tensor], Tensor]


def continuous(draw: Draw, m: int, d: int) -> Part:
    """Components of any spread and offset; values from among them to 10⁴ bandwidths away."""
    spread, offset = draw.power(-1, 1), draw.choose(0.0, draw.uniform(-1e3, 1e3))
    components = (spread * draw.normal(m, d) + offset).float()
    sigma = spread * draw.power(-2, 1)
    shape = draw.choose((), (), (d,), (m, 1), (m, d))
    sigmas = (sigma * (0.5 * draw.normal(*shape)).exp()).float()
    kernel = kdm.RBF(sigmas)
    width = kernel.sigma.detach().double()

    def values(n: int) -> Tensor:
        start = components[draw.integers(m, n)].double()
        direction = draw.normal(n, d)
        far = torch.tensor([draw.power(-1, 4) for _ in range(n)], dtype=torch.float64)
        return (start + sigma * far[:, None] * direction / direction.norm(dim=-1, keepdim=True)).float()

    def log_density(x: Tensor) -> Tensor:
        u = (x.double().unsqueeze(-2) - components.double()) / width
        norm = -0.5 * math.log(math.pi) - width.log()
        return -u.square().sum(-1) + norm.expand(m, d).sum(-1)

    return Part(kernel, components, values, log_density)


def amplitudes(draw: Draw, m: int) -> Part:
    """Distributions over labels, from nearly even to nearly certain, under the Cosine kernel."""
    k = draw.choose(2, 10, 100)
    components = draw.weights(m, k).sqrt()
    square = components.double().square()
    log_probs = (square / square.sum(-1, keepdim=True)).log()
    return Part(kdm.Cosine(), components, lambda n: draw.integers(k, n), lambda y: log_probs.T[y])


def codes(draw: Draw, m: int) -> Part:
    k, smoothing = draw.choose(2, 10), draw.uniform(0.01, 0.5)
    components = draw.integers(k, m)
    kernel = kdm.Categorical(k, smoothing)
    table = kernel.probs(torch.arange(k)).double().log()
    return Part(kernel, components, lambda n: draw.integers(k, n), lambda y: table.T[y][..., components])


@dataclass
class Inference:
    """A joint, evidence on x and values of the other variables."""

    joint: kdm.JointKDM
    evidence: Tensor | kdm.KDM
    values: dict[str, Tensor]
    parts: dict[str, Part]

    def log_prob(self) -> Tensor:
        rho = self.joint.infer(x=self.evidence)
        return rho.log_prob(**self.values) if len(self.values) > 1 else rho.log_prob(*self.values.values())

    def exact(self) -> Tensor:
        """log Σ_l p_l Σ_j w_lj f̂_j(y), every sum in float64, by the formula."""
        prior = self.joint.log_weights.double()
        more = sum(self.parts[name].log_density(value) for name, value in self.values.items())
        if isinstance(self.evidence, Tensor):
            scores = prior + self.parts["x"].log_density(self.evidence)
            return torch.logsumexp(torch.log_softmax(scores, -1) + more, -1)
        scores = prior + self.parts["x"].log_density(self.evidence.components)
        conditional = torch.logsumexp(torch.log_softmax(scores, -1) + more.unsqueeze(1), -1)
        return torch.logsumexp(conditional + self.evidence.log_weights.double(), -1)


def random_inference(seed: int, m: int | None = None) -> Inference:
    """A configuration with m components; None: some number of them."""
    draw = Draw(seed)
    d, drawn = draw.count(128), draw.count(4096)
    m = drawn if m is None else m
    parts = {"x": continuous(draw, m, d)}
    outputs = draw.choose("labels", "codes", "continuous", "mixed")
    if outputs in ("labels", "mixed"):
        parts["y"] = amplitudes(draw, m)
    if outputs == "codes":
        parts["y"] = codes(draw, m)
    if outputs in ("continuous", "mixed"):
        parts["z"] = continuous(draw, m, draw.count(16))
    joint = kdm.JointKDM(
        {name: part.components for name, part in parts.items()},
        draw.weights(m),
        {name: part.kernel for name, part in parts.items()},
    )
    evidence: Tensor | kdm.KDM
    if draw.choose(True, True, False):
        evidence = parts["x"].values(QUERIES)
    else:
        bag = draw.count(8)
        evidence = kdm.KDM(parts["x"].values(bag), draw.weights(QUERIES, bag), kdm.RBF(1.0))
    values = {name: part.values(QUERIES) for name, part in parts.items() if name != "x"}
    return Inference(joint, evidence, values, parts)


def errors(seed: int, m: int | None = None) -> Tensor:
    """The errors of one configuration, in units of 1 + |log p|."""
    inference = random_inference(seed, m)
    with torch.no_grad():
        wanted = inference.exact()
        return (inference.log_prob().double() - wanted).abs() / (1 + wanted.abs())
