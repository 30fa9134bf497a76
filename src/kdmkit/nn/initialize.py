"""Starting values from data: samples or centres of clusters as components, and their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_choice, check_number, is_integer
from kdmkit.kernels import Kernel, typical_distance
from kdmkit.kernels.bandwidth import ROUNDING
from kdmkit.nn.layer import Variable

Method = Literal["random", "kmeans++", "balanced", "kmeans"]
Sigma = Literal["nearest", "mean"] | float

# k-means sees at most this many samples of a class.
CLUSTER_SAMPLE = 100_000
# A few rounds of k-means: clusters only have to spread the components over the data.
_ROUNDS = 20


class Initializer:
    """The components and weights from which a layer starts, taken from data of all its variables.

    Args:
        cluster_sample: k-means sees at most this many samples of a class, or one for each component.
    """

    def __init__(
        self,
        variables: list[Variable],
        data: Mapping[str, Any],
        generator: torch.Generator | None,
        *,
        cluster_sample: int = CLUSTER_SAMPLE,
    ) -> None:
        self._cluster_sample = cluster_sample
        self.variables = {variable.name: variable for variable in variables}
        self.generator = generator
        self.device = torch.device("cpu") if generator is None else generator.device
        self.data = {name: self._checked(variable, data[name]) for name, variable in self.variables.items()}
        lengths = {name: value.shape[0] for name, value in self.data.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(bad_argument("values", "as many samples of every variable", lengths))
        self.n = next(iter(lengths.values()))

    def _checked(self, variable: Variable, value: Any) -> Tensor:
        tensor = as_tensor(variable.name, value).detach()
        kernel = variable.kernel
        if kernel.event_rank(tensor) == len(variable.shape):
            if tensor.ndim != 1 + len(variable.shape) or tensor.shape[1:] != variable.shape:
                inside = ", ".join(["n", *map(str, variable.shape)])
                raise ValueError(bad_argument(variable.name, f"shape ({inside})", tuple(tensor.shape)))
        elif tensor.ndim != 1:
            raise ValueError(bad_argument(variable.name, "labels of shape (n,)", tuple(tensor.shape)))
        kernel.check_events(variable.name, tensor, variable.shape)
        return tensor

    # ---- choice of samples

    def start(self, m: int, method: Method) -> tuple[dict[str, Tensor], Float[Tensor, " m"]]:
        """Components by variable, and logits."""
        check_choice("method", method, ("random", "kmeans++", "balanced", "kmeans"))
        if m > self.n:
            raise ValueError(bad_argument("values", f"at least as many samples as components ({m})", self.n))
        if method == "kmeans":
            return self._clustered(m)
        logits = torch.zeros(m)
        if method == "balanced":
            labels = self._labels()
            index = self._round_robin(labels, m)
            logits = _class_logits(labels, index)
        else:
            index = self._spread(m) if method == "kmeans++" else self._permutation(self.n)[:m]
        return self._components({name: value.cpu()[index] for name, value in self.data.items()}), logits

    def _components(self, chosen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Chosen values of every variable as its components."""
        variables = self.variables.items()
        return {name: v.kernel.initial_components(chosen[name], v.shape) for name, v in variables}

    def _permutation(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.generator, device=self.device).cpu()

    def _vectors(self) -> Float[Tensor, "n p"]:
        """The continuous variables side by side, standardised."""
        vectors = [
            value.flatten(1).double().cpu()
            for name, value in self.data.items()
            if self.variables[name].kernel.is_continuous
        ]
        if not vectors:
            wanted = "one for discrete variables ('random', 'balanced')"
            raise ValueError(bad_argument("method", wanted, "'kmeans' or 'kmeans++'"))
        x = torch.cat(vectors, 1)
        return (x - x.mean(0)) / _std(x)

    def _spread(self, m: int) -> Int[Tensor, " m"]:
        """m samples that lie far from each other (k-means++)."""
        from sklearn.cluster import kmeans_plusplus

        _, chosen = kmeans_plusplus(self._vectors().numpy(), m, random_state=self._seed())
        index = torch.from_numpy(chosen).long()
        unique, spare = torch.unique(index), self._permutation(self.n)
        if len(unique) == m:
            return index
        # k-means++ repeats samples if points coincide: random others replace them.
        return torch.cat([unique, spare[~torch.isin(spare, unique)][: m - len(unique)]])

    def _clustered(self, m: int) -> tuple[dict[str, Tensor], Float[Tensor, " m"]]:
        """Centres of clusters, weighted by their sample counts; every label, if any, has its own clusters."""
        has_labels = any(_is_label(variable.kernel) for variable in self.variables.values())
        labels = self._labels() if has_labels else torch.zeros(self.n, dtype=torch.long)
        counts = torch.bincount(labels)
        quotas = torch.bincount(labels[self._round_robin(labels, m)], minlength=len(counts))
        vectors = self._vectors()
        members: list[Tensor] = []
        logits: list[float] = []
        for label, quota in enumerate(quotas.tolist()):
            rows = torch.nonzero(labels == label).squeeze(-1)
            rows = rows[self._permutation(len(rows))][: max(quota, self._cluster_sample)]
            clusters = _clusters(vectors, rows, quota, self._seed()) if quota else []
            members += clusters
            logits += [math.log(len(part) / len(rows) * int(counts[label])) for part in clusters]
        components = self._components({name: self._centres(name, members) for name in self.variables})
        return components, torch.tensor(logits, dtype=torch.float64)

    def _centres(self, name: str, members: list[Tensor]) -> Tensor:
        """The mean of every cluster; the value of a member if the variable is discrete."""
        value = self.data[name].cpu()
        if self.variables[name].kernel.is_continuous:
            return torch.stack([value[rows].double().mean(0).to(value.dtype) for rows in members])
        return torch.stack([value[rows[0]] for rows in members])

    def _seed(self) -> int:
        return int(torch.randint(2**31 - 1, (), generator=self.generator, device=self.device))

    def _labels(self) -> Int[Tensor, " n"]:
        """Labels of the last discrete variable; an amplitude counts as its likeliest label."""
        for name in reversed(self.data):
            value = self.data[name]
            if _is_label(self.variables[name].kernel):
                return (value.long() if is_integer(value) else value.abs().argmax(-1)).cpu()
        wanted = "one for continuous variables ('random', 'kmeans++')"
        raise ValueError(bad_argument("method", wanted, "'balanced'"))

    def _round_robin(self, labels: Int[Tensor, " n"], m: int) -> Int[Tensor, " m"]:
        """One random sample of every class in turn until m are chosen, or until a class has none left."""
        order = self._permutation(self.n)
        labels = labels[order]
        by_class = torch.argsort(labels, stable=True)
        counts = torch.bincount(labels)
        starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        turn = torch.arange(self.n) - starts
        return order[by_class[torch.argsort(turn, stable=True)][:m]]

    def in_groups(self, components: Mapping[str, Tensor], n: int) -> Int[Tensor, " m"]:
        """The order of components in which n groups of equal size follow each other: near ones, roughly.

        Components are halved, again and again, across the widest direction of the continuous variables.
        """
        values = [
            value.detach().flatten(1).double().cpu()
            for name, value in components.items()
            if self.variables[name].kernel.is_continuous
        ]
        m = len(next(iter(components.values())))
        if not values:
            return torch.arange(m)
        points = torch.cat(values, 1)
        return _halved(points / _std(points), torch.arange(m), n)

    def distances(self, components: Mapping[str, Tensor]) -> dict[str, float]:
        """The typical distance between neighbouring components, in the units of every continuous variable.

        In a single column components have near neighbours, however far apart they are in all columns. So the
        distance is that of all continuous variables together, each divided by its spread, and the result is
        multiplied by the spread again: columns start as they would in one variable that holds them all. Empty
        if fewer than two variables vary.
        """
        points = {
            name: value.detach().double().flatten(1).cpu()
            for name, value in components.items()
            if self.variables[name].kernel.is_continuous
        }
        columns = {name: _varying(value) for name, value in points.items()}
        points = {name: value for name, value in points.items() if bool(columns[name].any())}
        if len(points) < 2:
            return {}
        stds = {name: _std(value[:, columns[name]]) for name, value in points.items()}
        spreads = {name: float(std.square().mean().sqrt()) for name, std in stds.items()}
        together = torch.cat([value / spreads[name] for name, value in points.items()], 1)
        typical = typical_distance(together, "nearest")
        return {name: spread * typical for name, spread in spreads.items()}


def _halved(points: Float[Tensor, "m d"], members: Int[Tensor, " k"], n: int) -> Int[Tensor, " k"]:
    """Members in an order in which n groups of equal size are near each other."""
    if n == 1:
        return members
    part = points[members]
    widest = int((part.amax(0) - part.amin(0)).argmax())
    ordered = members[part[:, widest].argsort(stable=True)]
    low, high = ordered.split([len(members) * (n // 2) // n, len(members) - len(members) * (n // 2) // n])
    return torch.cat([_halved(points, low, n // 2), _halved(points, high, n - n // 2)])


def _class_logits(labels: Int[Tensor, " n"], index: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """log(samples of a component's class / components of that class)."""
    counts = torch.bincount(labels).double()
    chosen = torch.bincount(labels[index], minlength=len(counts)).double()
    return (counts.clamp_min(1).log() - chosen.clamp_min(1).log())[labels[index]]


def check_sigma(sigma: Sigma) -> None:
    """A rule's name, or a positive number."""
    if isinstance(sigma, str):
        check_choice("sigma", sigma, ("nearest", "mean"))
    else:
        check_number("sigma", sigma, "'nearest', 'mean' or a number > 0", positive=True)


def _is_label(kernel: Kernel) -> bool:
    """Whether a variable's events are labels: a Composed kernel is discrete in its encoder's space only."""
    return kernel.discrete and kernel.has_density


def _std(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviations, with 1 for constant columns."""
    spread = x.std(0, unbiased=False)
    return torch.where(_varying(x), spread, torch.ones_like(spread))


def _varying(x: Float[Tensor, "n d"]) -> Bool[Tensor, " d"]:
    return x.std(0, unbiased=False) > ROUNDING * x.abs().amax(0)


def _clusters(
    vectors: Float[Tensor, "n p"], rows: Int[Tensor, " k"], quota: int, seed: int
) -> list[Int[Tensor, "_"]]:
    """The rows of each of `quota` clusters."""
    numbers = cluster(vectors[rows], quota, seed=seed)
    clusters = [rows[numbers == i] for i in range(int(numbers.max()) + 1)]
    # k-means finds fewer clusters if points coincide: the largest are halved.
    while len(clusters) < quota:
        largest = max(range(len(clusters)), key=lambda i: len(clusters[i]))
        members = clusters.pop(largest)
        clusters += [members[: len(members) // 2], members[len(members) // 2 :]]
    return clusters


def cluster(
    vectors: Float[Tensor, "n p"],
    m: int,
    *,
    seed: int,
    weights: Float[Tensor, " n"] | None = None,
    sample: int | None = None,
) -> Int[Tensor, " n"]:
    """The cluster of every row, counted from 0: at most m, fewer if rows coincide.

    Args:
        weights: of the rows.
        sample: fit on at most this many rows, chosen by `seed`; None fits on all.

    >>> cluster(torch.tensor([[0.0], [0.1], [9.0]]), 2, seed=0).unique().tolist()
    [0, 1]
    """
    # scikit-learn takes a second to import: only clusters need it.
    from sklearn.cluster import KMeans

    vectors = vectors.double()
    fitted = vectors
    if sample is not None:
        rows = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:sample]
        fitted, weights = vectors[rows], None if weights is None else weights[rows]
    means = KMeans(_count_distinct(fitted, m), n_init=1, max_iter=_ROUNDS, random_state=seed).fit(
        fitted.numpy(), sample_weight=None if weights is None else weights.double().numpy()
    )
    numbers = means.labels_ if sample is None else means.predict(vectors.numpy())
    return torch.unique(torch.from_numpy(numbers).long(), return_inverse=True)[1]


def _count_distinct(vectors: Float[Tensor, "n p"], most: int) -> int:
    """The number of distinct rows, at most `most`."""
    # The first rows mostly suffice.
    few = min(most, len(torch.unique(vectors[: 2 * most], dim=0)))
    return few if few == most else min(most, len(torch.unique(vectors, dim=0)))
