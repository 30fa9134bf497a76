"""Joint kernel density matrices over named variables, and inference between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, overload

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_shape, bad_argument, check_instance
from kdmkit._core.logspace import log_normalize, safe_logsumexp
from kdmkit.distributions.arguments import (
    BatchIndex,
    Masks,
    Target,
    check_complete,
    check_components,
    check_names,
    check_target,
    check_variables,
    choose_targets,
    common_batch,
    component_tensors,
    event_shape_of,
    gather_masks,
    is_checked,
)
from kdmkit.distributions.base import Composite, Mixture, PartMap, map_values
from kdmkit.distributions.event_inference import Answered, CaseScores, EventEvidence
from kdmkit.distributions.events import Event
from kdmkit.distributions.evidence import Evidence, gather_evidence, gather_values
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry, ScoreKind
from kdmkit.distributions.prepared import prepare_weights
from kdmkit.distributions.sampling import choose
from kdmkit.distributions.weights import Given, Inferred, Weights, given_weights
from kdmkit.kernels import Kernel, Region


class NamedVariables(Composite):
    """Components and kernels by variable, and questions by name: the base of JointKDM and TreeKDM."""

    components: dict[str, Tensor]
    kernels: dict[str, Kernel]
    #: The shape of one value, by variable.
    event_shapes: dict[str, torch.Size]
    _weights_batch: torch.Size
    _validate_args: bool

    def _set_variables(
        self,
        components: dict[str, Tensor],
        kernels: dict[str, Kernel],
        weights_batch: torch.Size,
        validate_args: bool,
    ) -> None:
        self.components, self.kernels, self._weights_batch = components, kernels, weights_batch
        self.event_shapes = {name: event_shape_of(kernels[name], components[name]) for name in kernels}
        self._validate_args = validate_args and not any(value.is_meta for value in components.values())
        shapes = {"weights": weights_batch}
        for name, kernel in kernels.items():
            shapes[f"components[{name!r}]"] = components[name].shape[: -1 - kernel.component_dim]
            shapes[f"kernels[{name!r}]"] = kernel.batch_shape
        self.batch_shape = common_batch(shapes)

    def _check_component_values(self) -> None:
        for name, kernel in self.kernels.items():
            components = self.components[name]
            kernel.check_component_values(f"components[{name!r}]", components, self.event_shapes[name])
            kernel.check_components(f"kernels[{name!r}]", components)

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(self.kernels)

    # ---- densities

    def log_prob(
        self, event: Event | None = None, /, *, observed: Masks = None, **values: Any
    ) -> Float[Tensor, "*lead"]:
        """log p(x, y, …), or log P(event).

        Args:
            event: a boolean expression of conditions, instead of values.
            observed: by variable, a boolean mask `(*lead,)`: False where the value is missing. Missing values
                are integrated out, so the result is the log-density of the observed part of each row.
            values: of all variables: events, or a region (`Interval`, `OneOf`), whose mass takes part.
        """
        if event is not None:
            check_instance("event", event, Event, "an event, made by kdmkit.col")
            return EventEvidence(self, event).log_prob()
        return self._log_mix(self._entries(values, "density", observed))

    @abstractmethod
    def _log_mix(self, entries: Mapping[str, Entry]) -> Float[Tensor, "*lead"]:
        """The log-density of values of all variables."""

    def _entries(self, values: Mapping[str, Any], kind: ScoreKind, observed: Masks) -> dict[str, Entry]:
        check_names("values", values, self.kernels)
        check_complete(values, self.kernels)
        masks = gather_masks(observed, list(values), next(iter(self.components.values())))
        entries = {name: self._entry(name, values[name], kind, masks.get(name)) for name in self.kernels}
        common_batch({name: e.lead for name, e in entries.items()} | {"batch_shape": self.batch_shape})
        return entries

    def _entry(self, name: str, value: Any, kind: ScoreKind, keep: Tensor | None) -> Entry:
        is_region = isinstance(value, Region)
        if is_region and kind == "overlap":
            wanted = "points (a projection has no regions)"
            raise TypeError(bad_argument(name, wanted, type(value).__name__))
        value = gather_values(self, name, value, keep)
        return Entry(self.kernels[name], value, self.components[name], kind, keep, is_region)

    # ---- marginals and inference

    @overload
    def marginal(self, name: str, /) -> KDM: ...
    @overload
    def marginal(self, *names: str) -> KDM | Self: ...
    def marginal(self, *names: str) -> KDM | Self:
        """The distribution of some variables: a KDM for one name, for several the same kind as this.

        A JointKDM drops the other variables and keeps its weights. A TreeKDM also drops leaves that have no
        variable any more; nodes between others stay, as latent ones.
        """
        check_target(names, self.kernels)
        return self._over(names, None)

    @overload
    def infer(
        self,
        given: JointKDM | Event | None = None,
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
        given: JointKDM | Event | None = None,
        /,
        *,
        target: Target = None,
        observed: Masks = None,
        noisy: bool = False,
        **evidence: Any,
    ) -> KDM | Self: ...
    def infer(
        self,
        given: JointKDM | Event | None = None,
        /,
        *,
        target: Target = None,
        observed: Masks = None,
        noisy: bool = False,
        **evidence: Any,
    ) -> KDM | Self:
        """The distribution of some variables given others (the paper's Algorithm 1).

        For points it is Bayes' rule. An input KDM stands for its weighted components x_l, and the result is
        Σ_l p_l p(target | x_l). With p(target | x_l) of a JointKDM the weights become
        p''_j = Σ_l p_l softmax_j(ℓ_j + log_overlap(x_l, x'_j)). The bandwidth of an input KDM plays no part,
        as in the paper, unless `noisy` asks for it. The result shares the components; its weights are
        computed when they are first read.

        Args:
            given: evidence on several variables at once: a JointKDM over some of them, or an event. Variables
                with conditions in an event may be targets, too: their kernels are restricted to the event.
            target: the variable or variables to infer; None is all the rest.
            observed: by variable, a boolean mask `(*batch,)`: False where that evidence is missing and the
                variable is marginalised.
            noisy: whether the components x_l of input KDMs are noisy measurements: x is distributed about x_l
                as the kernel of the input KDM says. Then w_lj ∝ p_j·∫ N(x; x_l, σ_in²/2)·N(x; c_j, σ_j²/2) dx
                = p_j·N(x_l; c_j, (σ_j² + σ_in²)/2). For RBF kernels without a metric; others raise.
            evidence: by variable, a tensor of points `(*batch, *event)` (labels `(*batch,)` for discrete
                kernels), a KDM, or a region: `Interval`, `OneOf`. Separate KDMs mean independence. Leading
                dimensions broadcast.

        Returns:
            A KDM for one target, for several a JointKDM or a TreeKDM as this is, with `log_evidence`.
            Evidence of probability zero leaves the weights as they are and has `log_evidence` −∞.
        """
        if isinstance(given, Event):
            if evidence or observed is not None or noisy:
                raise ValueError(bad_argument("evidence", "an event alone", list(evidence)))
            names = sorted(map(str, given.keys()))
            check_names("event", names, self.kernels)
            rest = [name for name in self.variables if name not in names]
            wanted = rest if target is None else [target] if isinstance(target, str) else list(target)
            check_target(wanted, self.kernels)
            return EventEvidence(self, given).infer(wanted)
        if given is not None:
            check_instance("given", given, JointKDM, "a JointKDM (points and KDMs are passed by name)")
        names = [*evidence] if given is None else [*given.variables, *evidence]
        check_names("evidence", names, self.kernels)
        targets = choose_targets(target, names, self.kernels)
        masks = gather_masks(observed, names, next(iter(self.components.values())))
        return self._over(targets, gather_evidence(self, given, evidence, masks, noisy))

    @abstractmethod
    def _log_mass(self, scores: CaseScores) -> Float[Tensor, "l *batch"]:
        """The log-probability of every case of an event, given their scores."""

    @abstractmethod
    def _weights_given(
        self, name: str, scores: CaseScores
    ) -> tuple[Float[Tensor, "l m"], Float[Tensor, " l"]]:
        """The log-weights of a variable's components given each case, and the log-probabilities of cases."""

    @abstractmethod
    def _mixture_given(self, names: Sequence[str], answers: Sequence[Answered]) -> Self:
        """The mixture of distributions of some variables given the cases, weighted by their probabilities."""

    def _parts(self, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Kernel]]:
        return {name: self.components[name] for name in names}, {name: self.kernels[name] for name in names}

    @abstractmethod
    def _over(self, names: Sequence[str], evidence: Evidence | None) -> KDM | Self:
        """The distribution of some variables given evidence, if any."""

    # ---- draws

    def sample(
        self,
        sample_shape: Any = (),
        *,
        given: Event | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Exact draws of all variables together, by variable `(*sample_shape, *batch, *event)`.

        Args:
            sample_shape: sizes of the leading dimensions; a number n means `(n,)`.
            given: an event that holds for every draw.
            generator: source of randomness; None is torch's global one.
        """
        shape = as_shape("sample_shape", sample_shape)
        if given is not None:
            check_instance("given", given, Event, "an event, made by kdmkit.col")
            with torch.no_grad():
                inside = EventEvidence(self, given).sample(shape.numel(), generator)
            return {name: value.reshape(*shape, *value.shape[1:]) for name, value in inside.items()}
        drawn = {}
        with torch.no_grad():
            index = self._draw_components(shape.numel(), generator)
            for name, kernel in self.kernels.items():
                value = kernel.draw(self.components[name], index[name], generator)
                drawn[name] = value.reshape(*shape, *self.batch_shape, *self.event_shapes[name])
        return drawn

    @abstractmethod
    def _draw_components(self, n: int, generator: torch.Generator | None) -> Mapping[str, Tensor]:
        """n indices of components for every variable and every element of the batch."""


class JointKDM(NamedVariables, Mixture):
    """A KDM over several variables: each component has a value of every variable, the kernels multiply.

    Args:
        components: by variable, `(m, *event)` or `(*batch, m, *event)`.
        weights: `(*batch, m)`, non-negative and summing to 1; None is uniform.
        kernels: by variable.
        log_weights: log of the weights, instead of `weights`.
        validate_args: whether arguments and values are checked.

    >>> import kdmkit as kdm
    >>> components = {"x": torch.tensor([[-1.0], [1.0]]), "y": torch.eye(2)}
    >>> rho = kdm.JointKDM(components, None, {"x": kdm.RBF(0.5), "y": kdm.Cosine()})
    >>> rho.infer(x=torch.tensor([[-1.0], [0.0]])).probs
    tensor([[1.0000e+00, 1.1254e-07],
            [5.0000e-01, 5.0000e-01]])
    >>> rho.infer(y=torch.tensor(1)).mean
    tensor([1.])
    """

    def __init__(
        self,
        components: Mapping[str, Any],
        weights: Any = None,
        kernels: Mapping[str, Kernel] | None = None,
        *,
        log_weights: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        kernels = check_variables(components, kernels)
        tensors = component_tensors(components, kernels)
        m_dims = {n: check_components(f"components[{n!r}]", tensors[n], kernels[n]) for n in kernels}
        counts = {name: tensors[name].shape[m_dims[name]] for name in kernels}
        if len(set(counts.values())) > 1:
            wanted = "the same number of components for every variable"
            raise ValueError(bad_argument("components", wanted, counts))
        first = next((n for n in kernels if tensors[n].is_floating_point()), next(iter(kernels)))
        validate = is_checked(validate_args, tensors[first])
        mixture = given_weights(weights, log_weights, tensors[first], m_dims[first], validate=validate)
        self._set(tensors, mixture, kernels, validate)
        if validate:
            self._check_component_values()

    def _set(
        self, components: dict[str, Tensor], weights: Weights, kernels: dict[str, Kernel], validate_args: bool
    ) -> None:
        self._weights = weights
        self._set_variables(components, kernels, weights.batch_shape, validate_args)

    @property
    def n_components(self) -> int:
        """m, the number of components."""
        name, kernel = next(iter(self.kernels.items()))
        return self.components[name].shape[-1 - kernel.component_dim]

    def _log_mix(self, entries: Mapping[str, Entry]) -> Float[Tensor, "*lead"]:
        return self._weights.log_mix(list(entries.values()))

    def log_projection(self, **values: Any) -> Float[Tensor, "*lead"]:
        """log f(x, y, …), without normalisers."""
        return self._log_mix(self._entries(values, "overlap", None))

    def projection(self, **values: Any) -> Float[Tensor, "*lead"]:
        """f(x, y, …) = Σ_j p_j Π_v k_v²(x_v, c_vj), which is not normalised."""
        return self.log_projection(**values).exp()

    def _over(self, names: Sequence[str], evidence: Evidence | None) -> KDM | Self:
        weights = self._weights if evidence is None else Inferred(evidence, self._weights)
        if len(names) == 1:
            kernel = self.kernels[names[0]]
            return KDM._made(self.components[names[0]], weights, kernel, self._validate_args)
        components, kernels = self._parts(names)
        return self._made(components, weights, kernels, self._validate_args)

    def _log_mass(self, scores: CaseScores) -> Float[Tensor, "l *batch"]:
        relative, tops = zip(*scores.values(), strict=True)
        return safe_logsumexp(self._weights.log_weights + sum(relative)) + sum(tops)

    def _weights_given(
        self, name: str, scores: CaseScores
    ) -> tuple[Float[Tensor, "l m"], Float[Tensor, " l"]]:
        relative, tops = zip(*scores.values(), strict=True)
        joint = self._weights.log_weights + sum(relative)
        return log_normalize(joint), safe_logsumexp(joint) + sum(tops)

    def _mixture_given(self, names: Sequence[str], answers: Sequence[Answered]) -> JointKDM:
        log_evidence = torch.cat([answer.log_evidence for answer in answers])
        total = safe_logsumexp(log_evidence)
        weights = torch.cat([self._weights_given(names[0], answer.scores)[0] for answer in answers])
        shares = weights.double() + (log_evidence - total).unsqueeze(-1)
        given = Given(safe_logsumexp(shares.mT).to(self._weights.log_weights), total)
        components, kernels = self._parts(names)
        return self._made(components, given, kernels, self._validate_args)

    def prepared(self) -> JointKDM:
        """The same joint for many questions: what they need of the components is computed once and kept.

        On a CUDA device these are the components of squared distances (RBF), centred, scaled and split into
        halves, and the values that `probs` and `mean` average. They take at most 1.5 times the memory of all
        components; what would take more is computed in every call. On other devices only averages under the
        joint's weights are kept.

        Answers are the same. Questions that need gradients use nothing that was kept. After a component, a
        weight or a bandwidth has changed it is computed again. Copies by `to` and `copy.deepcopy` are not
        prepared. The joint may have no batch.

        >>> import kdmkit as kdm
        >>> components = {"x": torch.tensor([[-1.0], [1.0]]), "y": torch.eye(2)}
        >>> rho = kdm.JointKDM(components, None, {"x": kdm.RBF(0.5), "y": kdm.Cosine()}).prepared()
        >>> rho.infer(x=torch.tensor([[0.0]])).probs
        tensor([[0.5000, 0.5000]])
        """
        return self._with_weights(prepare_weights(self._weights, self.kernels, self.components))

    def _variables(self) -> dict[str, tuple[Kernel, Tensor]]:
        return {name: (kernel, self.components[name]) for name, kernel in self.kernels.items()}

    def _with_weights(self, weights: Weights) -> JointKDM:
        return JointKDM._made(self.components, weights, self.kernels, self._validate_args)

    def _at(self, index: BatchIndex) -> JointKDM:
        components, kernels = index.variables(self.components, self.kernels)
        return JointKDM._made(components, self._weights.at(index), kernels, self._validate_args)

    def _draw_components(self, n: int, generator: torch.Generator | None) -> Mapping[str, Tensor]:
        return dict.fromkeys(self.kernels, choose(self.log_weights, n, generator))

    def _mapped(self, function: PartMap) -> JointKDM:
        components, kernels = map_values(function, self.components), map_values(function, self.kernels)
        return JointKDM._made(components, self._weights.mapped(function), kernels, self._validate_args)

    def __repr__(self) -> str:
        return (
            f"JointKDM(batch_shape={tuple(self.batch_shape)}, n_components={self.n_components}, "
            f"kernels={self.kernels})"
        )
