"""Variables, and the base of all layers: their parameters and their descriptions."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn

from kdmkit._core.checks import (
    as_shape,
    bad_argument,
    check_count,
    check_device,
    check_dtype,
    check_instance,
    in_memory,
    warn_user,
)
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.distributions.arguments import RESERVED
from kdmkit.distributions.base import Composite, PartMap, graph_snapshot, map_values, snapshot
from kdmkit.kernels import Kernel, check_kernel, kernel_from_config

# `infer` and `initialize` take variables by name, beside arguments of these names.
_ARGUMENTS = (*RESERVED, "method", "sigma", "generator")


@dataclass(frozen=True)
class Variable:
    """A named variable of a layer: its kernel and the shape of one event.

    Args:
        name: the variable's name, as `infer` and `log_prob` will use it.
        kernel: copied by the layer, never shared.
        shape: the event shape, `(d,)`; a number means `(d,)`; `()` for Categorical codes.

    >>> import kdmkit as kdm
    >>> Variable("age", kdm.RBF(5.0), 1).shape
    torch.Size([1])
    """

    name: str
    kernel: Kernel
    shape: torch.Size

    def __init__(self, name: str, kernel: Kernel, shape: int | tuple[int, ...] | torch.Size) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(bad_argument("name", "a Python identifier", repr(name)))
        if name in _ARGUMENTS:
            raise ValueError(bad_argument("name", f"one other than {', '.join(_ARGUMENTS)}", repr(name)))
        check_kernel(f"kernel of {name!r}", kernel)
        size = as_shape(f"shape of {name!r}", shape)
        if len(size) != kernel.event_dim or 0 in size:
            wanted = f"{kernel.event_dim} positive dimension(s) for {type(kernel).__name__}"
            raise ValueError(bad_argument(f"shape of {name!r}", wanted, tuple(size)))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "shape", size)

    @property
    def trainable(self) -> bool:
        """Whether components of this variable can move: codes cannot."""
        return self.kernel.components_trainable

    def config(self) -> dict[str, Any]:
        """Name, kernel and shape in the types of JSON."""
        return {"name": self.name, "kernel": self.kernel.config(), "shape": list(self.shape)}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Variable:
        """The variable that `config` describes; `encoder` is that of a `Composed` kernel."""
        kernel = kernel_from_config(config["kernel"], encoder=encoder)
        return cls(config["name"], kernel, tuple(config["shape"]))


class LayerOptions(TypedDict, total=False):
    """Options of every layer's constructor: what is trained, dtype, device, and the source of randomness."""

    train_components: bool
    train_weights: bool
    train_kernels: bool
    dtype: torch.dtype | None
    device: torch.device | str | None
    generator: torch.Generator | None


class ComponentStore(nn.Module, Mapping[str, Tensor]):
    """A mapping from variable to components `(m, *event)`: parameters for vectors, buffers for codes.

    Args:
        shared: by variable, another one whose components it has.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        n_components: int,
        shared: Mapping[str, str],
        *,
        trainable: bool,
        dtype: torch.dtype,
        device: torch.device | None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self._owners = {variable.name: shared.get(variable.name, variable.name) for variable in variables}
        for variable in variables:
            name = variable.name
            if name in shared:
                continue
            if hasattr(self, name):
                raise ValueError(bad_argument("name", "one that no attribute of a module has", repr(name)))
            shape = (n_components, *variable.kernel.component_shape(variable.shape))
            if variable.trainable:
                start = torch.randn(shape, dtype=dtype, device=device, generator=generator)
                self.register_parameter(name, nn.Parameter(start, requires_grad=trainable))
            else:
                self.register_buffer(name, torch.zeros(shape, dtype=torch.int64, device=device))

    def __getitem__(self, name: str) -> Tensor:
        # Not `getattr`, which looks for attributes first: this is read at every step.
        owner = self._owners[name]
        tensor = self._parameters.get(owner)
        return cast("Tensor", self._buffers[owner] if tensor is None else tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class KDMLayer(nn.Module, ABC):
    """A module that owns the parameters of a distribution over named variables.

    The parameters are `components.<variable>`, `kernels.<variable>.…`, and logits of weights.

    The distributions that a layer returns are snapshots: later steps of an optimizer do not move them,
    whenever they are read. For that, parameters that require gradients are copied; frozen ones are not.
    Gradients flow through the copies to the parameters; under `torch.no_grad` or `torch.inference_mode` there
    are none. A compiled layer, one under a transform of `torch.func`, and the encoder of a `Composed` kernel
    inside a graph are not copied: read such a distribution before the next step.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.nn.DensityLayer(2, n_components=4), KDMLayer)
    True
    """

    variables: dict[str, Variable]
    components: ComponentStore
    _is_initialized: bool = False
    # By variable, another one whose components and kernel it has.
    _shared: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description of the layer's arguments; `state_dict` holds the numbers."""

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> KDMLayer:
        """The layer that `config` describes; `encoders` are those of Composed kernels, by variable."""

    @property
    @abstractmethod
    def weight_logits(self) -> Tensor:
        """Logits of weights `(m,)`; their dtype and device are the layer's."""

    @abstractmethod
    def _make_weights(self, start: Tensor, *, trainable: bool) -> None:
        """Makes the logits of all weights, in the dtype and on the device of `start`, zeros `(m,)`."""

    @property
    def n_components(self) -> int:
        """The number of components."""
        return self.weight_logits.shape[0]

    def kernel(self, variable: str) -> Kernel:
        """The kernel of a variable."""
        return cast("Kernel", self.kernels[self._shared.get(variable, variable)])

    def _build(
        self,
        variables: Sequence[Variable],
        n_components: int,
        *,
        train_components: bool = True,
        train_weights: bool = True,
        train_kernels: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Makes the parameters."""
        n_components = check_count("n_components", n_components)
        self._train = {"components": train_components, "weights": train_weights, "kernels": train_kernels}
        dtype = torch.get_default_dtype() if dtype is None else dtype
        check_dtype("dtype", dtype)
        device = None if device is None else check_device("device", device)
        self.variables = {variable.name: variable for variable in variables}
        settings: Any = {"dtype": dtype, "device": device, "generator": generator}
        with in_memory("n_components", n_components):
            self.components = ComponentStore(
                variables, n_components, self._shared, trainable=train_components, **settings
            )
        for v in variables:
            if v.kernel.has_density:
                v.kernel.check_components(f"kernel of {v.name!r}", self.components[v.name])
            if any(buffer.requires_grad for buffer in v.kernel.buffers()):
                wanted = (
                    "one without gradients of its own (layers train bandwidths that start at given values)"
                )
                raise ValueError(bad_argument(f"kernel of {v.name!r}", wanted, repr(v.kernel)))
        kernels = {v.name: copy.deepcopy(v.kernel) for v in variables if v.name not in self._shared}
        for kernel in kernels.values():
            for parameter in kernel.parameters():
                # An infinite parameter (a Categorical kernel without smoothing) cannot be trained.
                parameter.requires_grad_(train_kernels and bool(torch.isfinite(parameter).all()))
        self.kernels = nn.ModuleDict(kernels).to(device=device, dtype=dtype)
        start = torch.zeros(n_components, dtype=dtype, device=device)
        self._make_weights(start, trainable=train_weights)

    def _kernels(self) -> dict[str, Kernel]:
        kernels: Any = self.kernels
        return {name: kernels[self._shared.get(name, name)] for name in self.variables}

    @property
    def _snapshot(self) -> PartMap | None:
        """Makes a part of a distribution keep its present value; compilers and transforms cannot copy."""
        if not only_reverse_mode():
            return None
        return graph_snapshot if torch.is_grad_enabled() else snapshot

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Kernel]]:
        """Components and kernels of a distribution, by variable, as they are now."""
        self._check_initialized()
        components, kernels = dict(self.components), self._kernels()
        copied = self._snapshot
        if copied is None:
            return components, kernels
        return map_values(copied, components), map_values(copied, kernels)

    def _check_initialized(self) -> None:
        """Warns, once, if components are still the random ones of the constructor."""
        if self._is_initialized or not only_reverse_mode():
            return
        self._is_initialized = True
        if not any(not part.is_inference() and part._version for part in self.components.values()):
            warn_user(
                f"{type(self).__name__}: `initialize` was not called, so components are random numbers and "
                "bandwidths are not adapted to the data; call it with (encoded) data before training"
            )

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._is_initialized = True

    def _evidence(self, values: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `infer` for a distribution of `_parts`: without gradients, they are copied as well."""
        if not torch.is_grad_enabled() and self._snapshot is snapshot:
            for name, value in values.items():
                if isinstance(value, Tensor):
                    values[name] = snapshot(value)
                elif isinstance(value, Composite):
                    values[name] = value._mapped(snapshot)
        return values

    def _checks_values(self, validate_args: bool | None) -> bool:
        if validate_args is None:
            return self.weight_logits.device.type == "cpu" and only_reverse_mode()
        return validate_args

    def _common_config(self) -> dict[str, Any]:
        dtype = str(self.weight_logits.dtype).removeprefix("torch.")
        return {"n_components": self.n_components, "train": dict(self._train), "dtype": dtype}


def options_from(config: Mapping[str, Any]) -> LayerOptions:
    """The constructor's options that a layer's configuration holds; torch's global generator is not used."""
    train = {f"train_{part}": flag for part, flag in config["train"].items()}
    dtype = getattr(torch, config["dtype"])
    return cast("LayerOptions", {**train, "dtype": dtype, "generator": torch.Generator()})


def check_variables(variables: Sequence[Variable], reserved: Sequence[str]) -> None:
    """Raises unless variables have densities and different names, none of them reserved."""
    for variable in variables:
        check_instance("variables", variable, Variable, "a sequence of kdmkit.nn.Variable")
        if variable.name in reserved:
            wanted = f"a name other than {', '.join(reserved)}"
            raise ValueError(bad_argument("variables", wanted, repr(variable.name)))
        if not variable.kernel.has_density:
            wanted = "kernels that are densities"
            raise TypeError(bad_argument("variables", wanted, f"{variable.kernel!r} of {variable.name!r}"))
    names = [variable.name for variable in variables]
    if len(set(names)) < len(names) or not names:
        raise ValueError(bad_argument("variables", "one or more with different names", names))
