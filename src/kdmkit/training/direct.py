"""Steps without autograd: the objective writes out its gradients, and two tensors hold all parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class WritesGradients(Protocol):
    """An objective, an `nn.Module`, that writes out its gradients."""

    @property
    def writes_gradients(self) -> bool:
        """Whether it does so with its settings."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters with their names."""

    def with_gradients(self, *rows_and_share: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The losses of rows, and the gradients of Σ_i share_i·loss_i by the trainable parameters.

        The last argument is the share of every row.
        """


class FlatParameters:
    """The trainable parameters of an objective as parts of one tensor, their gradients as parts of another.

    An optimizer then updates two tensors, one with and one without weight decay, in place of dozens.

    Args:
        objective: whose parameters are moved.
        decayed: the names of those with weight decay.
    """

    def __init__(self, objective: WritesGradients, decayed: set[str]) -> None:
        self.objective = objective
        named = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        ordered = sorted(named, key=lambda name: name not in decayed)
        self.originals = list(named.values())
        self._places = [ordered.index(name) for name in named]
        tensors = [named[name].detach() for name in ordered]
        values = torch.cat([tensor.flatten() for tensor in tensors])
        self.gradient = torch.zeros_like(values)
        sizes = [tensor.numel() for tensor in tensors]
        for name, part, tensor in zip(ordered, values.split(sizes), tensors, strict=True):
            named[name].data = part.view(tensor.shape)
        n_decayed = sum(size for name, size in zip(ordered, sizes, strict=True) if name in decayed)
        cuts = [n_decayed, len(values) - n_decayed]
        self.groups = [nn.Parameter(part) for part in values.split(cuts)]
        for group, gradient in zip(self.groups, self.gradient.split(cuts), strict=True):
            group.grad = gradient

    def write(self, gradients: tuple[Tensor, ...]) -> None:
        """Sets the gradients, given in the order of the objective's parameters."""
        ordered = [g for _, g in sorted(zip(self._places, gradients, strict=True), key=lambda pair: pair[0])]
        torch.cat([gradient.flatten() for gradient in ordered], out=self.gradient)

    def clip(self, norm: float) -> None:
        """Scales the gradients down to a norm."""
        self.gradient.mul_((norm / (self.gradient.norm() + 1e-6)).clamp_max(1.0))

    def release(self) -> None:
        """Gives every parameter a tensor of its own again."""
        for parameter in self.originals:
            parameter.data = parameter.data.clone()
