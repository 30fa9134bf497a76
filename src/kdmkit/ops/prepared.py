"""Components that do not change, prepared once for many queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.tensors import full_precision
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import SquaredDistance, Term
from kdmkit.ops.triton import backend as triton

if TYPE_CHECKING:
    from kdmkit.ops.triton.memory import Memory, StagedValues

# Fewer components are prepared in no time.
LEAST_COMPONENTS = 1 << 15


class PreparedSum:
    """`log_mix` and `attend` over components of one squared distance, which are prepared for many queries.

    Sums are those of the Triton backend, without gradients.

    Args:
        memory: the components.
        device_type: where they are.

    >>> import kdmkit as kdm
    >>> components = torch.randn(100, 2)
    >>> term = kdm.RBF(1.0).term(components[:1], components)
    >>> PreparedSum.of(term, torch.zeros(100), most_bytes=1e9) is None  # on a CPU nothing is gained
    True
    """

    def __init__(self, memory: Memory, device_type: str) -> None:
        self._memory, self._device_type = memory, device_type

    @classmethod
    def of(cls, term: Term, log_weights: Float[Tensor, " m"], *, most_bytes: float) -> PreparedSum | None:
        """Sums over the components of a term, whatever its queries; None where nothing is gained.

        That is the case on a CPU, of few components, of terms that the Triton backend does not support, and
        where what is kept would take more than `most_bytes`.
        """
        reduction = Reduction([term], log_weights)
        if log_weights.shape[-1] < LEAST_COMPONENTS or triton.supports(reduction) is not None:
            return None
        if not triton.is_usable(reduction):
            return None
        assert isinstance(term, SquaredDistance)
        if triton.memory_bytes(term) > most_bytes:
            return None
        try:
            return cls(triton.make_memory(term, log_weights), reduction.device_type)
        except triton.KernelError as error:
            triton.give_up(reduction.device_type, error)
            return None

    @property
    def n_bytes(self) -> int:
        """What is kept, in bytes."""
        return self._memory.n_bytes

    def values(
        self,
        of: Callable[[Int[Tensor, " k"] | slice], Float[Tensor, "k v"]],
        shape: tuple[int, int],
        *,
        most_bytes: float,
    ) -> StagedValues | None:
        """Values for `reduce`; None where they are too many.

        Args:
            of: the values of some components, given by their numbers.
            shape: the number of components, and of values of each.
            most_bytes: values that would take more are prepared in every call, some at a time.
        """
        if not 1 <= shape[1] <= triton.LARGEST_V:
            return None
        from kdmkit.ops.triton.parts import Values

        with torch.no_grad(), triton.as_kernel_error():
            return self._memory.stage_values(Values(shape[1], of, shape[0]), most_bytes=most_bytes)

    def reduce(self, query: Float[Tensor, "*lead d"], values: StagedValues | None = None) -> Result:
        """Averages of the values (None without any) and logsumexps."""
        with full_precision(self._device_type), torch.no_grad(), triton.as_kernel_error():
            averages, lse = self._memory.reduce(query.reshape(-1, query.shape[-1]), values)
        lead = query.shape[:-1]
        return None if values is None else averages.reshape(*lead, -1), lse.reshape(lead)
