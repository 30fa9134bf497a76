"""Trees of joint kernel density matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit._core.logspace import safe_logsumexp
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.arguments import (
    BatchIndex,
    Masks,
    check_names,
    check_target,
    check_variables,
    common_batch,
    component_tensors,
    gather_masks,
    is_checked,
)
from kdmkit.distributions.base import PartMap, expanded_shape, map_values
from kdmkit.distributions.event_inference import Answered, CaseScores
from kdmkit.distributions.evidence import Evidence, gather_evidence
from kdmkit.distributions.joint import JointKDM, NamedVariables
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.tree.completion import Completion, complete
from kdmkit.distributions.tree.condition import Conditioned, NodeWeights
from kdmkit.distributions.tree.drawing import draw_states
from kdmkit.distributions.tree.information import MutualInformation, between_variables, summed_pairs
from kdmkit.distributions.tree.sources import (
    EvidencePieces,
    ScorePieces,
    Source,
    by_node,
    in_blocks,
    score_sources,
    scores_by_node,
)
from kdmkit.distributions.tree.states import (
    States,
    Topology,
    build_states,
    count_states,
    floating,
    log_total,
    with_shift,
)
from kdmkit.kernels import Kernel
from kdmkit.ops.messages import Tables


class TreeKDM(NamedVariables):
    """Joint KDMs composed along a tree: every node has components, and an index that chooses one of them.

    p(x) = Σ_z p(z_root) · Π_{v ≠ root} p(z_v | z_parent(v)) · Π_v f̂_v(x_v | c_{v, z_v}).

    Inference from any variables to any others is exact: messages pass along the edges, with Σ_v k_v·k_parent
    operations per row. A node may have several variables, which share its index; a tree of one node is a
    `JointKDM`.

    Args:
        components: by variable, `(k, *event)` or `(*batch, k, *event)`; variables of one node have equally
            many.
        kernels: by variable.
        parents: by node, its parent; None for the root.
        root_weights: p(z_root), of shape `(*batch, k_root)`; None is uniform.
        edge_weights: by node except the root, p(z_v | z_parent), of shape `(*batch, k_parent, k_v)`; rows sum
            to 1 (zeros are legal).
        nodes: by node, its variables; none for a latent node. None: every node has the variable of the same
            name.
        log_root_weights, log_edge_weights: logarithms, instead of the weights.
        validate_args: whether arguments and values are checked.

    >>> import kdmkit as kdm
    >>> tree = kdm.TreeKDM(
    ...     {"x": torch.tensor([[-1.0], [1.0]]), "y": torch.tensor([0, 1, 2])},
    ...     {"x": kdm.RBF(0.5), "y": kdm.Categorical(3)},
    ...     {"x": None, "y": "x"},
    ...     edge_weights={"y": torch.tensor([[0.8, 0.2, 0.0], [0.0, 0.5, 0.5]])},
    ... )
    >>> tree.infer(x=torch.tensor([[-1.0], [0.0]])).probs
    tensor([[8.0000e-01, 2.0000e-01, 5.6268e-08],
            [4.0000e-01, 3.5000e-01, 2.5000e-01]])
    >>> tree.infer(y=torch.tensor(2)).mean
    tensor([1.])
    """

    def __init__(
        self,
        components: Mapping[str, Any],
        kernels: Mapping[str, Kernel],
        parents: Mapping[str, str | None],
        root_weights: Any = None,
        edge_weights: Mapping[str, Any] | None = None,
        *,
        nodes: Mapping[str, Sequence[str]] | None = None,
        log_root_weights: Any = None,
        log_edge_weights: Mapping[str, Any] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        kernels = check_variables(components, kernels)
        tensors = component_tensors(components, kernels)
        topology = Topology.of(parents, nodes)
        counts = count_states(topology, tensors, kernels)
        like = floating(tensors)
        validate = is_checked(validate_args, next(iter(tensors.values())))
        roots, edges = (root_weights, log_root_weights), (edge_weights, log_edge_weights)
        states = build_states(topology, counts, roots, edges, like, validate=validate)
        self._set(tensors, kernels, states, validate)
        if validate:
            self._check_component_values()

    def _set(
        self,
        components: dict[str, Tensor],
        kernels: dict[str, Kernel],
        tree: States | Conditioned,
        validate_args: bool,
    ) -> None:
        self._tree = tree
        self._set_variables(components, kernels, tree.batch_shape, validate_args)

    @classmethod
    def from_joint(cls, joint: JointKDM, node: str = "joint") -> TreeKDM:
        """A joint KDM as a tree of one node; inferred weights are computed.

        Args:
            node: the name of the node.
        """
        check_instance("joint", joint, JointKDM, "a JointKDM")
        topology = Topology((node,), (-1,), (joint.variables,))
        states = States(topology, joint._weights.log_weights, Tables((), (None,), ()))
        return cls._made(dict(joint.components), dict(joint.kernels), states, joint._validate_args)

    # ---- what it is made of

    @property
    def _states(self) -> States:
        return self._tree.states if isinstance(self._tree, Conditioned) else self._tree

    @property
    def nodes(self) -> dict[str, tuple[str, ...]]:
        """The variables of every node; the root first, parents before their children."""
        topology = self._states.topology
        return dict(zip(topology.nodes, topology.variables, strict=True))

    @property
    def parents(self) -> dict[str, str | None]:
        """The parent of every node; None for the root."""
        names, above = self._states.topology.nodes, self._states.topology.parents
        return {name: None if up < 0 else names[up] for name, up in zip(names, above, strict=True)}

    @property
    def n_components(self) -> dict[str, int]:
        """The number of components of every node."""
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
        """log p(z_v | z_parent) of every node v except the root, before any evidence."""
        names, tables = self._states.topology.nodes, self._states.tables
        return {name: tables.log_table(node) for node, name in enumerate(names) if node}

    @property
    def edge_weights(self) -> dict[str, Float[Tensor, "*batch k_parent k"]]:
        """p(z_v | z_parent) of every node v except the root, before any evidence."""
        return {name: table.exp() for name, table in self.log_edge_weights.items()}

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l p(evidence_l) of the evidence this was inferred from; −∞ if it is impossible."""
        if not isinstance(self._tree, Conditioned):
            raise AttributeError("log_evidence: only a TreeKDM that `infer` returned has evidence")
        return self._tree.log_evidence.expand(self.batch_shape)

    def _evidence(self) -> tuple[dict[str, Tensor], Tensor | None, Tensor] | None:
        """Log-factors `(L, *batch, k)` by node, log-weights `(*batch, L)` of L pieces, log p(evidence)."""
        if not isinstance(self._tree, Conditioned):
            return None
        names = self._states.topology.nodes
        factors = {name: f for name, f in zip(names, self._tree.factors, strict=True) if f is not None}
        return factors, self._tree.pieces.log_weights, self._tree.log_evidence

    def _with_evidence(
        self, factors: Mapping[str, Tensor], log_weights: Tensor | None, log_evidence: Tensor
    ) -> TreeKDM:
        """The tree with evidence, from what `_evidence` gave."""
        position = {name: node for node, name in enumerate(self._states.topology.nodes)}
        pieces = ScorePieces({position[name]: factor for name, factor in factors.items()}, log_weights)
        condition = Conditioned(self._states, pieces, log_evidence)
        return TreeKDM._made(self.components, self.kernels, condition, self._validate_args)

    # ---- densities, marginals and inference

    def _log_mix(self, entries: Mapping[str, Entry]) -> Float[Tensor, "*lead"]:
        lead = broadcast(self.batch_shape, *[entry.lead for entry in entries.values()])
        return self._log_prob_of(by_node(self._states.topology.node_of, entries)).expand(lead)

    def _log_prob_of(self, sources: Sequence[Source]) -> Float[Tensor, "*lead"]:
        if isinstance(self._tree, Conditioned):
            return self._tree.log_prob(sources)
        states = self._tree
        shape = states.sizes, states.batch_shape
        return in_blocks(lambda *part: (log_total(states, *part),), [sources], *shape, indexed=True)[0]

    def marginals(self, *names: str) -> dict[str, KDM]:
        """The distributions of several variables, each by itself; of all variables if no name is given.

        One message along every edge in both directions serves all of them. With gradients, messages are
        computed for every variable anew.

        >>> import kdmkit as kdm
        >>> components = {"x": torch.tensor([[-1.0], [1.0]]), "y": torch.tensor([0, 1])}
        >>> kernels = {"x": kdm.RBF(0.5), "y": kdm.Categorical(2)}
        >>> edges = {"y": torch.tensor([[0.9, 0.1], [0.3, 0.7]])}
        >>> tree = kdm.TreeKDM(components, kernels, {"x": None, "y": "x"}, edge_weights=edges)
        >>> tree.marginals()["y"].probs
        tensor([0.6000, 0.4000])
        """
        names = names or self.variables
        check_target(names, self.kernels)
        tree = self._tree.for_all_nodes() if isinstance(self._tree, Conditioned) else self._tree
        return {name: self._one(name, tree) for name in names}

    def _one(self, name: str, tree: States | Conditioned) -> KDM:
        weights = NodeWeights(tree, self._states.topology.node_of[name])
        return KDM._made(self.components[name], weights, self.kernels[name], self._validate_args)

    def _over(self, names: Sequence[str], evidence: Evidence | None) -> KDM | Self:
        places = self._states.topology.node_of
        tree = self._tree if evidence is None else self._given(EvidencePieces(evidence, places))
        if len(names) == 1:
            return self._one(names[0], tree)
        pruned = tree.pruned({places[name] for name in names}, names)
        return self._made(*self._parts(names), pruned, self._validate_args)

    def _given(self, pieces: EvidencePieces | ScorePieces) -> Conditioned:
        tree = self._tree
        return tree.and_then(pieces) if isinstance(tree, Conditioned) else Conditioned(tree, pieces)

    def _log_mass(self, scores: CaseScores) -> Float[Tensor, "l *batch"]:
        return self._log_prob_of(score_sources(self._states.topology.node_of, scores))

    def _weights_given(
        self, name: str, scores: CaseScores
    ) -> tuple[Float[Tensor, "l m"], Float[Tensor, " l"]]:
        states, node = self._states, self._states.topology.node_of[name]
        by_node, tops = scores_by_node(states.topology, scores)
        if isinstance(self._tree, Conditioned):
            pieces = ScorePieces({i: s.unsqueeze(0) for i, s in enumerate(by_node) if s is not None})
            weights = NodeWeights(self._given(pieces), node)
            return weights.log_weights, weights.log_evidence + tops
        beta, shift = states.collect(by_node, node)
        total = safe_logsumexp(beta)
        weights_given = beta - torch.where(torch.isneginf(total), 0.0, total).unsqueeze(-1)
        return weights_given, with_shift(total, shift + tops)

    def _pairs_given(self, a: str, b: str, scores: CaseScores) -> Float[Tensor, "k_a k_b"]:
        return summed_pairs(self._tree, a, b, scores)

    def _mixture_given(self, names: Sequence[str], answers: Sequence[Answered]) -> TreeKDM:
        log_evidence = torch.cat([answer.log_evidence for answer in answers])
        total = safe_logsumexp(log_evidence)
        like, places = self._states.log_root, self._states.topology.node_of
        every = [scores_by_node(self._states.topology, answer.scores)[0] for answer in answers]
        factors = {}
        for node, k in enumerate(self._states.sizes):
            parts = [scores[node] for scores in every]
            if any(part is not None for part in parts):
                zeros = [like.new_zeros(len(answer.cases), k) for answer in answers]
                factors[node] = torch.cat([z if p is None else p for p, z in zip(parts, zeros, strict=True)])
        pieces = ScorePieces(factors, (log_evidence - total).to(like) if len(log_evidence) > 1 else None)
        given = self._given(pieces)
        nodes = {places[name] for name in names}
        pruned = Conditioned(given.states, given.pieces, total).pruned(nodes, names)
        return self._made(*self._parts(names), pruned, self._validate_args)

    def _with_evidence_of(self, log_evidence: Tensor) -> TreeKDM:
        nothing = torch.zeros_like(self._states.log_root).unsqueeze(0)
        condition = Conditioned(self._states, ScorePieces({0: nothing}), log_evidence.to(nothing))
        return TreeKDM._made(self.components, self.kernels, condition, self._validate_args)

    # ---- other answers

    def mode(self, *, observed: Masks = None, **evidence: Any) -> Completion:
        """The most probable completion of the evidence: values of the other variables and indices, jointly.

        It maximises p(x, z) over values and indices together, so it is a mode of one combination of
        components, not of the mixture over all combinations. Masses and densities count alike: if a
        variable has both (`Inflated` without `Rounded`), the completion depends on its unit.

        Args:
            observed: by variable, a boolean mask `(*batch,)`: False where that evidence is missing; the value
                is completed then.
            evidence: by variable, points or regions, as in `infer`; none is needed. A tree that `infer`
                returned keeps its earlier evidence, and `log_prob` is conditional on that.

        >>> import kdmkit as kdm
        >>> components = {"x": torch.tensor([[-1.0], [1.0]]), "y": torch.tensor([0, 1])}
        >>> kernels = {"x": kdm.RBF(0.5), "y": kdm.Categorical(2)}
        >>> edges = {"y": torch.tensor([[0.9, 0.1], [0.3, 0.7]])}
        >>> tree = kdm.TreeKDM(components, kernels, {"x": None, "y": "x"}, edge_weights=edges)
        >>> tree.mode(x=torch.tensor([[-0.9], [2.0]])).values["y"]
        tensor([0, 1])
        """
        states = self._states
        if states.batch_shape:
            raise ValueError(bad_argument("mode", "a tree without a batch of weights", "one with a batch"))
        tree = self._tree
        earlier, log_earlier = tree.point_sources() if isinstance(tree, Conditioned) else ((), 0.0)
        check_names("evidence", evidence, self.kernels)
        for name in (name for name, value in evidence.items() if isinstance(value, KDM)):
            raise TypeError(bad_argument(name, "points or a region", "a KDM"))
        masks = gather_masks(observed, list(evidence), next(iter(self.components.values())))
        entries = {n: self._entry(n, value, "density", masks.get(n)) for n, value in evidence.items()}
        common_batch({"batch_shape": self.batch_shape, **{name: e.lead for name, e in entries.items()}})
        completion = complete(states, self.components, self.kernels, entries, earlier)
        return replace(completion, log_prob=completion.log_prob - log_earlier)

    def node_probs(self, node: str, *, observed: Masks = None, **evidence: Any) -> Float[Tensor, "*batch k"]:
        """p(index of a node | evidence), also of a latent node; arguments are those of `infer`."""
        check_names("node", (node,), self.nodes)
        check_names("evidence", evidence, self.kernels)
        tree, topology, like = self._tree, self._states.topology, next(iter(self.components.values()))
        if evidence:
            masks = gather_masks(observed, list(evidence), like)
            given = gather_evidence(self, None, evidence, masks, False)
            tree = self._given(EvidencePieces(given, topology.node_of))
        return NodeWeights(tree, topology.nodes.index(node)).log_weights.exp()

    def mutual_information(
        self,
        a: str,
        b: str,
        *,
        of: Literal["variables", "indices"] = "variables",
        n_samples: int = 10_000,
        generator: torch.Generator | None = None,
    ) -> MutualInformation:
        """I(a; b) in nats between two variables, or between the indices of their components.

        Between indices, and between two discrete variables with tables of probabilities, it is exact.
        Between other variables it is the mean of log p(x_a, x_b) − log p(x_a) − log p(x_b) over draws, with
        its standard error. Indices have at least the information of their variables.

        Args:
            of: what is compared.
            n_samples: the number of draws, if they are needed.
            generator: source of randomness.
        """
        check_names("a, b", (a, b), self.kernels)
        if self.batch_shape:
            raise ValueError(bad_argument("mutual_information", "a tree without a batch", self.batch_shape))
        return between_variables(self, a, b, of, n_samples, generator)

    # ---- draws and copies

    def _draw_components(self, n: int, generator: torch.Generator | None) -> Mapping[str, Tensor]:
        states, places = draw_states(self._tree, n, generator), self._states.topology.node_of
        return {name: states[places[name]].expand(n, *self.batch_shape) for name in self.kernels}

    def expand(self, batch_shape: Any) -> TreeKDM:
        """The same distribution for every element of a batch."""
        tree = self._tree
        if not isinstance(tree, Conditioned):
            nothing = torch.zeros_like(tree.log_root).unsqueeze(0)
            tree = Conditioned(tree, ScorePieces({0: nothing}))
        expanded = tree.expand(expanded_shape(batch_shape, self.batch_shape))
        return TreeKDM._made(self.components, self.kernels, expanded, self._validate_args)

    def _at(self, index: BatchIndex) -> TreeKDM:
        components, kernels = index.variables(self.components, self.kernels)
        return TreeKDM._made(components, kernels, self._tree.at(index), self._validate_args)

    def _mapped(self, function: PartMap) -> TreeKDM:
        components, kernels = map_values(function, self.components), map_values(function, self.kernels)
        return TreeKDM._made(components, kernels, self._tree.mapped(function), self._validate_args)

    def __repr__(self) -> str:
        sizes = f"batch_shape={tuple(self.batch_shape)}, n_components={self.n_components}"
        return f"TreeKDM({sizes}, parents={self.parents}, kernels={self.kernels})"
