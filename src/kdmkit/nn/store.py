"""Components by variable, as parameters where they can be trained."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.nn.variable import Variable


class ComponentStore(nn.Module, Mapping[str, Tensor]):
    """A mapping from variable to components `(m, *event)`: parameters for vectors, buffers for codes."""

    def __init__(
        self,
        variables: Sequence[Variable],
        n_components: int,
        *,
        trainable: bool,
        dtype: torch.dtype,
        device: object,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self._names = [variable.name for variable in variables]
        for variable in variables:
            if hasattr(self, variable.name):
                raise ValueError(
                    bad_argument("name", "one that no attribute of a module has", repr(variable.name))
                )
            shape = (n_components, *variable.kernel.component_shape(variable.shape))
            if variable.trainable:
                place = cast("torch.device", device)
                start = torch.randn(shape, dtype=dtype, device=place, generator=generator)
                self.register_parameter(variable.name, nn.Parameter(start, requires_grad=trainable))
            else:
                codes = torch.zeros(shape, dtype=torch.int64, device=cast("torch.device", device))
                self.register_buffer(variable.name, codes)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return cast("Tensor", getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other
