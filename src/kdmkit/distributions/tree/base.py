"""What a tree of joint KDMs is made of."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions._validation import common_batch, event_shape_of
from kdmkit.distributions.tree.condition import Condition
from kdmkit.distributions.tree.pieces import NumberPieces
from kdmkit.distributions.tree.states import States
from kdmkit.distributions.weights import Composite
from kdmkit.kernels import Kernel


class TreeBase(Composite, ABC):
    """Components and kernels by variable, and a tree of component indices, with evidence or without."""

    components: dict[str, Tensor]
    kernels: dict[str, Kernel]
    event_shapes: dict[str, torch.Size]
    _tree: States | Condition
    _validate_args: bool

    def _set(
        self,
        components: dict[str, Tensor],
        kernels: dict[str, Kernel],
        tree: States | Condition,
        validate_args: bool,
    ) -> None:
        """What `_made` takes: the states of the tree, or a condition on them; nothing is checked."""
        self.components, self.kernels, self._tree = components, kernels, tree
        self.event_shapes = {
            name: event_shape_of(kernel, components[name]) for name, kernel in kernels.items()
        }
        self._validate_args = validate_args and not any(value.is_meta for value in components.values())
        shapes = {
            f"components[{n!r}]": components[n].shape[: -1 - k.component_dim] for n, k in kernels.items()
        }
        shapes |= {f"kernels[{name!r}]": kernel.batch_shape for name, kernel in kernels.items()}
        self.batch_shape = common_batch({"weights": tree.batch_shape, **shapes})

    # ---- what it is made of

    @property
    def _states(self) -> States:
        return self._tree.states if isinstance(self._tree, Condition) else self._tree

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(self.kernels)

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """By node, the variables that it holds; the root first, parents before their children."""
        topology = self._states.topology
        return dict(zip(topology.nodes, topology.variables, strict=True))

    @property
    def parents(self) -> dict[str, str | None]:
        """By node, its parent; None for the root."""
        names, above = self._states.topology.nodes, self._states.topology.parents
        return {name: None if up < 0 else names[up] for name, up in zip(names, above, strict=True)}

    @property
    def n_components(self) -> dict[str, int]:
        """By node, the number of its components."""
        return dict(zip(self._states.topology.nodes, self._states.sizes, strict=True))

    @property
    def log_root_weights(self) -> Float[Tensor, "*batch k_root"]:
        """log p(z_root), before any evidence."""
        return self._states.log_root

    @property
    def root_weights(self) -> Float[Tensor, "*batch k_root"]:
        """p(z_root), before any evidence."""
        return self.log_root_weights.exp()

    @property
    def log_edge_weights(self) -> dict[str, Float[Tensor, "*batch k_parent k"]]:
        """By node except the root, log p(z_v | z_parent), before any evidence."""
        names, tables = self._states.topology.nodes, self._states.tables
        return {name: tables.log_table(node) for node, name in enumerate(names) if node}

    @property
    def edge_weights(self) -> dict[str, Float[Tensor, "*batch k_parent k"]]:
        """By node except the root, p(z_v | z_parent), before any evidence."""
        return {name: table.exp() for name, table in self.log_edge_weights.items()}

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l p(evidence_l) of the evidence this was inferred from; −∞ where it is impossible."""
        if not isinstance(self._tree, Condition):
            raise AttributeError("log_evidence: only a TreeKDM that `infer` returned has evidence")
        return self._tree.log_evidence.expand(self.batch_shape)

    # ---- evidence as numbers

    def _evidence(self) -> tuple[dict[str, Tensor], Tensor | None, Tensor] | None:
        """Log-factors `(L, *batch, k)` by node, log-weights `(*batch, L)` of L pieces, log p(evidence)."""
        if not isinstance(self._tree, Condition):
            return None
        names = self._states.topology.nodes
        factors = {name: f for name, f in zip(names, self._tree.factors, strict=True) if f is not None}
        return factors, self._tree.pieces.log_weights, self._tree.log_evidence

    def _with_evidence(
        self, factors: Mapping[str, Tensor], log_weights: Tensor | None, log_evidence: Tensor
    ) -> Self:
        """The tree with evidence, from what `_evidence` gave."""
        position = {name: node for node, name in enumerate(self._states.topology.nodes)}
        pieces = NumberPieces({position[name]: factor for name, factor in factors.items()}, log_weights)
        condition = Condition(self._states, pieces, log_evidence)
        return self._made(self.components, self.kernels, condition, self._validate_args)
