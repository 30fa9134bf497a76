"""A layer that is a tree of joint KDMs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, bad_argument, check_flag, check_generator, check_instance
from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions import KDM
from kdmkit.distributions.arguments import check_masks
from kdmkit.distributions.base import snapshot
from kdmkit.distributions.tree import TreeKDM
from kdmkit.distributions.tree.states import States, Topology, log_total, with_shift
from kdmkit.nn.layer import KDMLayer, LayerOptions, Variable, check_variables, options_from
from kdmkit.nn.tree_scores import TreeScores
from kdmkit.nn.tree_start import LearnedTree, choose_rows, learn_tree, start_components, start_edges
from kdmkit.ops.messages import Indexed, Tables

# ε in p(z_v | z_parent) = (1 − ε)·softmax + ε/k.
_EDGE_FLOOR = 1e-6
# Arguments of `initialize` that a variable cannot be named after.
_RESERVED = ("sample_weight", "learned")


class TreeLayer(KDMLayer):
    """A trainable tree of joint KDMs: every variable has k components, and neighbours share a table.

    p(x) = Σ_z p(z_root) · Π_{v ≠ root} p(z_v | z_parent(v)) · Π_v f̂_v(x_v | c_{v, z_v}) with
    p(z_root) = softmax(root_logits) and p(z_v | z_parent) = (1 − ε)·softmax(edge_logits) + ε/k. The floor
    ε = 1e-6 keeps messages exact without a check, also in float32.

    `initialize` learns the tree and places the components; `kdmkit.training.fit_tree` trains.

    Nodes of `parents` that are no variable are latent: they have an index and no column, and the posterior of
    the index is `tree().node_probs(node, …)`. Nodes may share tables, and variables their components and
    kernels: so a hidden Markov model is a tree (`ChainLayer` serves long sequences).

    Args:
        variables: one for each column.
        n_components: k, of every variable.
        parents: by variable, its parent; None for the root. If `parents` is None, `initialize` learns the
            tree, and until then the variables form a chain.
        shared_edges: by node, another node whose table p(z | z_parent) it has.
        shared_variables: by variable, another one whose components and kernel it has.
        options: as of `JointLayer`.

    >>> import kdmkit as kdm
    >>> variables = [kdm.nn.Variable("a", kdm.RBF(1.0), 1), kdm.nn.Variable("b", kdm.Categorical(3, 0.1), ())]
    >>> layer = kdm.nn.TreeLayer(variables, n_components=8)
    >>> a, b = torch.randn(50, 1), torch.arange(50) % 3
    >>> layer.initialize(a=a, b=b).log_prob(a=a, b=b).shape
    torch.Size([50])
    >>> layer(a=a).probs.shape
    torch.Size([50, 3])
    """

    root_logits: nn.Parameter
    edge_logits: nn.Parameter

    def __init__(
        self,
        variables: Sequence[Variable],
        n_components: int = 128,
        *,
        parents: Mapping[str, str | None] | None = None,
        shared_edges: Mapping[str, str] | None = None,
        shared_variables: Mapping[str, str] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        variables = list(variables)
        check_variables(variables, _RESERVED)
        self._learns_tree = parents is None
        names = [variable.name for variable in variables]
        chain: dict[str, str | None] = dict(zip(names, [None, *names], strict=False))
        self._topology = _topology(names, chain if parents is None else parents)
        nodes = [] if parents is None else list(self._topology.nodes[1:])
        self._shared_edges = _check_shared("shared_edges", shared_edges, nodes)
        self._shared = _check_shared("shared_variables", shared_variables, names)
        _check_alike(self._shared, {variable.name: variable for variable in variables})
        self._build(variables, n_components, **options)

    @property
    def weight_logits(self) -> Tensor:
        return self.root_logits

    def _make_weights(self, start: Tensor, *, trainable: bool) -> None:
        self.root_logits = nn.Parameter(start, requires_grad=trainable)
        edges = start.new_zeros(len(self._edge_owners), len(start), len(start))
        self.edge_logits = nn.Parameter(edges, requires_grad=trainable)

    @property
    def parents(self) -> dict[str, str | None]:
        """The parent of every variable; None for the root. Parents come before their children."""
        nodes, above = self._topology.nodes, self._topology.parents
        return {name: None if up < 0 else nodes[up] for name, up in zip(nodes, above, strict=True)}

    @property
    def latent_nodes(self) -> tuple[str, ...]:
        """The nodes that have no variable."""
        return tuple(name for name in self._topology.nodes if name not in self.variables)

    @property
    def shares_parts(self) -> bool:
        """Whether nodes share tables, or variables their components."""
        return bool(self._shared_edges or self._shared)

    @property
    def _edge_owners(self) -> list[str]:
        """The nodes whose tables are parameters."""
        return [name for name in self._topology.nodes[1:] if name not in self._shared_edges]

    # ---- the distribution

    def edge_probs(self) -> Float[Tensor, "n_edges k k"]:
        """p(z_v | z_parent) of all variables but the root, in the order of `parents`."""
        free = torch.softmax(self.edge_logits, -1)
        # Filled on the device: a CUDA graph cannot hold a copy from the host.
        even = torch.full((), 1 / self.n_components, dtype=free.dtype, device=free.device)
        probs = torch.lerp(free, even, _EDGE_FLOOR)
        if not self._shared_edges:
            return probs
        tables = dict(zip(self._edge_owners, probs.unbind(0), strict=True))
        return torch.stack([tables[self._shared_edges.get(n, n)] for n in self._topology.nodes[1:]])

    @torch.no_grad()
    def state_probs(self, edges: Float[Tensor, "n_edges k k"] | None = None) -> Float[Tensor, "v k"]:
        """p(z_v) of all variables, in the order of `parents`; no gradients.

        Args:
            edges: `edge_probs()`, if the caller has them.
        """
        edges = self.edge_probs() if edges is None else edges
        above = self._topology.parents
        probs = [torch.softmax(self.root_logits, -1)]
        while len(probs) < len(above):
            first = len(probs)  # all variables whose parents are done: one level of the tree
            last = next((i for i in range(first, len(above)) if above[i] >= first), len(above))
            parents = torch.stack([probs[above[i]] for i in range(first, last)]).unsqueeze(-2)
            probs += torch.bmm(parents, edges[first - 1 : last - 1]).squeeze(-2).unbind(0)
        return torch.stack(probs)

    def tree(
        self, *, edges: Float[Tensor, "n_edges k k"] | None = None, validate_args: bool | None = None
    ) -> TreeKDM:
        """The layer's distribution; gradients flow to the parameters, without gradients it is a snapshot.

        Args:
            edges: `edge_probs()`, if the caller has them.
            validate_args: whether values are checked; None: on a CPU they are, as in `JointLayer.joint`.
        """
        edges = self.edge_probs() if edges is None else edges
        states = self._states(edges if torch.is_grad_enabled() else snapshot(edges))
        components, kernels = self._parts()
        return TreeKDM._made(components, kernels, states, self._checks_values(validate_args))

    def _states(self, edges: Float[Tensor, "n_edges k k"]) -> States:
        return States(self._topology, torch.log_softmax(self.root_logits, -1), Tables.above_floor(edges))

    def row_log_prob(self, scores: TreeScores, *, edges: Float[Tensor, "n_edges k k"]) -> Float[Tensor, " n"]:
        """`tree().log_prob` of the rows that have these scores, for training.

        Args:
            scores: of all variables (`TreeCells`).
            edges: `edge_probs()`.
        """
        by_node = [scores.by_name.get(name) for name in self._topology.nodes]
        return log_total(self._states(edges), by_node, scores.total_top())

    def row_log_conditional(
        self, scores: TreeScores, target: str, *, edges: Float[Tensor, "n_edges k k"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """log p(row) and log p(target | rest of the row), by messages in one direction: towards the target.

        Args:
            scores, edges: as in `row_log_prob`. If the target is missing in a row, the second is 0.
            target: a variable.
        """
        by_node = [scores.by_name.get(name) if name != target else None for name in self._topology.nodes]
        beta, shift = self._states(edges).collect(by_node, self._topology.node_of[target])
        score = scores.by_name[target]
        together = safe_logsumexp(beta + (score.expanded() if isinstance(score, Indexed) else score))
        total = with_shift(together, shift + scores.total_top())
        return total, together - safe_logsumexp(beta) + scores.total_top([target])

    def forward(self, **evidence: Any) -> KDM | TreeKDM:
        """The distribution of the other variables given some: `tree().infer(…)` with its arguments."""
        return self.tree().infer(**self._evidence(evidence))

    def log_prob(self, **values: Any) -> Float[Tensor, "*lead"]:
        """log p(x): `tree().log_prob(…)` with its arguments."""
        return self.tree().log_prob(**values)

    @torch.no_grad()
    def with_levels(self, variables: Sequence[Variable]) -> TreeLayer:
        """A copy over the same variables, of which some have more levels.

        New levels begin as rare as the rarest level of their component.
        """
        shared: Any = {"shared_edges": self._shared_edges, "shared_variables": self._shared}
        larger = TreeLayer(variables, self.n_components, parents=self.parents, **shared)
        larger = larger.to(self.weight_logits)
        state = self.state_dict()
        for name, new in larger.state_dict().items():
            old = state[name]
            if name.startswith("components.") and new.shape != old.shape:
                least = old.amin(-1, keepdim=True).expand(*new.shape[:-1], new.shape[-1] - old.shape[-1])
                state[name] = torch.cat([old, least], -1)
            elif name.endswith(".logit"):
                state[name] = new  # the smoothing, which the variables have
        larger.load_state_dict(state)
        return larger

    # ---- starting values

    @torch.no_grad()
    def initialize(
        self,
        *,
        observed: Mapping[str, Any] | None = None,
        sample_weight: Any = None,
        learned: LearnedTree | None = None,
        generator: torch.Generator | None = None,
        **columns: Any,
    ) -> TreeLayer:
        """Learns the tree, places components and sets bandwidths; the layer is returned.

        The tree is a maximum spanning tree of pairwise mutual information by leave-one-out prediction, each
        pair by the rows that have both; a tree that the constructor was given stays. k different rows become
        components: state i of every variable is at the value of row i, and p(z_v = i | z_parent = i) is
        large. So learning starts from a flat mixture of these rows. Bad data raises before anything changes.

        Args:
            observed: by variable, a boolean mask `(n,)`: False if the value is missing (it may be
                anything). Variables may be left out. Constant columns and columns without a value work.
            sample_weight: of the rows, `(n,)`; None: 1.
            learned: the tree, of `learn_tree`. Variables that it calls independent start without a link.
            generator: source of randomness.
            columns: by variable, `(n, *event)`, or labels `(n,)`.
        """
        check_generator(generator)
        data, masks = self._checked(columns, observed)
        n = len(next(iter(data.values())))
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, n)
        variables = list(self.variables.values())
        topology = self._topology
        if learned is not None or self._learns_tree:
            parents = (
                learn_tree(variables, data, masks, weights).parents if learned is None else learned.parents
            )
            topology = _topology(list(self.variables), parents)
        rows = choose_rows(data, masks, self.n_components, weights, generator)
        starts = {
            v.name: start_components(v, data[v.name].cpu(), masks.get(v.name), rows)
            for v in variables
            if v.name not in self._shared
        }
        self._topology = topology
        for name, start in starts.items():
            if start is not None:
                self.components[name].copy_(start)
                self.kernel(name).initialize_bandwidth(self.components[name], "scott")
        self._is_initialized = True
        self.root_logits.zero_()
        independent = frozenset() if learned is None else learned.independent
        self.edge_logits.copy_(start_edges(self._edge_owners, self.n_components, generator, independent))
        return self

    def _checked(
        self, columns: Mapping[str, Any], observed: Mapping[str, Any] | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Columns and masks as tensors of equal length, with valid events in place of missing ones."""
        if set(columns) != set(self.variables):
            raise ValueError(bad_argument("columns", f"data for {list(self.variables)}", list(columns)))
        given = {name: torch.as_tensor(mask).cpu() for name, mask in check_masks(observed).items()}
        unknown = [name for name in given if name not in self.variables]
        if unknown:
            raise ValueError(bad_argument("observed", f"variables among {list(self.variables)}", unknown))
        data, lengths = {}, {}
        for name, variable in self.variables.items():
            value = as_tensor(name, columns[name]).detach().cpu()
            mask = given.get(name)
            if mask is not None:
                value = self._without_missing(variable, value, mask)
            _check_column(variable, value)
            data[name], lengths[name] = value, len(value)
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise ValueError(bad_argument("columns", "one or more rows, as many of every variable", lengths))
        return data, {name: mask for name, mask in given.items() if not bool(mask.all())}

    def _without_missing(self, variable: Variable, value: Tensor, mask: Tensor) -> Tensor:
        argument = f"observed[{variable.name!r}]"
        if mask.dtype != torch.bool:
            raise TypeError(bad_argument(argument, "a boolean mask", mask.dtype))
        if mask.shape != value.shape[:1]:
            raise ValueError(bad_argument(argument, f"shape ({len(value)},)", tuple(mask.shape)))
        keep = mask.reshape(-1, *([1] * (value.ndim - 1)))
        return variable.kernel.fill_missing(value, keep, self.components[variable.name].detach().cpu())

    # ---- description

    def config(self) -> dict[str, Any]:
        return {
            "layer": "TreeLayer",
            "variables": [variable.config() for variable in self.variables.values()],
            # Pairs, since edges are in this order.
            "parents": [list(pair) for pair in self.parents.items()],
            "learns_tree": self._learns_tree,
            **({"shared_edges": dict(self._shared_edges)} if self._shared_edges else {}),
            **({"shared_variables": dict(self._shared)} if self._shared else {}),
            **self._common_config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> TreeLayer:
        encoders = {} if encoders is None else encoders
        variables = [Variable.from_config(v, encoder=encoders.get(v["name"])) for v in config["variables"]]
        options = options_from(config)
        shared: Any = {name: config.get(name) for name in ("shared_edges", "shared_variables")}
        parents = dict(config["parents"])
        layer = cls(variables, config["n_components"], parents=parents, **shared, **options)
        layer._learns_tree = check_flag("learns_tree", config["learns_tree"])
        return layer

    def extra_repr(self) -> str:
        return f"n_components={self.n_components}, parents={self.parents}"


def _topology(names: list[str], parents: Mapping[str, str | None]) -> Topology:
    check_instance("parents", parents, Mapping, "a mapping from variable to parent")
    if not set(parents) >= set(names):
        raise ValueError(bad_argument("parents", f"a parent, or None, of each of {names}", list(parents)))
    return Topology.of(parents, {name: (name,) if name in names else () for name in parents})


def _check_shared(argument: str, shared: Mapping[str, str] | None, names: Sequence[str]) -> dict[str, str]:
    """Raises unless names are mapped to others that share nothing themselves."""
    if shared is None:
        return {}
    check_instance(argument, shared, Mapping, "a mapping from name to name")
    for name, owner in shared.items():
        if name not in names or owner not in names or owner in shared:
            wanted = f"pairs of {list(names)}, of which the second shares nothing itself"
            raise ValueError(bad_argument(argument, wanted, f"{name!r}: {owner!r}"))
    return dict(shared)


def _check_alike(shared: Mapping[str, str], variables: Mapping[str, Variable]) -> None:
    for name, owner in shared.items():
        one, other = (variables[part] for part in (name, owner))
        if (one.shape, one.kernel.config()) != (other.shape, other.kernel.config()):
            wanted = f"variables with equal kernels and shapes, as {owner!r}"
            raise ValueError(bad_argument("shared_variables", wanted, repr(name)))


def _check_column(variable: Variable, value: Tensor) -> None:
    rank = variable.kernel.event_rank(value)
    shape = variable.shape if rank == len(variable.shape) else torch.Size()
    if value.ndim != 1 + len(shape) or value.shape[1:] != shape:
        inside = ", ".join(["n", *map(str, shape)])
        raise ValueError(bad_argument(variable.name, f"shape ({inside})", tuple(value.shape)))
    variable.kernel.check_events(variable.name, value, variable.shape)


def _check_sample_weight(weights: Any, n: int) -> Float[Tensor, " n"]:
    tensor = as_tensor("sample_weight", weights).detach().double().cpu()
    if tensor.shape != (n,):
        raise ValueError(bad_argument("sample_weight", f"shape ({n},)", tuple(tensor.shape)))
    if not bool((tensor >= 0).all()) or not 0 < float(tensor.sum()) < math.inf:
        raise ValueError(bad_argument("sample_weight", "finite values ≥ 0, one of them positive", weights))
    return tensor
