"""Trees of joint kernel density matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_shape, as_tensor, bad_argument, check_instance
from kdmkit.distributions._validation import common_batch, is_checked
from kdmkit.distributions.evidence import check_masks, gather_evidence, gather_masks, gather_values
from kdmkit.distributions.joint import JointKDM
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.known import Known
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.names import (
    Masks,
    Target,
    check_complete,
    check_names,
    check_target,
    check_variables,
    choose_targets,
)
from kdmkit.distributions.tree.base import TreeBase
from kdmkit.distributions.tree.completion import Completion, complete
from kdmkit.distributions.tree.condition import Condition
from kdmkit.distributions.tree.conditional import log_total
from kdmkit.distributions.tree.information import MutualInformation, between_variables
from kdmkit.distributions.tree.parts import build_states, check_held, count_states
from kdmkit.distributions.tree.pieces import KnownPieces, NumberPieces
from kdmkit.distributions.tree.posterior import NodeWeights
from kdmkit.distributions.tree.sampling import draw_states
from kdmkit.distributions.tree.sources import by_node, in_blocks
from kdmkit.distributions.tree.states import States
from kdmkit.distributions.tree.topology import Topology
from kdmkit.distributions.weights import PartMap, each
from kdmkit.kernels import Kernel, Region
from kdmkit.ops.messages import Tables


class TreeKDM(TreeBase):
    """Joint KDMs composed along a tree: every node has components of its own, and an index that chooses one.

    p(x) = Σ_z p(z_root) · Π_{v ≠ root} p(z_v | z_parent(v)) · Π_v f̂_v(x_v | c_{v, z_v}).

    Inference from any variables to any others is exact: messages pass along the edges, with Σ_v k_v·k_parent
    operations per row. A node may hold several variables, which share its index; a tree of one node is a
    `JointKDM`.

    Args:
        components: by variable, `(k, *event)` or `(*batch, k, *event)`; variables of one node have equally
            many.
        kernels: by variable.
        parents: by node, its parent; None for the root.
        root_weights: p(z_root), of shape `(*batch, k_root)`; None is uniform.
        edge_weights: by node except the root, p(z_v | z_parent), of shape `(*batch, k_parent, k_v)`; rows sum
            to 1 (zeros are legal).
        nodes: by node, the variables that it holds; none for a latent node. None: every node holds the
            variable of its own name.
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
        tensors = {name: as_tensor(f"components[{name!r}]", components[name]) for name in kernels}
        topology = Topology.of(parents, nodes)
        check_held(topology, kernels)
        counts = count_states(topology, tensors, kernels)
        like = _like(tensors)
        validate = is_checked(validate_args, next(iter(tensors.values())))
        roots, edges = (root_weights, log_root_weights), (edge_weights, log_edge_weights)
        states = build_states(topology, counts, roots, edges, like, validate=validate)
        self._set(tensors, kernels, states, validate)
        if validate:
            for name, kernel in kernels.items():
                kernel.check_component_values(f"components[{name!r}]", tensors[name], self.event_shapes[name])
                kernel.check_components(f"kernels[{name!r}]", tensors[name])

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

    # ---- densities

    def log_prob(self, *, observed: Masks = None, **values: Any) -> Float[Tensor, "*lead"]:
        """log p(x, y, …).

        Args:
            observed: by variable, a boolean mask `(*lead,)`: False where the value is missing. Missing values
                are integrated out, so the result is the log-density of the observed part of each row.
            values: of all variables: events, or a region (`Interval`, `OneOf`), whose mass takes part.
        """
        entries = self._entries(values, check_masks(observed))
        sources = by_node(self._states.topology.node_of, entries)
        lead = common_batch({n: e.lead for n, e in entries.items()} | {"batch_shape": self.batch_shape})
        if isinstance(self._tree, Condition):
            return self._tree.log_prob(sources).expand(lead)
        states = self._tree
        (found,) = in_blocks(
            lambda scores, tops: (log_total(states, scores, tops),),
            [sources],
            states.sizes,
            states.batch_shape,
        )
        return found.expand(lead)

    def _entries(self, values: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Entry]:
        check_names("values", values, self.kernels)
        check_complete(values, self.kernels)
        masks = gather_masks(observed, list(values), next(iter(self.components.values())))
        return {name: self._entry(name, values[name], masks.get(name)) for name in self.kernels}

    def _entry(self, name: str, value: Any, keep: Tensor | None) -> Entry:
        region = type(value) if isinstance(value, Region) else None
        value = gather_values(self, name, value, keep)
        return Entry(self.kernels[name], value, self.components[name], "density", keep, region)

    # ---- marginals and inference

    @overload
    def marginal(self, name: str, /) -> KDM: ...
    @overload
    def marginal(self, *names: str) -> KDM | TreeKDM: ...
    def marginal(self, *names: str) -> KDM | TreeKDM:
        """The distribution of some variables: one name gives a KDM, several a TreeKDM.

        Leaves that hold no variable any more are dropped; nodes between others stay, as latent ones.
        """
        check_target(names, self.kernels)
        return self._over(names, self._tree)

    def marginals(self, *names: str) -> dict[str, KDM]:
        """The distributions of several variables, each by itself; all of them where no name is given.

        One message along every edge in both directions serves all of them. With gradients every variable has
        messages of its own.

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
        tree = self._tree.for_all_nodes() if isinstance(self._tree, Condition) else self._tree
        return {name: self._one(name, tree) for name in names}

    def _one(self, name: str, tree: States | Condition) -> KDM:
        weights = NodeWeights(tree, self._states.topology.node_of[name])
        return KDM._made(self.components[name], weights, self.kernels[name], self._validate_args)

    def _over(self, names: Sequence[str], tree: States | Condition) -> KDM | TreeKDM:
        places = self._states.topology.node_of
        if len(names) == 1:
            return self._one(names[0], tree)
        components = {name: self.components[name] for name in names}
        kernels = {name: self.kernels[name] for name in names}
        pruned = tree.pruned({places[name] for name in names}, names)
        return TreeKDM._made(components, kernels, pruned, self._validate_args)

    @overload
    def infer(
        self,
        given: JointKDM | None = None,
        /,
        *,
        target: str,
        observed: Masks = None,
        noisy: bool = False,
        **evidence: Any,
    ) -> KDM: ...
    @overload
    def infer(
        self,
        given: JointKDM | None = None,
        /,
        *,
        target: Target = None,
        observed: Masks = None,
        noisy: bool = False,
        **evidence: Any,
    ) -> KDM | TreeKDM: ...
    def infer(
        self,
        given: JointKDM | None = None,
        /,
        *,
        target: Target = None,
        observed: Masks = None,
        noisy: bool = False,
        **evidence: Any,
    ) -> KDM | TreeKDM:
        """The distribution of some variables given others.

        For points Bayes' rule; an input KDM means its weighted components x_l, and the result is
        Σ_l p_l p(target | x_l), as in the paper's Algorithm 1. Nothing is computed before it is needed.

        Args:
            given: evidence on several variables at once, a JointKDM over some of them.
            target: the variable or variables to infer; None is all the rest.
            observed: by variable, a boolean mask `(*batch,)`: False where that evidence is missing and the
                variable is marginalised.
            noisy: whether the components of input KDMs are noisy measurements, as in `JointKDM.infer`.
            evidence: by variable, points `(*batch, *event)` (labels `(*batch,)` for discrete kernels), a KDM,
                or a region: `Interval`, `OneOf`. Separate KDMs mean independence. Leading dimensions
                broadcast.

        Returns:
            A KDM for one target, a TreeKDM for several, with `log_evidence`. Evidence of probability zero
            leaves the tree's own weights and has `log_evidence` −∞.
        """
        if given is not None:
            check_instance("given", given, JointKDM, "a JointKDM (points and KDMs are passed by name)")
        observed = check_masks(observed)
        known = [*(given.variables if given is not None else ()), *evidence]
        check_names("evidence", known, self.kernels)
        targets = choose_targets(target, known, self.kernels)
        return self._over(targets, self._conditioned(given, evidence, observed, noisy))

    def _conditioned(
        self, given: JointKDM | None, evidence: Mapping[str, Any], observed: Mapping[str, Any], noisy: bool
    ) -> Condition:
        collected = gather_evidence(self, given, evidence, observed, noisy)
        batch = {"batch_shape": self._tree.batch_shape}
        places = self._states.topology.node_of
        pieces = KnownPieces(Known(collected, self.kernels, self.components, batch), places)
        if isinstance(self._tree, Condition):
            return self._tree.and_then(pieces)
        return Condition(self._tree, pieces)

    # ---- other answers

    def mode(self, *, observed: Masks = None, **evidence: Any) -> Completion:
        """The most probable completion of the evidence: values of the other variables and indices, jointly.

        It maximises p(x, z) over values and indices together, so it is a mode of one combination of
        components, not of the mixture over all combinations. Masses and densities count alike: where a
        variable has both (`Inflated` without `Rounded`), the completion depends on its unit.

        Args:
            observed: by variable, a boolean mask `(*batch,)`: False where that evidence is missing; the value
                is completed then.
            evidence: by variable, points or regions, as in `infer`; none is needed. A tree that `infer`
                returned has its own evidence as well, and `log_prob` is conditional on that.

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
        earlier, log_earlier = self._tree.known() if isinstance(self._tree, Condition) else ((), 0.0)
        masks = check_masks(observed)
        check_names("evidence", evidence, self.kernels)
        for name, value in evidence.items():
            if isinstance(value, KDM):
                raise TypeError(bad_argument(name, "points or a region", "a KDM"))
        masks = gather_masks(masks, list(evidence), next(iter(self.components.values())))
        entries = {name: self._entry(name, value, masks.get(name)) for name, value in evidence.items()}
        common_batch({"batch_shape": self.batch_shape, **{name: e.lead for name, e in entries.items()}})
        found = complete(states, self.components, self.kernels, entries, earlier)
        return replace(found, log_prob=found.log_prob - log_earlier)

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
            n_samples: the number of draws, where they are needed.
            generator: source of randomness.
        """
        check_names("a, b", (a, b), self.kernels)
        if self.batch_shape:
            got = f"one of shape {tuple(self.batch_shape)}"
            raise ValueError(bad_argument("mutual_information", "a tree without a batch", got))
        return between_variables(self, a, b, of, n_samples, generator)

    # ---- draws and copies

    def sample(
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Exact draws of all variables together, by variable `(*sample_shape, *batch, *event)`."""
        shape = as_shape("sample_shape", sample_shape)
        states = draw_states(self._tree, shape.numel(), generator)
        drawn = {}
        with torch.no_grad():
            for name, kernel in self.kernels.items():
                index = states[self._states.topology.node_of[name]]
                index = index.expand(shape.numel(), *self.batch_shape)
                value = kernel.draw(self.components[name], index, generator)
                drawn[name] = value.reshape(*shape, *self.batch_shape, *self.event_shapes[name])
        return drawn

    def expand(self, batch_shape: Any) -> TreeKDM:
        """The same distribution for every element of a batch."""
        tree = self._tree
        if not isinstance(tree, Condition):
            nothing = torch.zeros_like(tree.log_root).unsqueeze(0)
            tree = Condition(tree, NumberPieces({0: nothing}, None))
        expanded = tree.expand(as_shape("batch_shape", batch_shape))
        return TreeKDM._made(self.components, self.kernels, expanded, self._validate_args)

    def _mapped(self, function: PartMap) -> TreeKDM:
        components, kernels = each(function, self.components), each(function, self.kernels)
        return TreeKDM._made(components, kernels, self._tree.mapped(function), self._validate_args)

    def __repr__(self) -> str:
        return (
            f"TreeKDM(batch_shape={tuple(self.batch_shape)}, n_components={self.n_components}, "
            f"parents={self.parents}, kernels={self.kernels})"
        )


def _like(components: Mapping[str, Tensor]) -> Tensor:
    """A tensor with the floating-point dtype and the device of the components."""
    for tensor in components.values():
        if tensor.is_floating_point():
            return tensor
    return torch.zeros((), device=next(iter(components.values())).device)
