"""A layer for sequences: a hidden Markov model whose emissions are KDMs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, bad_argument, check_count, check_generator
from kdmkit.distributions import JointKDM
from kdmkit.distributions.arguments import check_complete, check_names, gather_masks
from kdmkit.distributions.component_scores import relative_scores
from kdmkit.distributions.evidence import gather_values
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.weights import Given
from kdmkit.nn.initialize import Initializer, Method
from kdmkit.nn.layer import KDMLayer, LayerOptions, Variable, check_variables, options_from
from kdmkit.ops.messages.chain import backward_messages, chain_log_prob, filtered_states, smoothed_states

# ε in p(z_t | z_{t−1}) = (1 − ε)·softmax + ε/k.
_FLOOR = 1e-6
# The probability of staying in a state, before training.
_STAY = 0.9


class ChainLayer(KDMLayer):
    """A trainable hidden Markov model of sequences; a state is a component of every column.

    p(x) = Σ_z p(z_1) Π_{t>1} p(z_t | z_{t−1}) Π_t Π_v f̂_v(x_tv | c_{v, z_t}). One table p(z_t | z_{t−1})
    serves all steps. Columns are `(*batch, steps, *event)`, of any kernels with a density. Values may be
    missing, and sequences may have different lengths: steps of which nothing is observed are summed out.

    The memory is that of a few numbers per step and state. Messages are computed in float64, with one matrix
    product per step for all sequences; gradients need no graph of steps.

    Args:
        variables: the columns.
        n_components: k, the number of states.
        options: as of `JointLayer`.

    >>> import kdmkit as kdm
    >>> variables = [kdm.nn.Variable("x", kdm.RBF(1.0), 1), kdm.nn.Variable("y", kdm.Categorical(3, 0.1), ())]
    >>> layer = kdm.nn.ChainLayer(variables, n_components=4)
    >>> x, y = torch.randn(2, 50, 1), torch.randint(3, (2, 50))
    >>> layer.initialize(x=x, y=y).log_prob(x=x, y=y).shape
    torch.Size([2])
    >>> layer.forecast(5, x=x, y=y).marginal("x").mean.shape
    torch.Size([2, 5, 1])
    """

    logits: nn.Parameter
    transition_logits: nn.Parameter

    def __init__(
        self, variables: Sequence[Variable], n_components: int, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        variables = list(variables)
        check_variables(variables, ("lengths", "n_steps"))
        self._build(variables, n_components, **options)

    @property
    def weight_logits(self) -> Tensor:
        return self.logits

    def _make_weights(self, start: Tensor, *, trainable: bool) -> None:
        k = len(start)
        self.logits = nn.Parameter(start, requires_grad=trainable)
        stay = math.log(_STAY / (1 - _STAY) * max(1, k - 1))
        table = stay * torch.eye(k, dtype=start.dtype, device=start.device)
        self.transition_logits = nn.Parameter(table, requires_grad=trainable)

    def transition_probs(self) -> Float[Tensor, "k k"]:
        """p(z_t | z_{t−1}), a row per state z_{t−1}."""
        return torch.softmax(self.transition_logits, -1) * (1 - _FLOOR) + _FLOOR / self.n_components

    # ---- the distribution

    def log_prob(
        self, *, observed: Mapping[str, Any] | None = None, lengths: Any = None, **columns: Any
    ) -> Float[Tensor, "*batch"]:
        """log p of every sequence.

        Args:
            observed: by variable, a boolean mask `(*batch, steps)`: False where the value is missing.
            lengths: the number of steps of every sequence, `(*batch,)`; None: all steps.
            columns: by variable, `(*batch, steps, *event)`, or codes `(*batch, steps)`. Whole columns may
                be left out.
        """
        self._check_initialized()
        scores, tops, batch = self._scores(columns, observed, lengths)
        table = self.transition_probs().log()
        log_probs = chain_log_prob(scores, torch.log_softmax(self.logits, -1), table)
        return (log_probs + tops.sum(0)).reshape(batch)

    @torch.no_grad()
    def filter(
        self, *, observed: Mapping[str, Any] | None = None, lengths: Any = None, **columns: Any
    ) -> JointKDM:
        """The distribution of a step's values given the steps up to it, `(*batch, steps)`; no gradients.

        Args:
            observed, lengths, columns: as in `log_prob`.
        """
        scores, _, batch = self._scores(columns, observed, lengths)
        return self._emissions(self._filtered(scores), batch)

    @torch.no_grad()
    def smooth(
        self, *, observed: Mapping[str, Any] | None = None, lengths: Any = None, **columns: Any
    ) -> JointKDM:
        """The distribution of a step's values given all steps, `(*batch, steps)`; no gradients.

        A missing value has the distribution of what it could have been.

        Args:
            observed, lengths, columns: as in `log_prob`.
        """
        scores, _, batch = self._scores(columns, observed, lengths)
        beta = backward_messages(scores, self.transition_probs())
        return self._emissions(smoothed_states(self._filtered(scores), beta), batch)

    @torch.no_grad()
    def forecast(
        self,
        n_steps: int,
        *,
        observed: Mapping[str, Any] | None = None,
        lengths: Any = None,
        **columns: Any,
    ) -> JointKDM:
        """The distributions of the next steps' values, `(*batch, n_steps)`, each by itself; no gradients.

        Args:
            n_steps: how many steps, after the last one of every sequence.
            observed, lengths, columns: as in `log_prob`.
        """
        n_steps = check_count("n_steps", n_steps)
        scores, _, batch = self._scores(columns, observed, lengths)
        states, table = self._filtered(scores), self.transition_probs().double()
        if lengths is None:
            state = states[-1]
        else:
            last = as_tensor("lengths", lengths).reshape(-1).to(states.device) - 1
            state = states[last, torch.arange(states.shape[1], device=states.device)]
        ahead = []
        for _ in range(n_steps):
            state = state @ table
            ahead.append(state)
        return self._emissions(torch.stack(ahead), batch)

    def _filtered(self, scores: Float[Tensor, "t b k"]) -> Float[Tensor, "t b k"]:
        return filtered_states(scores, torch.softmax(self.logits, -1), self.transition_probs())[0]

    def _emissions(self, states: Float[Tensor, "t b k"], batch: torch.Size) -> JointKDM:
        """The mixture over states of every step, `(*batch, t)`."""
        components, kernels = self._parts()
        weights = states.movedim(0, 1).reshape(*batch, len(states), states.shape[-1])
        # Evidence of probability zero says nothing.
        is_possible = weights.sum(-1, keepdim=True) > 0
        weights = torch.where(is_possible, weights, torch.softmax(self.logits, -1).double())
        log_weights = weights.log().to(self.logits.dtype)
        return JointKDM._made(components, Given(log_weights), kernels, self._checks_values(None))

    def _scores(
        self, columns: Mapping[str, Any], observed: Mapping[str, Any] | None, lengths: Any
    ) -> tuple[Float[Tensor, "t b k"], Float[Tensor, "t b"], torch.Size]:
        """log f̂(x_t | z) minus its maximum over z, the maximum, and the batch."""
        check_names("columns", columns, self.variables)
        if not columns:
            raise ValueError(bad_argument("columns", "one or more variables", "none"))
        emission = JointKDM._made(
            dict(self.components), Given(self.logits), self._kernels(), self._checks_values(None)
        )
        masks = gather_masks(observed, list(columns), self.logits)
        entries: list[Entry] = []
        for name, value in columns.items():
            value = gather_values(emission, name, value, masks.get(name))
            entries.append(Entry(self.kernel(name), value, self.components[name], "density", masks.get(name)))
        lead = entries[0].lead
        if any(entry.lead != lead for entry in entries) or not lead or not lead[-1]:
            got = {name: tuple(entry.lead) for name, entry in zip(columns, entries, strict=True)}
            raise ValueError(bad_argument("columns", "one or more steps, as many of every variable", got))
        relative, tops = relative_scores(entries)
        if lengths is not None:
            inside = torch.arange(lead[-1], device=tops.device) < self._lengths(lengths, lead).unsqueeze(-1)
            relative = torch.where(inside.unsqueeze(-1), relative, 0.0)
            tops = torch.where(inside, tops, 0.0)
        k, steps = self.n_components, lead[-1]
        relative = relative.expand(*lead, k).reshape(-1, steps, k).movedim(1, 0)
        return relative, tops.expand(lead).reshape(-1, steps).mT, lead[:-1]

    def _lengths(self, lengths: Any, lead: torch.Size) -> Tensor:
        given = as_tensor("lengths", lengths).to(self.logits.device)
        if given.shape != lead[:-1] or bool(((given < 1) | (given > lead[-1])).any()):
            wanted = f"numbers in 1 … {lead[-1]} of shape {tuple(lead[:-1])}"
            raise ValueError(bad_argument("lengths", wanted, lengths))
        return given

    def forward(self, **columns: Any) -> JointKDM:
        """The distribution of the next step's values: `forecast(1, …)` without the dimension of steps."""
        rho = self.forecast(1, **columns)
        return rho[..., 0]

    # ---- starting values

    @torch.no_grad()
    def initialize(
        self,
        *,
        observed: Mapping[str, Any] | None = None,
        lengths: Any = None,
        method: Method = "random",
        generator: torch.Generator | None = None,
        **columns: Any,
    ) -> ChainLayer:
        """Places the states at steps of the sequences whose values are all there; the layer is returned.

        Args:
            observed, lengths, columns: as in `log_prob`, of all variables.
            method: as of `JointLayer.initialize`.
            generator: source of randomness.
        """
        check_generator(generator)
        check_complete(columns, self.variables)
        _, tops, batch = self._scores(columns, observed, lengths)
        whole = torch.ones(*batch, len(tops), dtype=torch.bool, device=tops.device)
        for mask in gather_masks(observed, list(columns), self.logits).values():
            whole &= mask.to(whole.device)
        if lengths is not None:
            steps = torch.arange(len(tops), device=tops.device)
            whole &= steps < self._lengths(lengths, whole.shape).unsqueeze(-1)
        rows = {name: as_tensor(name, value)[whole.cpu()] for name, value in columns.items()}
        initializer = Initializer(list(self.variables.values()), rows, generator)
        components, logits = initializer.start(self.n_components, method)
        for name, value in components.items():
            self.components[name].copy_(value)
            self.kernel(name).initialize_bandwidth(self.components[name], "nearest")
        self.logits.copy_(logits)
        self._is_initialized = True
        return self

    # ---- description

    def config(self) -> dict[str, Any]:
        variables = [variable.config() for variable in self.variables.values()]
        return {"layer": "ChainLayer", "variables": variables, **self._common_config()}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> ChainLayer:
        encoders = {} if encoders is None else encoders
        variables = [Variable.from_config(v, encoder=encoders.get(v["name"])) for v in config["variables"]]
        return cls(variables, config["n_components"], **options_from(config))

    def extra_repr(self) -> str:
        return f"{', '.join(self.variables)}, n_components={self.n_components}"
