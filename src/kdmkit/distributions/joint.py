"""Joint kernel density matrices over named variables, and inference between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_shape, as_tensor, bad_argument, check_instance
from kdmkit.distributions._validation import (
    check_components,
    common_batch,
    event_shape_of,
    is_checked,
)
from kdmkit.distributions.evidence import check_masks, gather_evidence, gather_masks, gather_values
from kdmkit.distributions.inference import Inferred
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry, ScoreKind
from kdmkit.distributions.names import (
    Masks,
    Target,
    check_complete,
    check_names,
    check_target,
    check_variables,
    choose_targets,
)
from kdmkit.distributions.prepared_weights import prepare_weights
from kdmkit.distributions.sampling import choose
from kdmkit.distributions.weights import Mixture, PartMap, Weights, each, given_weights
from kdmkit.kernels import Kernel, Region


class JointKDM(Mixture):
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
        tensors = {name: as_tensor(f"components[{name!r}]", value) for name, value in components.items()}
        m_dims = {n: check_components(f"components[{n!r}]", tensors[n], kernels[n]) for n in kernels}
        counts = {name: tensors[name].shape[m_dims[name]] for name in kernels}
        if len(set(counts.values())) > 1:
            raise ValueError(
                bad_argument("components", "the same number of components for every variable", counts)
            )
        first = next((n for n in kernels if tensors[n].is_floating_point()), next(iter(kernels)))
        validate = is_checked(validate_args, tensors[first])
        mixture = given_weights(weights, log_weights, tensors[first], m_dims[first], validate=validate)
        self._set({name: tensors[name] for name in kernels}, mixture, kernels, validate)
        if validate:
            for name, kernel in kernels.items():
                kernel.check_component_values(f"components[{name!r}]", tensors[name], self.event_shapes[name])
                kernel.check_components(f"kernels[{name!r}]", tensors[name])

    def _set(
        self, components: dict[str, Tensor], weights: Weights, kernels: dict[str, Kernel], validate_args: bool
    ) -> None:
        self.components, self.kernels, self._weights = components, kernels, weights
        self._validate_args = validate_args and not any(value.is_meta for value in components.values())
        shapes = {
            f"components[{n!r}]": components[n].shape[: -1 - k.component_dim] for n, k in kernels.items()
        }
        shapes |= {f"kernels[{name!r}]": kernel.batch_shape for name, kernel in kernels.items()}
        self.batch_shape = common_batch({"weights": weights.batch_shape, **shapes})

    # ---- what it is made of

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(self.kernels)

    @property
    def event_shapes(self) -> dict[str, torch.Size]:
        """The shape of one value, by variable."""
        return {name: event_shape_of(kernel, self.components[name]) for name, kernel in self.kernels.items()}

    @property
    def n_components(self) -> int:
        """m, the number of components."""
        name, kernel = next(iter(self.kernels.items()))
        return self.components[name].shape[-1 - kernel.component_dim]

    # ---- densities

    def log_prob(self, *, observed: Masks = None, **values: Any) -> Float[Tensor, "*lead"]:
        """log f̂(x, y, …): log-overlaps of the variables add, log-normalisers add.

        Args:
            observed: by variable, a boolean mask `(*lead,)`: False where the value is missing. Missing values
                are integrated out, so the result is the log-density of the observed part of each row.
            values: of all variables: events, or a region (`Interval`, `OneOf`), whose mass takes part.
        """
        return self._weights.log_mix(self._entries(values, "density", check_masks(observed)))

    def log_projection(self, **values: Any) -> Float[Tensor, "*lead"]:
        """log f(x, y, …), without normalisers."""
        return self._weights.log_mix(self._entries(values, "overlap"))

    def projection(self, **values: Any) -> Float[Tensor, "*lead"]:
        """f(x, y, …) = Σ_j p_j Π_v k_v²(x_v, c_vj), which is not normalised."""
        return self.log_projection(**values).exp()

    def _entries(
        self, values: Mapping[str, Any], kind: ScoreKind, observed: Mapping[str, Any] | None = None
    ) -> list[Entry]:
        check_names("values", values, self.kernels)
        check_complete(values, self.kernels)
        masks = gather_masks(observed or {}, list(values), next(iter(self.components.values())))
        entries = {name: self._entry(name, values[name], kind, masks.get(name)) for name in self.kernels}
        common_batch({name: e.lead for name, e in entries.items()} | {"batch_shape": self.batch_shape})
        return list(entries.values())

    def _entry(self, name: str, value: Any, kind: ScoreKind, keep: Tensor | None) -> Entry:
        region = type(value) if isinstance(value, Region) else None
        if region is not None and kind == "overlap":
            raise TypeError(bad_argument(name, "points (a projection has no regions)", region.__name__))
        value = gather_values(self, name, value, keep)
        return Entry(self.kernels[name], value, self.components[name], kind, keep, region)

    # ---- marginals and inference

    @overload
    def marginal(self, name: str, /) -> KDM: ...
    @overload
    def marginal(self, *names: str) -> KDM | JointKDM: ...
    def marginal(self, *names: str) -> KDM | JointKDM:
        """The distribution of some variables: the others are dropped, the weights stay.

        One name gives a KDM, several a JointKDM.
        """
        check_target(names, self.kernels)
        return self._over(names, self._weights)

    def _over(self, names: Sequence[str], weights: Weights) -> KDM | JointKDM:
        if len(names) == 1:
            (name,) = names
            return KDM._made(self.components[name], weights, self.kernels[name], self._validate_args)
        components = {name: self.components[name] for name in names}
        kernels = {name: self.kernels[name] for name in names}
        return JointKDM._made(components, weights, kernels, self._validate_args)

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
    ) -> KDM | JointKDM: ...
    def infer(
        self,
        given: JointKDM | None = None,
        /,
        *,
        target: Target = None,
        observed: Masks = None,
        noisy: bool = False,
        **evidence: Any,
    ) -> KDM | JointKDM:
        """The distribution of some variables given others (the paper's Algorithm 1).

        p''_j = Σ_l p_l softmax_j(ℓ_j + log_overlap(x_l, x'_j)): for points Bayes' rule, for KDMs the weighted
        sum over their components. The bandwidth of an input KDM plays no part, as in the paper, unless
        `noisy` asks for it. The result shares this joint's components; only its weights carry a batch, and
        they are computed when they are first read.

        Args:
            given: evidence on several variables at once, a JointKDM over some of them.
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
            A KDM for one target, a JointKDM for several, with `log_evidence`. Evidence that overlaps with
            no component leaves the joint's own weights and has `log_evidence` −∞.
        """
        if given is not None:
            check_instance("given", given, JointKDM, "a JointKDM (points and KDMs are passed by name)")
        observed = check_masks(observed)
        known = [*(given.variables if given is not None else ()), *evidence]
        check_names("evidence", known, self.kernels)
        targets = choose_targets(target, known, self.kernels)
        collected = gather_evidence(self, given, evidence, observed, noisy)
        posterior = Inferred(collected, self.kernels, self.components, self._weights)
        return self._over(targets, posterior)

    # ---- draws and copies

    def prepared(self) -> JointKDM:
        """The same joint for many questions: what they need of the components is computed once and kept.

        On a CUDA device these are the components of squared distances (RBF), centred, scaled and split into
        halves, and the values that `probs` and `mean` average. They take at most 1.5 times the memory of all
        components; what would take more is computed in every call. On other devices only averages under the
        joint's own weights are kept.

        Answers are the same. Where gradients are wanted, nothing is used that was kept. After a component, a
        weight or a bandwidth has changed it is computed again. Copies by `to` and `copy.deepcopy` are not
        prepared. The joint may have no batch.

        >>> import kdmkit as kdm
        >>> components = {"x": torch.tensor([[-1.0], [1.0]]), "y": torch.eye(2)}
        >>> rho = kdm.JointKDM(components, None, {"x": kdm.RBF(0.5), "y": kdm.Cosine()}).prepared()
        >>> rho.infer(x=torch.tensor([[0.0]])).probs
        tensor([[0.5000, 0.5000]])
        """
        weights = prepare_weights(self._weights, self.kernels, self.components)
        return JointKDM._made(self.components, weights, self.kernels, self._validate_args)

    def sample(
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Exact draws of all variables together, by variable `(*sample_shape, *batch, *event)`."""
        shape = as_shape("sample_shape", sample_shape)
        drawn = {}
        with torch.no_grad():
            index = choose(self.log_weights, shape.numel(), generator)
            for name, kernel in self.kernels.items():
                value = kernel.draw(self.components[name], index, generator)
                drawn[name] = value.reshape(*shape, *self.batch_shape, *self.event_shapes[name])
        return drawn

    def _mapped(self, function: PartMap) -> JointKDM:
        components, kernels = each(function, self.components), each(function, self.kernels)
        return JointKDM._made(components, self._weights.mapped(function), kernels, self._validate_args)

    def __repr__(self) -> str:
        return (
            f"JointKDM(batch_shape={tuple(self.batch_shape)}, n_components={self.n_components}, "
            f"kernels={self.kernels})"
        )
