"""Layers and predictors: their configurations and states, with the encoders and decoders of the caller."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_type_hints

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_finite, check_positive
from kdmkit.distributions import JointKDM
from kdmkit.kernels import Bandwidth
from kdmkit.nn import MLP, DensityLayer, JointLayer, KDMLayer, Predictor, Scaler, TreeLayer
from kdmkit.serialize.values import check_types

CLASSES: dict[str, type] = {
    "JointLayer": JointLayer,
    "DensityLayer": DensityLayer,
    "TreeLayer": TreeLayer,
    "Predictor": Predictor,
}


class UserModuleError(ValueError):
    """The encoder or decoder that was given to `load` does not fit."""


@dataclass
class UserModules:
    """The encoder and decoder given to `load`; models get copies of them."""

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None
    _lent: set[str] = field(default_factory=set)

    def lend(self, part: Literal["encoder", "decoder"], saved: str) -> nn.Module:
        """A copy of the encoder or decoder, for a model that was saved with one of class `saved`."""
        module = getattr(self, part)
        if not isinstance(module, nn.Module):
            wanted = (
                f"load(path, {part}=...) with the {saved} it was saved with: only its weights are on disk"
            )
            raise UserModuleError(bad_argument(part, wanted, module))
        self._lent.add(part)
        return copy.deepcopy(module)

    def check_used(self) -> None:
        for part in ("encoder", "decoder"):
            if getattr(self, part) is not None and part not in self._lent:
                wanted = f"None: the model was not saved with {part} of the caller's"
                raise ValueError(bad_argument(part, wanted, type(getattr(self, part)).__name__))


def pack(module: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    key = "module" if isinstance(module, Predictor) else "layer"
    return {key: module.config()}, tensors_of(module)


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> nn.Module:
    if config["class"] == "Predictor":
        return predictor_from(config["module"], tensors, user)
    description = config["layer"]
    variables = description["variables"] if "variables" in description else [description["variable"]]
    composed = [v["name"] for v in variables if v["kernel"]["kernel"] == "Composed"]
    encoders = {name: user.lend("encoder", "module") for name in composed}
    layer = cast("type[KDMLayer]", CLASSES[config["class"]]).from_config(description, encoders=encoders)
    return filled(layer, tensors, tuple(f"kernels.{name}.encoder." for name in composed))


def filled(layer: Any, tensors: dict[str, Tensor], user_prefixes: tuple[str, ...] = ()) -> Any:
    """A layer with the saved numbers, which have to be those of a joint KDM or of a tree."""
    put(layer, tensors)
    check_values(layer, user_prefixes)
    components = {name: value.detach() for name, value in layer.components.items()}
    kernels = {name: layer.kernel(name) for name in components}
    # One index of components, also for a tree: its logits only have to be finite.
    log_weights = torch.log_softmax(layer.weight_logits.detach(), -1)
    JointKDM(components, None, kernels, log_weights=log_weights)
    return layer


def predictor_from(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Predictor:
    """A predictor with the saved numbers; the caller's encoder and decoder, if it was saved with such."""
    parts: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    for part in parts:
        check_types((config[part] or {}).get("mlp") or {}, get_type_hints(MLP.__init__))
    lent = {part: _user_part(part, config[part], tensors, user) for part in parts}
    predictor = Predictor.from_config(config, **lent)
    put(predictor, tensors)
    check_values(predictor, tuple(f"{part}." for part in parts if lent[part] is not None))
    predictor.joint()
    return predictor


def _user_part(
    part: Literal["encoder", "decoder"],
    config: dict[str, Any] | None,
    tensors: dict[str, Tensor],
    user: UserModules,
) -> nn.Module | None:
    """The caller's module with the saved weights; None if the predictor was saved without one."""
    if config is None or "own" not in config:
        return None
    module = user.lend(part, config["own"])
    put(module, under(f"{part}.", tensors), part)
    return module


# ---- states


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's state, which must consist of tensors."""
    state = module.state_dict()
    other = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise ValueError(
            bad_argument("model", "a state of tensors", f"{type(state[other[0]]).__name__} in {other[0]}")
        )
    return state


def put(module: nn.Module, tensors: dict[str, Tensor], argument: str | None = None) -> None:
    """Loads saved tensors into a module; dtypes are those of the tensors.

    Args:
        argument: the argument of `load` that the module came from, if it did.
    """
    try:
        _check_kinds(module.state_dict(), tensors)
        module.load_state_dict(tensors, assign=True)
    except (RuntimeError, ValueError) as error:
        if argument is None:
            raise
        reasons = " ".join(str(error).split())
        raise UserModuleError(bad_argument(argument, "parameters as they were saved", reasons)) from error


def _check_kinds(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Raises if dtypes differ; floating-point numbers may have another precision."""
    for name in state.keys() & tensors.keys():
        new, old = tensors[name].dtype, state[name].dtype
        if new != old and not (new.is_floating_point and old.is_floating_point):
            raise ValueError(f"{new} in {name}, which holds {old}")


def check_values(module: nn.Module, user_prefixes: tuple[str, ...] = ()) -> None:
    """Raises if a module holds numbers that no fit gives it.

    Args:
        user_prefixes: prefixes of the names of the caller's tensors, which may hold anything.
    """
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not name.startswith(user_prefixes):
            # The logarithm of zero is legal.
            logarithm = name.rpartition(".")[-1].startswith("log")
            check_finite(name, tensor[tensor != -torch.inf] if logarithm else tensor)
    for part in module.modules():
        if isinstance(part, Bandwidth):
            check_positive(part.name, part.value.detach())
        if isinstance(part, Scaler):
            check_positive("scale", part.scale)
        if isinstance(part, KDMLayer):
            flags = part.config()["train"]
            check_types(flags, dict.fromkeys(flags, bool))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
