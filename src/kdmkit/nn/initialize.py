"""Starting values from data: which samples become components, and how wide the kernels are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_choice, is_integer
from kdmkit.kernels import Composed, Cosine, Kernel, LocationScale
from kdmkit.nn.variable import Variable

Method = Literal["random", "kmeans++", "balanced", "kmeans"]
Sigma = Literal["nearest", "mean"] | float

# A label's amplitude keeps this much probability for the others: at an exact zero no gradient would live.
LABEL_SMOOTHING = 0.01
# The bandwidth's lower bound, relative to its starting value.
BOUND = 0.01
# k-means sees at most this many samples, for a few rounds: it only has to spread the components.
_CLUSTER_SAMPLE = 100_000
_CLUSTER_ROUNDS = 20
# Distances are taken from about this many components, so many pairs at a time.
_DISTANCE_SAMPLE = 2048
_DISTANCE_PAIRS = 1 << 22
# Differences below this part of the values' size are rounding.
_ROUNDING = 1e-12


class Initializer:
    """Data of all variables, ready to lend a layer its first components."""

    def __init__(
        self, variables: list[Variable], data: Mapping[str, Any], generator: torch.Generator | None
    ) -> None:
        self.variables = {variable.name: variable for variable in variables}
        self.generator = generator
        self.data = {name: self._checked(variable, data[name]) for name, variable in self.variables.items()}
        lengths = {name: value.shape[0] for name, value in self.data.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(bad_argument("values", "as many samples of every variable", lengths))
        self.n = next(iter(lengths.values()))

    def _checked(self, variable: Variable, value: Any) -> Tensor:
        tensor = as_tensor(variable.name, value).detach()
        kernel = variable.kernel
        if not (isinstance(kernel, Cosine) and is_integer(tensor)):
            if tensor.ndim != 1 + len(variable.shape) or tensor.shape[1:] != variable.shape:
                inside = ", ".join(["n", *map(str, variable.shape)])
                raise ValueError(bad_argument(variable.name, f"shape ({inside})", tuple(tensor.shape)))
        elif tensor.ndim != 1:
            raise ValueError(bad_argument(variable.name, "labels of shape (n,)", tuple(tensor.shape)))
        kernel.check_events(variable.name, tensor, variable.shape)
        return tensor

    # ---- which samples

    def start(self, m: int, method: Method) -> tuple[dict[str, Tensor], Float[Tensor, " m"]]:
        """Components by variable, and logits."""
        check_choice("method", method, ("random", "kmeans++", "balanced", "kmeans"))
        if m > self.n:
            raise ValueError(bad_argument("values", f"at least as many samples as components ({m})", self.n))
        if method == "kmeans":
            return self._clustered(m)
        choose = {"random": self._random, "kmeans++": self._spread, "balanced": self._balanced}[method]
        index = choose(m)
        logits = self._class_logits(index) if method == "balanced" else torch.zeros(m)
        return {name: self.components(name, self.data[name].cpu()[index]) for name in self.variables}, logits

    def _random(self, m: int) -> Int[Tensor, " m"]:
        return self._permutation(self.n)[:m]

    def _permutation(self, n: int) -> Tensor:
        device = self.generator.device if self.generator is not None else None
        return torch.randperm(n, generator=self.generator, device=device).cpu()

    def _vectors(self) -> Float[Tensor, "n p"]:
        """The continuous variables side by side, standardised."""
        vectors = [
            value.flatten(1).double().cpu()
            for name, value in self.data.items()
            if isinstance(self.variables[name].kernel, LocationScale)
        ]
        if not vectors:
            wanted = "one for discrete variables ('random', 'balanced')"
            raise ValueError(bad_argument("method", wanted, "'kmeans' or 'kmeans++'"))
        x = torch.cat(vectors, 1)
        return (x - x.mean(0)) / _spread(x)

    def _spread(self, m: int) -> Int[Tensor, " m"]:
        # scikit-learn takes a second to import: whoever brings components of their own need not wait.
        from sklearn.cluster import kmeans_plusplus

        _, index = kmeans_plusplus(self._vectors().numpy(), m, random_state=self._seed())
        return _distinct(torch.from_numpy(index).long(), self._permutation(self.n))

    def _clustered(self, m: int) -> tuple[dict[str, Tensor], Float[Tensor, " m"]]:
        """Centres of clusters, found class by class where there are classes; weights are their shares."""
        labels = self._labels() if self._has_labels else torch.zeros(self.n, dtype=torch.long)
        counts = torch.bincount(labels)
        quotas = torch.bincount(labels[self._round_robin(labels, m)], minlength=len(counts))
        vectors = self._vectors()
        members: list[Tensor] = []
        logits: list[float] = []
        for label, quota in enumerate(quotas.tolist()):
            rows = torch.nonzero(labels == label).squeeze(-1)
            rows = rows[self._permutation(len(rows))][: max(quota, _CLUSTER_SAMPLE)]
            found = _clusters(vectors, rows, quota, self._seed()) if quota else []
            members += found
            logits += [math.log(len(part) / len(rows) * int(counts[label])) for part in found]
        components = {name: self.components(name, self._centres(name, members)) for name in self.variables}
        return components, torch.tensor(logits, dtype=torch.float64)

    def _centres(self, name: str, members: list[Tensor]) -> Tensor:
        """A cluster's mean of a continuous variable; of a discrete one the value of its first member."""
        value = self.data[name].cpu()
        if isinstance(self.variables[name].kernel, LocationScale):
            return torch.stack([value[rows].double().mean(0).to(value.dtype) for rows in members])
        return torch.stack([value[rows[0]] for rows in members])

    def _seed(self) -> int:
        return int(torch.randint(2**31 - 1, (), generator=self.generator, device=self._device()))

    def _device(self) -> torch.device:
        return torch.device("cpu") if self.generator is None else self.generator.device

    @property
    def _has_labels(self) -> bool:
        return any(_is_label(variable.kernel) for variable in self.variables.values())

    def _labels(self) -> Int[Tensor, " n"]:
        """Labels of the last discrete variable; an amplitude counts as its likeliest label."""
        for name in reversed(self.data):
            value = self.data[name]
            if _is_label(self.variables[name].kernel):
                return (value.long() if is_integer(value) else value.abs().argmax(-1)).cpu()
        raise ValueError(
            bad_argument("method", "one for continuous variables ('random', 'kmeans++')", "'balanced'")
        )

    def _balanced(self, m: int) -> Int[Tensor, " m"]:
        return self._round_robin(self._labels(), m)

    def _round_robin(self, labels: Int[Tensor, " n"], m: int) -> Int[Tensor, " m"]:
        """One random sample of every class in turn until m are chosen: scarce classes give all they have."""
        order = self._permutation(self.n)
        labels = labels[order]
        by_class = torch.argsort(labels, stable=True)
        counts = torch.bincount(labels)
        starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        turn = torch.arange(self.n) - starts
        return order[by_class[torch.argsort(turn, stable=True)][:m]]

    # ---- what they give

    def components(self, name: str, chosen: Tensor) -> Tensor:
        """Chosen values of a variable as its components."""
        variable = self.variables[name]
        return (
            smooth_amplitudes(chosen, variable.shape[-1]) if isinstance(variable.kernel, Cosine) else chosen
        )

    def _class_logits(self, index: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        """The share of a class in the data, over the number of its components."""
        labels = self._labels()
        shares = torch.bincount(labels).double()
        chosen = torch.bincount(labels[index], minlength=len(shares)).double()
        return (shares.clamp_min(1).log() - chosen.clamp_min(1).log())[labels[index]]

    def set_bandwidth(self, kernel: Kernel, components: Tensor, sigma: Sigma) -> None:
        """A bandwidth that fits the components, and a lower bound that keeps likelihoods finite."""
        if isinstance(kernel, Composed):
            self.set_bandwidth(kernel.kernel, kernel.encode(components), sigma)
        if not isinstance(kernel, LocationScale):
            return
        width = typical_distance(components, sigma) if isinstance(sigma, str) else float(sigma)
        raw = kernel.bandwidth.raw
        value = torch.full(raw.shape, width, dtype=raw.dtype, device=raw.device)
        if isinstance(sigma, str) and raw.ndim and raw.shape[-1] > 1:
            value = value * _relative_spread(components.detach().double()).to(value)
        kernel.bandwidth.bound(0.0)
        kernel.bandwidth.value = value
        kernel.bandwidth.bound(BOUND * float(value.min()))


def check_sigma(sigma: Sigma) -> None:
    """A rule's name, or a positive number."""
    if isinstance(sigma, str):
        check_choice("sigma", sigma, ("nearest", "mean"))
    elif not 0 < float(sigma) < math.inf:
        raise ValueError(bad_argument("sigma", "'nearest', 'mean' or a number > 0", sigma))


def _is_label(kernel: Kernel) -> bool:
    """Whether a variable's events are labels: a Composed kernel is discrete in its encoder's space only."""
    return kernel.discrete and kernel.has_density


def smooth_amplitudes(value: Tensor, n: int) -> Float[Tensor, "m n"]:
    """√((1 − ε)·p + ε/n) for a label's one-hot p, or for the squares p of an amplitude.

    >>> smooth_amplitudes(torch.tensor([1]), 2).square()
    tensor([[0.0050, 0.9950]], dtype=torch.float64)
    """
    if is_integer(value):
        probs = torch.nn.functional.one_hot(value.long(), n).double()
    else:
        probs = value.square() / value.square().sum(-1, keepdim=True)
    return ((1 - LABEL_SMOOTHING) * probs + LABEL_SMOOTHING / n).sqrt()


def typical_distance(components: Tensor, kind: str) -> float:
    """A length on the scale of the components: between neighbours, or between any two.

    Coinciding components do not count; where all coincide the answer is 1.
    """
    check_choice("sigma", kind, ("nearest", "mean"))
    points = components.detach().double().flatten(1).cpu()
    some = points[:: max(1, points.shape[0] // _DISTANCE_SAMPLE)]
    others = points if kind == "nearest" else some
    coincide = _ROUNDING * float(points.abs().max())
    lengths = []
    for block in some.split(max(1, _DISTANCE_PAIRS // others.shape[0])):
        # The product form would put coinciding points 1e-7 apart.
        distances = torch.cdist(block, others, compute_mode="donot_use_mm_for_euclid_dist")
        apart = distances > coincide
        lengths.append(
            distances[apart] if kind == "mean" else torch.where(apart, distances, torch.inf).amin(1)
        )
    length = torch.cat(lengths)
    length = length[torch.isfinite(length)]
    if not len(length):
        return 1.0
    return float(length.mean() if kind == "mean" else length.median())


def _spread(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviations, with 1 for constant columns."""
    spread = x.std(0, unbiased=False)
    return torch.where(spread > _ROUNDING * x.abs().amax(0), spread, torch.ones_like(spread))


def _relative_spread(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviations relative to the typical one, with 1 for constant columns."""
    spread = x.std(0, unbiased=False)
    varies = spread > _ROUNDING * x.abs().amax(0)
    if not bool(varies.any()):
        return torch.ones_like(spread)
    return torch.where(varies, spread / spread[varies].square().mean().sqrt(), torch.ones_like(spread))


def _distinct(index: Int[Tensor, " m"], spare: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """k-means++ repeats indices where the data repeats points: spare samples take the place of repeats."""
    unique = torch.unique(index)
    if len(unique) == len(index):
        return index
    left = spare[~torch.isin(spare, unique)]
    return torch.cat([unique, left[: len(index) - len(unique)]])


def _clusters(
    vectors: Float[Tensor, "n p"], rows: Int[Tensor, " k"], quota: int, seed: int
) -> list[Int[Tensor, "_"]]:
    """The rows of each of `quota` clusters."""
    from sklearn.cluster import KMeans

    x = vectors[rows]
    distinct = len(torch.unique(x, dim=0))
    means = KMeans(min(quota, distinct), n_init=1, max_iter=_CLUSTER_ROUNDS, random_state=seed)
    assigned = torch.from_numpy(means.fit_predict(x.numpy())).long()
    found = [rows[assigned == cluster] for cluster in torch.unique(assigned).tolist()]
    return _split(found, quota)


def _split(clusters: list[Int[Tensor, "_"]], quota: int) -> list[Int[Tensor, "_"]]:
    """Halves the largest cluster until there are enough: k-means finds fewer where points coincide."""
    while len(clusters) < quota:
        largest = max(range(len(clusters)), key=lambda i: len(clusters[i]))
        rows = clusters.pop(largest)
        clusters += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return clusters
