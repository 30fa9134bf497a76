"""Trees by enumeration of all combinations of states, from the formulas, and makers of small trees."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import kdmkit as kdm
from helpers import normal

Log = Mapping[str, Tensor]


@dataclass
class Brute:
    """The same tree, with a sum over every combination of states.

    Args:
        parents: by node, its parent.
        nodes: by node, its variables.
        log_root, log_edges: log p(z_root), and log p(z_v | z_parent) by node.
    """

    kernels: Mapping[str, kdm.Kernel]
    components: Log
    parents: Mapping[str, str | None]
    nodes: Mapping[str, tuple[str, ...]]
    log_root: Tensor
    log_edges: Log

    @property
    def sizes(self) -> dict[str, int]:
        root = next(node for node, up in self.parents.items() if up is None)
        return {n: len(self.log_root) if n == root else self.log_edges[n].shape[-1] for n in self.parents}

    def score(self, name: str, value: Any) -> Tensor:
        """log f̂(x | c_j), or the log mass of a region, `(*lead, k)`."""
        kernel, c = self.kernels[name], self.components[name]
        if isinstance(value, kdm.Interval | kdm.OneOf):
            return kernel.log_mass(value, c)
        x = value.unsqueeze(value.ndim - kernel.event_rank(value))
        return kernel.log_overlap(x, c) + kernel.log_norm(c)

    def log_joint(self, factors: Mapping[str, Tensor]) -> Tensor:
        """log p(z, what is known) for all combinations, `(*lead, n_combinations)`.

        Args:
            factors: by variable, `(*lead, k)`.
        """
        total = []
        for z in itertools.product(*(range(k) for k in self.sizes.values())):
            state = dict(zip(self.parents, z, strict=True))
            parts = [self._edge(node, state) for node in self.parents]
            parts += [
                factors[x][..., state[n]] for n, names in self.nodes.items() for x in names if x in factors
            ]
            total.append(sum(parts, torch.zeros(())))
        return torch.stack(torch.broadcast_tensors(*total), -1)

    def _edge(self, node: str, state: Mapping[str, int]) -> Tensor:
        up = self.parents[node]
        return self.log_root[state[node]] if up is None else self.log_edges[node][state[up], state[node]]

    def factors(
        self, values: Mapping[str, Any], observed: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        result = {name: self.score(name, value) for name, value in values.items()}
        for name, mask in (observed or {}).items():
            result[name] = torch.where(mask.unsqueeze(-1), result[name], 0.0)
        return result

    def log_prob(self, values: Mapping[str, Any], observed: Mapping[str, Tensor] | None = None) -> Tensor:
        """The log-density of some variables: the others are integrated out."""
        return torch.logsumexp(self.log_joint(self.factors(values, observed)), -1)

    def log_posterior(self, node: str, factors: Mapping[str, Tensor]) -> Tensor:
        """log p(z_node | what is known), `(*lead, k)`."""
        joint = self.log_joint(factors)
        combinations = itertools.product(*(range(k) for k in self.sizes.values()))
        place = list(self.parents).index(node)
        state = torch.tensor([z[place] for z in combinations])
        sums = [torch.logsumexp(joint[..., state == j], -1) for j in range(self.sizes[node])]
        return torch.log_softmax(torch.stack(sums, -1), -1)


PARENTS = {"a": None, "b": "a", "cd": "a", "e": "cd", "h": "cd"}
NODES = {"a": ("a",), "b": ("b",), "cd": ("c", "d"), "e": ("e",), "h": ()}
CODES = {"b": kdm.Categorical(3, 0.2).double(), "e": kdm.Categorical(3, 0.05).double()}
SIZES = {"a": 3, "b": 4, "cd": 2, "e": 3, "h": 2}


@dataclass
class Parameters:
    """Leaves from which a tree is made, for gradients."""

    components: dict[str, Tensor]
    sigma: Tensor
    root: Tensor
    edges: dict[str, Tensor]

    @property
    def leaves(self) -> list[Tensor]:
        floating = [c for c in self.components.values() if c.is_floating_point()]
        return [*floating, self.sigma, self.root, *self.edges.values()]


def parameters(seed: int = 0, sharpness: float = 1.0) -> Parameters:
    """Five variables in five nodes (one latent): two RBFs, amplitudes, smoothed and plain codes."""
    components = {
        "a": normal(3, 1, seed=seed),
        "b": torch.tensor([0, 1, 2, 1]),
        "c": normal(2, 2, seed=seed + 1),
        "d": normal(2, 3, seed=seed + 2).abs() + 0.1,
        "e": torch.tensor([2, 0, 1]),
    }
    edges = {
        node: sharpness * normal(SIZES[up], SIZES[node], seed=seed + 10 + i)
        for i, (node, up) in enumerate(PARENTS.items())
        if up is not None
    }
    made = Parameters(components, normal(3, 1, seed=seed + 3).exp(), normal(3, seed=seed + 4), edges)
    for leaf in made.leaves:
        leaf.requires_grad_()
    return made


def pair(made: Parameters) -> tuple[kdm.TreeKDM, Brute]:
    """A tree of the library and its slow twin, of the same leaves."""
    kernels = {
        "a": kdm.RBF(kdm.kernels.FixedBandwidth("sigma", made.sigma, validate=False)),
        "b": CODES["b"],
        "c": kdm.RBF([0.7, 1.3]),
        "d": kdm.Cosine(),
        "e": CODES["e"],
    }
    log_root = torch.log_softmax(made.root, -1)
    log_edges = {node: torch.log_softmax(edge, -1) for node, edge in made.edges.items()}
    tree = kdm.TreeKDM(
        made.components,
        kernels,
        PARENTS,
        nodes=NODES,
        log_root_weights=log_root,
        log_edge_weights=log_edges,
    )
    return tree, Brute(kernels, made.components, PARENTS, NODES, log_root, log_edges)


def rows(n: int, seed: int = 50) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": normal(n, 1, seed=seed + 1),
        "b": torch.randint(3, (n,), generator=generator),
        "c": normal(n, 2, seed=seed + 2),
        "d": torch.randint(3, (n,), generator=generator),
        "e": torch.randint(3, (n,), generator=generator),
    }


def masks(n: int, seed: int = 60) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(n, generator=generator) < 0.6 for name in rows(1)}
