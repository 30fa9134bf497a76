"""Given weights beside components that are prepared once for many questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions.features import Features, Values
from kdmkit.distributions.mixing import Entry, mix_prepared
from kdmkit.distributions.weights import Given, Mixed, Weights
from kdmkit.kernels import Kernel
from kdmkit.ops import PreparedSum

# What is kept takes at most this much of the components' memory.
_SHARE = 1.5

#: Which tensors something was made from, and which changes of them.
Versions = tuple[tuple[int, int, int], ...]


class PreparedWeights(Given):
    """Weights that keep what sums over the components need: centred, scaled and split components.

    Averages and densities are those of `Given` weights. What is kept is made again when a tensor that it was
    made from has changed. It has no gradients: where they are wanted, it is not used.

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
        super().__init__(log_weights)
        self._variables = [(kernels[name], components[name]) for name in kernels]
        self._kept: dict[tuple[Any, ...], tuple[Versions, Any]] = {}

    def prepare(self) -> PreparedWeights:
        """Prepares the components of all variables now; otherwise the first questions do so."""
        for kernel, components in self._variables:
            self._sum(kernel, components)
        return self

    @property
    def n_bytes(self) -> int:
        """Bytes that are kept beside components and weights."""
        # A list first: other threads may ask, too.
        found = [kept for _, kept in list(self._kept.values()) if kept is not None]
        return sum(kept.nbytes if isinstance(kept, Tensor) else kept.n_bytes for kept in found)

    @property
    def _bytes_left(self) -> float:
        sizes = (components.numel() * components.element_size() for _, components in self._variables)
        return _SHARE * sum(sizes) - self.n_bytes

    def mix(self, entries: Sequence[Entry], values: Values | None = None) -> Mixed:
        found = self._prepared_mix(entries[0], values) if len(entries) == 1 else None
        if found is None:
            found = super().mix(entries, self._numbers(values) if isinstance(values, Features) else values)
        return found

    def _numbers(self, values: Features) -> Values:
        """The numbers of all components, kept where there is room for them."""
        few = values.rows(slice(0, 1)) if values.by_row else None
        if few is None or not needs_no_gradient(values.tensors):
            return values
        key, n_bytes = ("numbers", id(values.components), values.name), len(values.components) * few.nbytes
        if key not in self._kept and n_bytes > self._bytes_left:
            return values
        numbers: Tensor = self._keep(key, values.tensors, values.numbers)
        return numbers

    def _prepared_mix(self, entry: Entry, values: Values | None) -> Mixed | None:
        """The answer by what is kept, None where nothing can be."""
        known = any(entry.kernel is k and entry.components is c for k, c in self._variables)
        if not known or entry.keep is not None or entry.region is not None or isinstance(values, Tensor):
            return None
        tensors = [entry.value, self._log_weights, *_tensors(entry.kernel, entry.components)]
        if not needs_no_gradient([*tensors, *(values.tensors if values is not None else ())]):
            return None
        found = self._sum(entry.kernel, entry.components)
        staged = None if values is None or found is None else self._staged(found, values)
        if found is None or (values is not None and staged is None):
            return None
        # Kernels may change queries; what they do to components is kept.
        query: Tensor = entry.kernel.term(entry.value, entry.components[:1]).tensors[0]
        return mix_prepared(entry, found.reduce(query, staged))

    def _sum(self, kernel: Kernel, components: Tensor) -> PreparedSum | None:
        def make() -> PreparedSum | None:
            term = kernel.term(components[:1], components)
            return PreparedSum.of(term, self._log_weights, most_bytes=self._bytes_left)

        if not kernel.components_are_events or not components.is_floating_point():
            return None
        tensors = [self._log_weights, *_tensors(kernel, components)]
        found: PreparedSum | None = self._keep(("sum", id(components)), tensors, make)
        return found

    def _staged(self, prepared: PreparedSum, values: Features) -> Any:
        def make() -> Any:
            shape = len(values.components), values.rows(slice(0, 1)).shape[1]
            return prepared.values(values.rows, shape, most_bytes=self._bytes_left)

        key = "values", id(prepared), id(values.components), values.name
        return self._keep(key, values.tensors, make) if values.by_row else None

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        if isinstance(values, Tensor) or not needs_no_gradient([self._log_weights, *values.tensors]):
            return super().average(values)
        key, tensors = ("average", id(values.components), values.name), [self._log_weights, *values.tensors]
        average: Tensor = self._keep(key, tensors, lambda: super(PreparedWeights, self).average(values))
        return average

    def _keep(self, key: tuple[Any, ...], tensors: Iterable[Tensor], make: Callable[[], Any]) -> Any:
        """What `make` returned while the tensors were what they are now."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: what is kept is left out, and made again by the first questions."""
        kernels, components = ({str(i): pair[k] for i, pair in enumerate(self._variables)} for k in (0, 1))
        return PreparedWeights, (self._log_weights, kernels, components)


def prepare_weights(
    weights: Weights, kernels: Mapping[str, Kernel], components: Mapping[str, Tensor]
) -> PreparedWeights:
    """The same weights, with what sums over the components need."""
    batched = [name for name, k in kernels.items() if components[name].ndim > 1 + k.component_dim]
    if not isinstance(weights, Given) or weights.batch_shape or batched:
        wanted = "weights and components without a batch"
        raise ValueError(bad_argument("prepared", wanted, f"{type(weights).__name__} weights"))
    return PreparedWeights(weights.log_weights, kernels, components).prepare()


def _tensors(kernel: Kernel, components: Tensor) -> list[Tensor]:
    return [components, *kernel.parameters(), *kernel.buffers()]


def needs_no_gradient(tensors: Iterable[Tensor]) -> bool:
    """Whether operations run eagerly, and nobody asks for gradients by these tensors."""
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return only_reverse_mode() and not wanted


def versions_of(tensors: Iterable[Tensor]) -> Versions:
    """Equal as long as the tensors are the same and have not changed."""
    return tuple((id(x), x.data_ptr(), 0 if x.is_inference() else x._version) for x in tensors)
