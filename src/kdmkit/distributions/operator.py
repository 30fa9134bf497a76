"""The density matrix of a KDM: ρ = Σ_j p_j |φ_j⟩⟨φ_j|, by way of the inner products of its states."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count, check_instance
from kdmkit._core.logspace import log_normalize
from kdmkit._core.tensors import pick
from kdmkit.distributions.arguments import check_names
from kdmkit.distributions.base import Mixture, check_same_events, check_same_kernel
from kdmkit.distributions.tree import TreeKDM
from kdmkit.distributions.tree.condition import Conditioned
from kdmkit.distributions.tree.drawing import draw_states
from kdmkit.distributions.tree.states import States
from kdmkit.distributions.weights import mix_points
from kdmkit.kernels import Kernel
from kdmkit.kernels.feature_map import FeatureMap

# The mass of ρ outside of the support of σ that rounding can explain.
_SUPPORT = 1e-9
#: Kernel and components `(*batch, m, *component)` of every variable.
ComponentStates = dict[str, tuple[Kernel, Tensor]]


class Eigenstates(NamedTuple):
    """Orthogonal pure states |ψ_k⟩ = Σ_j a_jk |φ_j⟩ with ρ = Σ_k λ_k |ψ_k⟩⟨ψ_k|.

    Args:
        probs: λ, `(*batch, m)`, the largest first; their sum is 1.
        coefficients: a, `(*batch, m, m)`, by component and eigenstate; 0 where λ is 0 up to rounding.

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM.from_probs(torch.tensor([0.25, 0.75]))
    >>> kdm.DensityOperator(rho).eigenstates().probs
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """

    probs: Float[Tensor, "*batch m"]
    coefficients: Inexact[Tensor, "*batch m m"]


class DensityOperator:
    """The density matrix of a KDM, a JointKDM or a TreeKDM, on the Hilbert space of its kernels.

    A kernel k(x, c) = ⟨φ(x)|φ(c)⟩ makes a state of every component, and a product of kernels makes product
    states. All numbers follow from the m × m matrix of inner products, in float64. Kernels: RBF, Cosine with
    real or complex amplitudes, Categorical, Periodic, with one bandwidth for all components.

    Args:
        rho: the distribution.
        n_states: of a TreeKDM, whose product states are as many as the product of its nodes' components. If
            there are more, `n_states` of them are drawn with their probabilities: sums over ρ are then
            unbiased estimates, and entropies are too low, by about (rank − 1)/(2·n_states) nats.
        generator: source of randomness of these draws.

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM(torch.tensor([[0.0], [1.0]]), None, kdm.RBF(1.0))
    >>> operator = kdm.DensityOperator(rho)
    >>> operator.eigenvalues
    tensor([0.8033, 0.1967], dtype=torch.float64)
    >>> operator.entropy()
    tensor(0.4958, dtype=torch.float64)
    """

    def __init__(
        self,
        rho: Mixture | TreeKDM,
        *,
        n_states: int = 1024,
        generator: torch.Generator | None = None,
    ) -> None:
        check_instance("rho", rho, (Mixture, TreeKDM), "a KDM, a JointKDM or a TreeKDM")
        n_states = check_count("n_states", n_states)
        rho = rho.to(torch.float64)
        self._states: ComponentStates
        if isinstance(rho, TreeKDM):
            self.log_weights, self._states = _product_states(rho, n_states, generator)
        else:
            # Logarithms in float32 add up to 1 only up to rounding.
            self.log_weights, self._states = log_normalize(rho.log_weights), rho._variables()
        for kernel, _ in self._states.values():
            if not isinstance(kernel, FeatureMap):
                wanted = "one with a feature map (RBF, Cosine, Categorical, Periodic)"
                raise TypeError(bad_argument("kernel", wanted, repr(kernel)))
            check_same_kernel(kernel, kernel)

    # ---- the matrix

    def matrix(self) -> Inexact[Tensor, "*batch m m"]:
        """√p_i·⟨φ_i|φ_j⟩·√p_j, which has the nonzero eigenvalues of ρ."""
        return self._scaled_products(self)

    def _products(self, other: DensityOperator) -> Inexact[Tensor, "*batch m n"]:
        """⟨φ_i|φ_j⟩ of these states with those of another operator."""
        ours, theirs = self._states, other._states
        if len(ours) == len(theirs) == 1:
            theirs = dict(zip(ours, theirs.values(), strict=True))  # a KDM has no name for its variable
        if set(ours) != set(theirs):
            raise ValueError(bad_argument("other", f"the variables {list(ours)}", list(theirs)))
        product: Tensor | None = None
        for name, (kernel, states) in ours.items():
            other_kernel, other_states = theirs[name]
            check_same_kernel(kernel, other_kernel)
            check_same_events(kernel, states, other_states)
            assert isinstance(kernel, FeatureMap)
            one = kernel.inner_products(states, other_states)
            product = one if product is None else product * one
        assert product is not None
        return product

    def _scaled_products(self, other: DensityOperator) -> Inexact[Tensor, "*batch m n"]:
        ours, theirs = (0.5 * part.log_weights for part in (self, other))
        return ours.exp().unsqueeze(-1) * self._products(other) * theirs.exp().unsqueeze(-2)

    @property
    def eigenvalues(self) -> Float[Tensor, "*batch m"]:
        """The eigenvalues of ρ that may differ from 0, the largest first; their sum is 1."""
        return torch.linalg.eigvalsh(self.matrix()).flip(-1).clamp(0, 1)

    def eigenstates(self) -> Eigenstates:
        """The decomposition of ρ into orthogonal pure states."""
        values, vectors = torch.linalg.eigh(self.matrix())
        values, vectors = values.flip(-1).clamp(0, 1), vectors.flip(-1)
        is_state = values > _rounding(values)
        scale = torch.where(is_state, values, 1.0).rsqrt() * is_state
        return Eigenstates(
            values, (0.5 * self.log_weights).exp().unsqueeze(-1) * vectors * scale.unsqueeze(-2)
        )

    def amplitudes(self, value: Any = None, /, **values: Any) -> Inexact[Tensor, "*batch n m"]:
        """⟨φ(x_i)|ψ_k⟩ of points with every eigenstate: f(x) = Σ_k λ_k |⟨φ(x)|ψ_k⟩|², the Born rule.

        Args:
            value: points `(n, *event)` of the variable, or labels `(n,)`, if there is only one.
            values: points of all variables, by name.
        """
        points = values if value is None else {"": value, **values}
        check_names("values", points, self._states)
        products: Tensor | None = None
        for name, (kernel, components) in self._states.items():
            assert isinstance(kernel, FeatureMap)
            shape = kernel.event_shape(components.shape[components.ndim - kernel.component_dim :])
            x = kernel.as_events(name or "value", points[name], shape, components)
            if kernel.event_rank(x) < len(shape):  # a label stands for its basis vector
                x = torch.nn.functional.one_hot(x, shape[-1])
            one = kernel.inner_products(x.to(components), components)
            products = one if products is None else products * one
        assert products is not None
        coefficients = self.eigenstates().coefficients
        return _matmul(products, coefficients)

    def partial_trace(self, *names: str) -> DensityOperator:
        """The operator of the remaining variables, after the trace over those named: that of `marginal`."""
        check_names("names", names, self._states)
        kept = {name: state for name, state in self._states.items() if name not in names}
        if not kept or not names:
            raise ValueError(bad_argument("names", "some but not all of the variables", list(names)))
        operator = object.__new__(DensityOperator)
        operator.log_weights, operator._states = self.log_weights, kept
        return operator

    # ---- numbers

    def purity(self) -> Float[Tensor, "*batch"]:
        """tr ρ²: 1 for a pure state, 1/n for the maximally mixed one of n dimensions."""
        return self.matrix().abs().square().sum((-2, -1))

    def overlap(self, other: DensityOperator) -> Float[Tensor, "*batch"]:
        """tr ρσ."""
        return self._scaled_products(other).abs().square().sum((-2, -1))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The von Neumann entropy −tr ρ log ρ in nats: 0 for a pure state."""
        return torch.special.entr(self.eigenvalues).sum(-1)

    def fidelity(self, other: DensityOperator) -> Float[Tensor, "*batch"]:
        """Uhlmann's fidelity (tr √(√ρ σ √ρ))²: 1 if equal, 0 if orthogonal, the overlap of pure states."""
        return torch.linalg.svdvals(self._scaled_products(other)).sum(-1).square()

    def trace_distance(self, other: DensityOperator) -> Float[Tensor, "*batch"]:
        """½·tr|ρ − σ|: the largest difference of the probability of any outcome of any measurement."""
        across = self._scaled_products(other)
        ours, theirs = (part.matrix().expand(*across.shape[:-2], -1, -1) for part in (self, other))
        both = torch.cat([torch.cat([ours, across], -1), torch.cat([across.mH, theirs], -1)], -2)
        values, vectors = torch.linalg.eigh(both)
        # Coordinates of all states in an orthonormal basis of their span.
        is_needed = values > _rounding(values)
        basis = torch.where(is_needed, values, 0.0).sqrt().unsqueeze(-1) * vectors.mH
        m = across.shape[-2]
        first, second = basis[..., :m], basis[..., m:]
        return 0.5 * torch.linalg.eigvalsh(first @ first.mH - second @ second.mH).abs().sum(-1)

    def relative_entropy(self, other: DensityOperator) -> Float[Tensor, "*batch"]:
        """tr ρ(log ρ − log σ) in nats; ∞ if ρ has states outside of the support of σ."""
        probs, coefficients = other.eigenstates()
        amplitudes = _matmul(coefficients.mH, other._products(self))
        masses = (amplitudes.abs().square() * self.log_weights.exp().unsqueeze(-2)).sum(-1)
        outside = 1 - masses.sum(-1)
        cross = -torch.special.xlogy(masses, torch.where(probs > 0, probs, 1.0)).sum(-1)
        # Klein's inequality: below 0 there is rounding only.
        relative = (cross - self.entropy()).clamp_min(0)
        return torch.where(outside > _SUPPORT, math.inf, relative)


def _matmul(
    a: Inexact[Tensor, "*batch n m"], b: Inexact[Tensor, "*batch m k"]
) -> Inexact[Tensor, "*batch n k"]:
    """The product of a real or complex matrix and another."""
    dtype = torch.result_type(a, b)
    return torch.matmul(a.to(dtype), b.to(dtype))


def _rounding(values: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch 1"]:
    """Eigenvalues below this are 0 up to rounding."""
    return 4 * values.shape[-1] * torch.finfo(values.dtype).eps * values.amax(-1, keepdim=True)


# ---- product states of a tree


def _product_states(
    tree: TreeKDM, most: int, generator: torch.Generator | None
) -> tuple[Float[Tensor, "*batch m"], ComponentStates]:
    """Log-weights and components of all product states, or of `most` drawn ones if there are more."""
    if math.prod(tree._states.sizes) > most:
        drawn = draw_states(tree._tree, most, generator)
        even = torch.full((), -math.log(most), dtype=torch.float64, device=drawn[0].device)
        log_weights, index = even.expand(*tree.batch_shape, most), drawn
    else:
        log_weights, index = _every_state(tree._tree)
        log_weights = log_weights.expand(*tree.batch_shape, -1)
    chosen: ComponentStates = {}
    for name, kernel in tree.kernels.items():
        components, places = tree.components[name], index[tree._states.topology.node_of[name]]
        if places.ndim == 1:
            states = components.index_select(components.ndim - kernel.component_dim - 1, places)
        else:
            states = pick(components, places, kernel.component_dim).movedim(0, places.ndim - 1)
        chosen[name] = (kernel, states)
    return log_weights, chosen


def _every_state(tree: States | Conditioned) -> tuple[Float[Tensor, "*batch m"], list[Int[Tensor, " m"]]]:
    """log p(z | evidence) of all states z of the nodes together, and the state of every node in each z."""
    states = tree.states if isinstance(tree, Conditioned) else tree
    numbers = torch.arange(math.prod(states.sizes), device=states.log_root.device)
    index = list(torch.unravel_index(numbers, states.sizes))
    log_probs = states.log_root[..., index[0]]
    for node, parent in enumerate(states.topology.parents):
        if node:
            log_probs = log_probs + states.tables.log_table(node)[..., index[parent], index[node]]
    if not isinstance(tree, Conditioned):
        return log_probs, index
    given = [factor[..., z] for factor, z in zip(tree.factors, index, strict=True) if factor is not None]
    pieces = log_normalize(sum(given, log_probs.unsqueeze(0)))
    return mix_points(pieces, tree.pieces.log_weights), index
