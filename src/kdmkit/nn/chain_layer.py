"""A layer for sequences: a hidden Markov model whose emissions are KDMs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import as_shape, as_tensor, bad_argument, check_count, check_generator
from kdmkit.distributions import JointKDM
from kdmkit.distributions.arguments import check_complete, check_names, gather_masks
from kdmkit.distributions.component_scores import relative_scores
from kdmkit.distributions.evidence import gather_values
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.weights import Given
from kdmkit.nn.initialize import Initializer, Method
from kdmkit.nn.layer import KDMLayer, LayerOptions, Variable, check_variables, options_from
from kdmkit.ops.messages.chain import ChainStates

# ε in p(z_t | z_{t−1}) = (1 − ε)·softmax + ε/k.
_FLOOR = 1e-6
# The probability of staying in a state, before training.
_STAY = 0.9


class ChainLayer(KDMLayer):
    """A trainable hidden Markov model of sequences, whose emissions are KDMs.

    p(x) = Σ_z p(z_1) Π_{t>1} p(z_t | z_{t−1}) Π_t Σ_j p(j | z_t) Π_v f̂_v(x_tv | c_{v,j}). One table
    p(z_t | z_{t−1}) serves all steps, and all states have equally many components. Columns are
    `(*batch, steps, *event)`, of any kernels with a density. Values may be missing, and sequences may have
    different lengths: steps of which nothing is observed are summed out.

    The memory is that of a few numbers per step and state. Messages are computed in float64, with one matrix
    product per step for all sequences; gradients need no graph of steps.

    Args:
        variables: the columns.
        n_components: m, of all states together.
        n_states: the number of states, a divisor of m; None: every component is a state.
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

    start_logits: nn.Parameter
    transition_logits: nn.Parameter
    logits: nn.Parameter

    def __init__(
        self,
        variables: Sequence[Variable],
        n_components: int,
        *,
        n_states: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        variables = list(variables)
        check_variables(variables, ("lengths", "n_steps"))
        n_components = check_count("n_components", n_components)
        self.n_states = n_components if n_states is None else check_count("n_states", n_states)
        if n_components % self.n_states:
            wanted = f"a divisor of the number of components ({n_components})"
            raise ValueError(bad_argument("n_states", wanted, n_states))
        self._build(variables, n_components, **options)

    @property
    def weight_logits(self) -> Tensor:
        return self.logits

    def _make_weights(self, start: Tensor, *, trainable: bool) -> None:
        k = self.n_states
        self.start_logits = nn.Parameter(start.new_zeros(k), requires_grad=trainable)
        stay = math.log(_STAY / (1 - _STAY) * max(1, k - 1))
        table = stay * torch.eye(k, dtype=start.dtype, device=start.device)
        self.transition_logits = nn.Parameter(table, requires_grad=trainable)
        self.logits = nn.Parameter(start, requires_grad=trainable and len(start) > k)

    def transition_probs(self) -> Float[Tensor, "k k"]:
        """p(z_t | z_{t−1}), a row per state z_{t−1}."""
        return torch.softmax(self.transition_logits, -1) * (1 - _FLOOR) + _FLOOR / self.n_states

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
        return self.log_prob_of_scores(scores, tops).reshape(batch)

    def log_prob_of_scores(
        self, scores: Float[Tensor, "t b m"], tops: Float[Tensor, "t b"]
    ) -> Float[Tensor, " b"]:
        """`log_prob` of sequences by the scores of their steps, for training.

        Args:
            scores: log f̂(x_t | c_j) of every component, less its maximum over components.
            tops: the maxima.
        """
        return self._states().log_prob(scores, tops)

    @torch.no_grad()
    def step_log_prob(
        self, *, observed: Mapping[str, Any] | None = None, lengths: Any = None, **columns: Any
    ) -> Float[Tensor, "*batch steps"]:
        """log p of every step given the steps before it; their sum is `log_prob`. No gradients.

        Args:
            observed, lengths, columns: as in `log_prob`.
        """
        scores, tops, batch = self._scores(columns, observed, lengths)
        return self._states().step_log_prob(scores, tops).mT.reshape(*batch, -1)

    @torch.no_grad()
    def filter(
        self, *, observed: Mapping[str, Any] | None = None, lengths: Any = None, **columns: Any
    ) -> JointKDM:
        """The distribution of a step's values given the steps up to it, `(*batch, steps)`; no gradients.

        Args:
            observed, lengths, columns: as in `log_prob`.
        """
        scores, _, batch = self._scores(columns, observed, lengths)
        states = self._states()
        return self._emissions(states.mixture(states.filtered(scores), scores), batch)

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
        states = self._states()
        return self._emissions(states.mixture(states.smoothed(scores), scores), batch)

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
        n_steps, states = check_count("n_steps", n_steps), self._states()
        last, batch = self._last_states(columns, observed, lengths)
        return self._emissions(states.mixture(states.ahead(last, n_steps), None), batch)

    # ---- draws

    @torch.no_grad()
    def sample(
        self,
        n_steps: int,
        sample_shape: Any = (),
        *,
        observed: Mapping[str, Any] | None = None,
        lengths: Any = None,
        generator: torch.Generator | None = None,
        **columns: Any,
    ) -> dict[str, Tensor]:
        """Exact draws of sequences by variable, `(*sample_shape, *batch, n_steps, *event)`.

        Without columns they are new sequences, with columns they go on from these.

        Args:
            n_steps: of every sequence.
            sample_shape: draws of each.
            observed, lengths, columns: as in `log_prob`.
            generator: source of randomness; None is torch's global one.
        """
        n_steps, shape = check_count("n_steps", n_steps), as_shape("sample_shape", sample_shape)
        check_generator(generator)
        states, batch = self._states(), torch.Size()
        if columns:
            last, batch = self._last_states(columns, observed, lengths)
            first = states.ahead(last, 1)[0]
        else:
            first = states.log_start.double().exp().unsqueeze(0)
        drawn = states.draw_ahead(first.repeat(shape.numel(), 1), n_steps, generator)
        return self._drawn(drawn, torch.Size([*shape, *batch]), generator)

    @torch.no_grad()
    def complete(
        self,
        *,
        observed: Mapping[str, Any] | None = None,
        lengths: Any = None,
        generator: torch.Generator | None = None,
        **columns: Any,
    ) -> dict[str, Tensor]:
        """Values of all steps by variable, `(*batch, steps, *event)`, drawn together given what is observed.

        Only those of missing values are of interest: observed ones are drawn anew from their components.

        Args:
            observed, lengths, columns: as in `log_prob`.
            generator: source of randomness; None is torch's global one.
        """
        check_generator(generator)
        scores, _, batch = self._scores(columns, observed, lengths)
        return self._drawn(self._states().draw_inside(scores, generator), batch, generator)

    def _drawn(
        self, chosen: Int[Tensor, "t b"], batch: torch.Size, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """Values by variable of the chosen components."""
        index, drawn = chosen.mT.reshape(1, -1), {}
        for name, components in self.components.items():
            value = self.kernel(name).draw(components, index, generator).squeeze(0)
            drawn[name] = value.reshape(*batch, len(chosen), *value.shape[1:])
        return drawn

    # ---- scores and mixtures

    def _states(self) -> ChainStates:
        log_within = torch.log_softmax(self.logits.reshape(self.n_states, -1), -1)
        return ChainStates(torch.log_softmax(self.start_logits, -1), self.transition_probs(), log_within)

    def _last_states(
        self, columns: Mapping[str, Any], observed: Mapping[str, Any] | None, lengths: Any
    ) -> tuple[Float[Tensor, "b k"], torch.Size]:
        """p(last state | the sequence), and the batch."""
        scores, _, batch = self._scores(columns, observed, lengths)
        states = self._states().filtered(scores)
        if lengths is None:
            return states[-1], batch
        last = as_tensor("lengths", lengths).reshape(-1).to(states.device) - 1
        return states[last, torch.arange(states.shape[1], device=states.device)], batch

    def _emissions(self, log_weights: Float[Tensor, "t b m"], batch: torch.Size) -> JointKDM:
        """The mixture over components of every step, `(*batch, t)`."""
        components, kernels = self._parts()
        weights = log_weights.movedim(0, 1)
        weights = weights.reshape(*batch, *weights.shape[1:]).to(self.logits.dtype)
        return JointKDM._made(components, Given(weights), kernels, self._checks_values(None))

    def _scores(
        self, columns: Mapping[str, Any], observed: Mapping[str, Any] | None, lengths: Any
    ) -> tuple[Float[Tensor, "t b m"], Float[Tensor, "t b"], torch.Size]:
        """log f̂(x_t | c_j) minus its maximum over j, the maximum, and the batch."""
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
        m, steps = self.n_components, lead[-1]
        relative = relative.expand(*lead, m).reshape(-1, steps, m).movedim(1, 0)
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
        components, logits = self._start(rows, method, generator)
        for name, value in components.items():
            self.components[name].copy_(value)
            self.kernel(name).initialize_bandwidth(self.components[name], "scott")
        self.logits.copy_(logits)
        if self.n_states == self.n_components:
            self.start_logits.copy_(logits)
        self._is_initialized = True
        return self

    def _start(
        self, rows: Mapping[str, Tensor], method: Method, generator: torch.Generator | None
    ) -> tuple[dict[str, Tensor], Float[Tensor, " m"]]:
        """Components by variable and logits; the components of a state are near each other."""
        variables = list(self.variables.values())
        initializer = Initializer(variables, rows, generator)
        components, logits = initializer.start(self.n_components, method)
        if self.n_states in (1, self.n_components):
            return components, logits
        order = initializer.in_groups(components, self.n_states)
        return {name: value[order] for name, value in components.items()}, logits[order]

    # ---- description

    def config(self) -> dict[str, Any]:
        variables = [variable.config() for variable in self.variables.values()]
        return {
            "layer": "ChainLayer",
            "variables": variables,
            "n_states": self.n_states,
            **self._common_config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> ChainLayer:
        encoders = {} if encoders is None else encoders
        variables = [Variable.from_config(v, encoder=encoders.get(v["name"])) for v in config["variables"]]
        return cls(variables, config["n_components"], n_states=config["n_states"], **options_from(config))

    def extra_repr(self) -> str:
        names = ", ".join(self.variables)
        return f"{names}, n_components={self.n_components}, n_states={self.n_states}"
