"""Preparation for many questions: components in blocks (`PreparedKDM`), and sums whose parts are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count, check_instance, check_number
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions.arguments import BatchIndex
from kdmkit.distributions.base import PartMap
from kdmkit.distributions.component_scores import Features, Values
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry, Mixed, add_parts, sum_norms
from kdmkit.distributions.weights import Given, Weights
from kdmkit.kernels import Kernel
from kdmkit.kernels.boxes import Boxes, order_in_blocks
from kdmkit.kernels.continuous import check_continuous
from kdmkit.ops import Term
from kdmkit.ops.pruned import PrunedSum
from kdmkit.ops.triton.backend import prepare_sum

if TYPE_CHECKING:
    from kdmkit.ops.triton.prepared_sum import PreparedSum

_RTOL = "None, or a number between 0 and 1"
# Kept tensors take at most this multiple of the components' memory.
_SHARE = 1.5

#: Identities and versions of tensors: equal as long as none of them has changed.
Versions = tuple[tuple[int, int, int], ...]


class PreparedKDM:
    """The same density with components in blocks, for sums without the components that cannot matter.

    If components are many and bandwidths small, most terms of Σ_j p_j f̂_j(x) are nearly zero. Components
    are sorted into blocks of neighbours. The distance from x to the box around a block bounds what all its
    components can contribute.

    It holds a copy of components, weights and bandwidths (of weights that are all equal, a single number) and
    the boxes, which take a fiftieth of the components' memory. The given KDM can be thrown away. With the
    first exact question on a CUDA device it also keeps what such sums need, see `JointKDM.prepared`.

    Args:
        kdm: without a batch, and with a continuous kernel (RBF, LowRank, Epanechnikov, Tricube).
        block_size: the number of components of a block.

    Attributes:
        kdm: the KDM with its components in the order of blocks.

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM.from_samples(torch.linspace(0, 1000, 5001).unsqueeze(1), kdm.RBF.from_std(0.5))
    >>> prepared = kdm.PreparedKDM(rho)
    >>> x = torch.tensor([[500.0], [-3.0]])
    >>> rho.log_prob(x)
    tensor([ -6.9079, -26.6569])
    >>> prepared.log_prob(x, rtol=1e-3)
    tensor([ -6.9079, -26.6569])
    """

    def __init__(self, kdm: KDM, *, block_size: int = 256) -> None:
        check_instance("kdm", kdm, KDM, "a KDM")
        kernel = check_continuous("kdm", kdm.kernel, "a KDM with a continuous kernel")
        size = check_count("block_size", block_size)
        if kdm.batch_shape:
            raise ValueError(bad_argument("kdm", "a KDM without a batch", f"batch {tuple(kdm.batch_shape)}"))
        with torch.no_grad():
            components = kdm.components.detach()
            order = order_in_blocks(kernel.envelope, components, size)
            kernel, components = kernel.take(order), components[order]
            envelope = kernel.envelope
            log_weights = _in_order(kdm.log_weights.detach(), order)
            weights = PreparedWeights(log_weights, {"": kernel}, {"": components})
            self.kdm = KDM._made(components, weights, kernel, kdm._validate_args)
            norm = kernel.log_norm(components).to(components.device)
            self._norm = None if kernel.per_component else norm
            bias = log_weights + norm.to(log_weights) if kernel.per_component else log_weights
            totals = torch.stack([part.double().logsumexp(0) for part in bias.split(size)])
            boxes = Boxes.of(envelope, components, size)
        self._kernel, self._whiten = kernel, envelope.whiten
        self._sum = PrunedSum(self._term, bias, totals, boxes.largest_log_overlap, size)

    def _term(self, x: Tensor, index: Any) -> Term:
        return self._kernel.take(index).term(x, self.kdm.components[index])

    def log_prob(self, value: Any, *, rtol: float | None = None) -> Float[Tensor, "*lead"]:
        """log f̂(x), exact or with a stated error.

        Args:
            value: of shape `(*lead, d)`.
            rtol: None is exact. Otherwise the answer is the logarithm of a p̂ with p̂ ≤ f̂(x) ≤ (1 + rtol)·p̂
                for every x, apart from rounding: it is too small by rtol at most. It has no gradients.
        """
        if rtol is None:
            return self.kdm.log_prob(value)
        rtol = check_number("rtol", rtol, _RTOL, positive=True, below=1)
        x = self.kdm._check_value(value)
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(bad_argument("rtol", "None where gradients are wanted", rtol))
        with torch.no_grad():
            query = x.reshape(-1, x.shape[-1])
            log_sum = self._sum.log_mix(query, self._whiten(query.double()), rtol)
            log_prob = log_sum if self._norm is None else log_sum + self._norm
        return log_prob.to(torch.promote_types(x.dtype, self.kdm.components.dtype)).reshape(x.shape[:-1])

    def __repr__(self) -> str:
        return f"PreparedKDM({self.kdm!r})"


def _in_order(log_weights: Float[Tensor, " m"], order: Tensor) -> Float[Tensor, " m"]:
    """Log-weights in another order; those that are all equal take the memory of one."""
    equal = bool((log_weights == log_weights[:1]).all())
    return log_weights[:1].clone().expand(len(order)) if equal else log_weights[order]


class PreparedWeights(Weights):
    """Given weights that keep what sums over the components need: centred, scaled and split components.

    Averages and densities are those of `Given` weights. A kept tensor is made again when a tensor that it was
    made from has changed. It has no gradients: questions that need them do not use it.

    Args:
        log_weights: without a batch.
        kernels, components: of all variables, by name.
    """

    def __init__(
        self,
        log_weights: Float[Tensor, " m"],
        kernels: Mapping[str, Kernel],
        components: Mapping[str, Tensor],
    ) -> None:
        self._given, self.batch_shape = Given(log_weights), log_weights.shape[:-1]
        self._variables = [(kernels[name], components[name]) for name in kernels]
        self._kept: dict[tuple[Any, ...], tuple[Versions, Any]] = {}

    @property
    def log_weights(self) -> Float[Tensor, " m"]:
        return self._given.log_weights

    def at(self, index: BatchIndex) -> PreparedWeights:
        return self

    def prepare(self) -> PreparedWeights:
        """Prepares the components of all variables now; otherwise the first questions do so."""
        for kernel, components in self._variables:
            self._sum(kernel, components)
        return self

    @property
    def n_bytes(self) -> int:
        """Bytes that are kept beside components and weights."""
        # A list first: other threads may ask, too.
        kept = [value for _, value in list(self._kept.values()) if value is not None]
        return sum(value.nbytes if isinstance(value, Tensor) else value.n_bytes for value in kept)

    @property
    def _bytes_left(self) -> float:
        sizes = (components.numel() * components.element_size() for _, components in self._variables)
        return _SHARE * sum(sizes) - self.n_bytes

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return self.mix(entries)[1]

    def mix(self, entries: Sequence[Entry], values: Values | None = None) -> Mixed:
        mixed = self._prepared_mix(entries[0], values) if len(entries) == 1 else None
        if mixed is None:
            mixed = super().mix(entries, self._numbers(values) if isinstance(values, Features) else values)
        return mixed

    def _numbers(self, values: Features) -> Values:
        """The numbers of all components, kept if there is room for them."""
        few = values.rows(slice(0, 1)) if values.by_row else None
        if few is None or not needs_no_gradient(values.tensors):
            return values
        key, n_bytes = ("numbers", id(values.components), values.name), len(values.components) * few.nbytes
        if key not in self._kept and n_bytes > self._bytes_left:
            return values
        numbers: Tensor = self._keep(key, values.tensors, values.numbers)
        return numbers

    def _prepared_mix(self, entry: Entry, values: Values | None) -> Mixed | None:
        """The answer from kept tensors; None if the question needs others."""
        is_ours = any(entry.kernel is k and entry.components is c for k, c in self._variables)
        if not is_ours or entry.keep is not None or entry.is_region or isinstance(values, Tensor):
            return None
        tensors = [entry.value, self.log_weights, *_tensors(entry.kernel, entry.components)]
        if not needs_no_gradient([*tensors, *(values.tensors if values is not None else ())]):
            return None
        prepared = self._sum(entry.kernel, entry.components)
        staged = None if values is None or prepared is None else self._staged(prepared, values)
        if prepared is None or (values is not None and staged is None):
            return None
        # Kernels may change queries; what they do to components is kept.
        query: Tensor = entry.kernel.term(entry.value, entry.components[:1]).tensors[0]
        averages, lse = prepared.reduce(query, staged)
        return averages, add_parts(lse, sum_norms([entry], [entry.log_norm()])[1])

    def _sum(self, kernel: Kernel, components: Tensor) -> PreparedSum | None:
        def make() -> PreparedSum | None:
            term = kernel.term(components[:1], components)
            return prepare_sum(term, self.log_weights, most_bytes=self._bytes_left)

        if not kernel.components_are_events or not components.is_floating_point():
            return None
        tensors = [self.log_weights, *_tensors(kernel, components)]
        prepared: PreparedSum | None = self._keep(("sum", id(components)), tensors, make)
        return prepared

    def _staged(self, prepared: PreparedSum, values: Features) -> Any:
        def make() -> Any:
            n_values = values.rows(slice(0, 1)).shape[1]
            return prepared.values(values.rows, n_values, most_bytes=self._bytes_left)

        key = "values", id(prepared), id(values.components), values.name
        return self._keep(key, values.tensors, make) if values.by_row else None

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        if isinstance(values, Tensor) or not needs_no_gradient([self.log_weights, *values.tensors]):
            return self._given.average(values)
        key, tensors = ("average", id(values.components), values.name), [self.log_weights, *values.tensors]
        average: Tensor = self._keep(key, tensors, lambda: self._given.average(values))
        return average

    def _keep(self, key: tuple[Any, ...], tensors: Iterable[Tensor], make: Callable[[], Any]) -> Any:
        """The result of `make`, kept until one of the tensors changes."""
        versions = versions_of(tensors)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == versions:
            return kept[1]
        # Before another is made: two of them take twice the memory.
        del kept
        self._kept.pop(key, None)
        with torch.no_grad():
            made = make()
        self._kept[key] = versions, made
        return made

    def mapped(self, function: PartMap) -> Given:
        """Weights that are not prepared: kept tensors belong to the components before the change."""
        return self._given.mapped(function)

    def expand(self, batch_shape: torch.Size) -> Given:
        return self._given.expand(batch_shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: what is kept is left out, and made again by the first questions."""
        kernels, components = [{str(i): pair[k] for i, pair in enumerate(self._variables)} for k in (0, 1)]
        return PreparedWeights, (self.log_weights, kernels, components)


def prepare_weights(
    weights: Weights, kernels: Mapping[str, Kernel], components: Mapping[str, Tensor]
) -> PreparedWeights:
    """The same weights, with what sums over the components need."""
    batched = [name for name, k in kernels.items() if components[name].ndim > 1 + k.component_dim]
    if not isinstance(weights, Given | PreparedWeights) or weights.batch_shape or batched:
        wanted = "weights and components without a batch"
        raise ValueError(bad_argument("prepared", wanted, f"{type(weights).__name__} weights"))
    return PreparedWeights(weights.log_weights, kernels, components).prepare()


def _tensors(kernel: Kernel, components: Tensor) -> list[Tensor]:
    return [components, *kernel.parameters(), *kernel.buffers()]


def needs_no_gradient(tensors: Iterable[Tensor]) -> bool:
    """Whether operations run eagerly and no gradients with respect to these tensors are needed."""
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return only_reverse_mode() and not wanted


def versions_of(tensors: Iterable[Tensor]) -> Versions:
    """Equal as long as the tensors are the same and have not changed."""
    return tuple((id(x), x.data_ptr(), 0 if x.is_inference() else x._version) for x in tensors)
