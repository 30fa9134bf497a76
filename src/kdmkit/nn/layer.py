"""What layers share: parameters, starting values from data, descriptions."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, cast

import torch
from torch import Tensor, nn

from kdmkit._core.checks import (
    bad_argument,
    check_count,
    check_device,
    check_dtype,
    check_generator,
    in_memory,
)
from kdmkit._core.modes import only_reverse_mode
from kdmkit.distributions.prepared_weights import (
    PreparedWeights,
    Versions,
    needs_no_gradient,
    versions_of,
)
from kdmkit.distributions.weights import Given
from kdmkit.kernels import Kernel
from kdmkit.nn.initialize import Initializer, Method, Sigma, check_sigma
from kdmkit.nn.store import ComponentStore
from kdmkit.nn.variable import Variable


class LayerOptions(TypedDict, total=False):
    """Options of every layer's constructor: what is trained, dtype, device, and the source of randomness."""

    train_components: bool
    train_weights: bool
    train_kernels: bool
    dtype: torch.dtype | None
    device: torch.device | str | None
    generator: torch.Generator | None


class KDMLayer(nn.Module, ABC):
    """A module that owns the parameters of a distribution over named variables.

    The parameters are `components.<variable>`, `kernels.<variable>.…`, and logits of weights.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.nn.DensityLayer(2, n_components=4), KDMLayer)
    True
    """

    variables: dict[str, Variable]
    components: ComponentStore

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description of the layer as it was made; `state_dict` holds the numbers."""

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
        return cast("Kernel", self.kernels[variable])

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
        with in_memory("n_components", n_components):
            self.components = ComponentStore(
                variables,
                n_components,
                trainable=train_components,
                dtype=dtype,
                device=device,
                generator=generator,
            )
        for v in variables:
            if v.kernel.has_density:
                v.kernel.check_components(f"kernel of {v.name!r}", self.components[v.name])
        kernels = {v.name: copy.deepcopy(v.kernel) for v in variables}
        for kernel in kernels.values():
            for parameter in kernel.parameters():
                # An infinite parameter (a Categorical kernel without smoothing) cannot be trained.
                parameter.requires_grad_(train_kernels and bool(torch.isfinite(parameter).all()))
        self.kernels = nn.ModuleDict(kernels).to(device=device, dtype=dtype)
        start = torch.zeros(n_components, dtype=dtype, device=device)
        self._make_weights(start, trainable=train_weights)

    def _checks_values(self, validate_args: bool | None) -> bool:
        if validate_args is None:
            return self.weight_logits.device.type == "cpu" and only_reverse_mode()
        return validate_args

    def _common_config(self) -> dict[str, Any]:
        dtype = str(self.weight_logits.dtype).removeprefix("torch.")
        return {"n_components": self.n_components, "train": dict(self._train), "dtype": dtype}


class MixtureLayer(KDMLayer):
    """A layer whose variables share one index of components; log-weights are log_softmax(logits).

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.DensityLayer(2, n_components=4)
    >>> isinstance(layer, MixtureLayer), layer.logits.shape
    (True, torch.Size([4]))
    """

    logits: nn.Parameter
    _prepares: bool = False
    _prepared: tuple[Versions, PreparedWeights] | None = None

    @property
    def weight_logits(self) -> Tensor:
        return self.logits

    def _make_weights(self, start: Tensor, *, trainable: bool) -> None:
        self.logits = nn.Parameter(start, requires_grad=trainable)

    def prepare(self) -> Self:
        """Keeps what questions need of the parameters, see `JointKDM.prepared`; the layer is returned.

        For layers that are trained no more. After a change of a parameter it is computed again.
        """
        self._prepares = True
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: what is kept is computed again."""
        return {**self.__dict__, "_prepared": None}

    def _log_weights(self) -> Given:
        if not (self._prepares and needs_no_gradient([self.logits])):
            return Given(torch.log_softmax(self.logits, -1))
        versions = versions_of([self.logits, *self.components.values()])
        if self._prepared is None or self._prepared[0] != versions:
            kernels = {name: self.kernel(name) for name in self.variables}
            log_weights = torch.log_softmax(self.logits.detach(), -1)
            self._prepared = versions, PreparedWeights(log_weights, kernels, dict(self.components))
        return self._prepared[1]

    @torch.no_grad()
    def assign(self, components: Mapping[str, Tensor], logits: Tensor) -> Self:
        """Sets components by variable, and logits; the layer is returned."""
        self.logits.copy_(logits)
        for name, values in components.items():
            self.components[name].copy_(values)
        return self

    @torch.no_grad()
    def _initialize(
        self, data: Mapping[str, Any], method: Method, sigma: Sigma, generator: torch.Generator | None
    ) -> Self:
        """Sets components, weights and bandwidths from data; bad data raises before anything changes."""
        if set(data) != set(self.variables):
            raise ValueError(bad_argument("values", f"data for {list(self.variables)}", list(data)))
        check_sigma(sigma)
        check_generator(generator)
        initializer = Initializer(list(self.variables.values()), data, generator)
        components, logits = initializer.start(self.n_components, method)
        components = {name: value.to(self.components[name]) for name, value in components.items()}
        distances = initializer.distances(components) if sigma == "nearest" else {}
        for name, value in components.items():
            self.kernel(name).initialize_bandwidth(value, sigma, distance=distances.get(name))
        return self.assign(components, logits)


def prepare_layers(module: nn.Module) -> nn.Module:
    """Prepares all layers of a module that is trained no more; it is returned."""
    for layer in module.modules():
        if isinstance(layer, MixtureLayer):
            layer.prepare()
    return module


def options_from(config: Mapping[str, Any]) -> LayerOptions:
    """The constructor's options that a layer's configuration holds; torch's global generator is not used."""
    train = {f"train_{part}": flag for part, flag in config["train"].items()}
    dtype = getattr(torch, config["dtype"])
    return cast("LayerOptions", {**train, "dtype": dtype, "generator": torch.Generator()})


def by_name(
    argument: str, names: Sequence[str], values: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Positional values, in the order of `names`, together with the keyword values."""
    if len(values) > len(names):
        raise TypeError(bad_argument(argument, f"at most {len(names)}, for {', '.join(names)}", len(values)))
    repeated = [name for name in names[: len(values)] if name in named]
    if repeated:
        raise TypeError(bad_argument(argument, "each variable once", f"{', '.join(repeated)} twice"))
    return {**dict(zip(names, values, strict=False)), **named}
