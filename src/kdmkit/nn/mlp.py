"""Multi-layer perceptrons: one network, and several of the same shape side by side.

Modules that draw random numbers in training get them from `Draws`, without torch's global generator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.runtime import is_exporting, only_reverse_mode
from kdmkit.nn.scaler import soft_clip


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of one training step, the same however many processes share the rows.

    Every process draws for all rows of the batch and keeps the numbers of its rows.

    Args:
        generator: in the same state on all processes.
        n_rows: of the whole batch.
        local: the rows of this process.

    >>> x, generator = torch.zeros(2, 1), torch.Generator()
    >>> whole = Draws(generator.manual_seed(0), 4, slice(None)).normal(torch.zeros(4, 1))
    >>> torch.equal(Draws(generator.manual_seed(0), 4, slice(1, None, 2)).normal(x), whole[1::2])
    True
    """

    generator: torch.Generator
    n_rows: int
    local: slice | Tensor

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a tensor of rows."""
        shape = (self.n_rows, *like.shape[1:])
        return torch.randn(shape, generator=self.generator, dtype=like.dtype, device=like.device)[self.local]

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1 in the shape of a tensor of rows, in float32."""
        shape, device = (self.n_rows, *like.shape[1:]), like.device
        return torch.rand(shape, generator=self.generator, dtype=torch.float32, device=device)[self.local]


class DrawingModule(nn.Module, ABC):
    """Base of modules that draw random numbers for every row in training.

    Attributes:
        draws: the source of the numbers. The training loop sets it for every step; None is torch's global
            generator.

    >>> from kdmkit.nn import Dropout
    >>> issubclass(Dropout, DrawingModule), Dropout(0.2).draws is None
    (True, True)
    """

    draws: Draws | None = None

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of `like`."""
        return torch.randn_like(like) if self.draws is None else self.draws.normal(like)

    def noisy(self, x: Tensor, std: float) -> Tensor:
        """x, in training with Gaussian noise of a standard deviation."""
        return x + std * self.normal(x) if self.training and std else x

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1 in the shape of `like`."""
        return torch.rand_like(like, dtype=torch.float32) if self.draws is None else self.draws.uniform(like)


class Dropout(DrawingModule):
    """`torch.nn.Dropout` without torch's global generator, see `DrawingModule`.

    Args:
        p: the probability of a zero.

    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (self.uniform(x) >= self.p) / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def make_linear(inputs: int, outputs: int, generator: torch.Generator | None = None) -> nn.Linear:
    """`nn.Linear` in float32 with torch's usual first weights, drawn from a generator.

    Args:
        inputs, outputs: the numbers of features.
        generator: of the first weights; None is torch's global one.

    Returns:
        A layer with a bias.

    >>> layer = make_linear(3, 2, torch.Generator().manual_seed(0))
    >>> layer.weight.shape
    torch.Size([2, 3])
    """
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float32)
    bound = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class SoftClip(nn.Module):
    """`soft_clip` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return soft_clip(x)


class MLP(nn.Sequential):
    """Linear layers with GELU and dropout between them, and an optional normalisation of the output.

    Args:
        sizes: the widths from input to output.
        dropout: after every hidden layer.
        clip: whether inputs, standardised, are softly clipped first.
        normalize: whether the output is normalised to mean 0 and variance 1: encoders need a fixed scale of
            their latent space, decoders a free one.
        shape: of one output, if it is not a vector.
        generator: of the first weights; None is torch's global one.

    >>> MLP([2, 8, 12], shape=[3, 4])(torch.zeros(5, 2)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        sizes: list[int],
        *,
        dropout: float = 0.1,
        clip: bool = False,
        normalize: bool = True,
        shape: list[int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        layers: list[nn.Module] = [SoftClip()] if clip else []
        for position, (wide, narrow) in enumerate(pairwise(sizes)):
            layers.append(make_linear(wide, narrow, generator))
            if position < len(sizes) - 2:
                layers += [nn.GELU(), Dropout(dropout)]
        if normalize:
            layers.append(nn.LayerNorm(sizes[-1], elementwise_affine=False))
        if shape is not None:
            layers.append(nn.Unflatten(1, shape))
        super().__init__(*layers)
        self._config = {
            "sizes": sizes,
            "dropout": dropout,
            "clip": clip,
            "normalize": normalize,
            "shape": shape,
        }

    def config(self) -> dict[str, Any]:
        """The arguments of an equal module: `MLP(**config)`."""
        return dict(self._config)


class MLPEnsemble(nn.Module):
    """K independent networks of the same shape, evaluated together by batched matrix products.

    Each member is a linear function plus a multi-layer perceptron. The last layers start at zero: before
    training every member answers 0, the mean of standardised targets.

    Args:
        sizes: the widths from input to output; GELU between them.
        n_members: K.
        generator: of the first weights; None is torch's global one.

    >>> MLPEnsemble([3, 8, 1], n_members=5)(torch.zeros(4, 3)).shape
    torch.Size([4, 5, 1])
    """

    def __init__(self, sizes: list[int], *, n_members: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sizes, self.n_members = list(sizes), n_members
        shapes = list(pairwise(sizes))
        # A gain of 2 keeps the scale of the activations from layer to layer; the last layer starts at zero.
        gains = [2.0] * (len(shapes) - 1) + [0.0]
        self.weights = nn.ParameterList(
            math.sqrt(gain / wide)
            * torch.randn(n_members, wide, narrow, dtype=torch.float32, generator=generator)
            for gain, (wide, narrow) in zip(gains, shapes, strict=True)
        )
        self.linear = nn.Parameter(torch.zeros(n_members, sizes[0], sizes[-1], dtype=torch.float32))
        self.biases = nn.ParameterList(
            torch.zeros(n_members, 1, narrow, dtype=torch.float32) for _, narrow in shapes
        )

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k outputs"]:
        """The answers of all members, with written-out gradients if possible."""
        tensors = (x, self.linear, *self.weights, *self.biases)
        if not only_reverse_mode() or torch.is_autocast_enabled(x.device.type):
            return differentiable_answers(*tensors)
        if torch.is_grad_enabled() and any(map(attrgetter("requires_grad"), tensors)):
            answers: Tensor = _Answers.apply(*tensors)
            return answers
        hidden = x.expand(self.n_members, *x.shape)
        *inner, last = _pairs(tensors[2:])
        for weight, bias in inner:
            hidden = torch.ops.aten.gelu_(torch.baddbmm(bias, hidden, weight))
        return _last_layer(x, self.linear, *last, hidden)

    def answers_of_step(
        self, x: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n k outputs"], tuple[Any, ...]]:
        """The answers without a graph, and what `gradients_of_step` needs of them."""
        answers, sums, hidden = _forward(x, self.linear, *self.weights, *self.biases)
        return answers, (x, sums, hidden)

    def gradients_of_step(
        self, by_answers: Float[Tensor, "n k outputs"], saved: tuple[Any, ...]
    ) -> tuple[Tensor, ...]:
        """The gradients of the parameters, in the order of `parameters()`."""
        x, sums, hidden = saved
        layers = (*self.weights, *self.biases)
        _, gradients = _backward(by_answers, x, self.linear, layers, sums, hidden, by_rows=False)
        return gradients

    def of_members(self, x: Float[Tensor, "k n d"]) -> Float[Tensor, "k n outputs"]:
        """The answers of every member to different rows."""
        hidden = x
        *inner, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for inner_weight, inner_bias in inner:
            hidden = _gelu(torch.baddbmm(inner_bias, hidden, inner_weight))
        # A product whose result has few columns is slow; the transposed one is not.
        return torch.baddbmm(torch.baddbmm(bias.mT, weight.mT, hidden.mT), self.linear.mT, x.mT).mT

    def config(self) -> dict[str, Any]:
        """The arguments of an equal module: `MLPEnsemble(**config)`."""
        return {"sizes": self.sizes, "n_members": self.n_members}


def differentiable_answers(x: Tensor, linear: Tensor, *layers: Tensor) -> Float[Tensor, "n k outputs"]:
    """The answers of all members by differentiable operations.

    Args:
        x: rows.
        linear: of all members, `(k, d, outputs)`.
        layers: the weights of every layer, `(k, wide, narrow)`, then the biases, `(k, 1, narrow)`.
    """
    rows = hidden = x.expand(len(linear), *x.shape)
    *inner, (last, last_bias) = _pairs(layers)
    for weight, bias in inner:
        hidden = _gelu(torch.baddbmm(bias, hidden, weight))
    return torch.baddbmm(torch.baddbmm(last_bias, hidden, last), rows, linear).movedim(0, 1)


class _Answers(torch.autograd.Function):
    """`differentiable_answers` with written-out gradients, in half of the time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Tensor, *layers: Tensor) -> Tensor:
        answers, sums, hidden = _forward(x, linear, *layers)
        ctx.save_for_backward(x, linear, *layers, *sums, *hidden)
        return answers

    @staticmethod
    def backward(ctx: Any, by_answers: Tensor) -> tuple[Tensor | None, ...]:
        needs, (x, linear, *saved) = ctx.needs_input_grad, ctx.saved_tensors
        layers, saved = saved[: len(needs) - 2], saved[len(needs) - 2 :]
        if torch.is_grad_enabled():
            return _differentiable_gradients(needs, by_answers, x, linear, *layers)
        middle = len(saved) // 2
        sums, hidden = saved[:middle], saved[middle:]
        by_x, gradients = _backward(by_answers, x, linear, layers, sums, hidden, by_rows=needs[0])
        return by_x, *gradients


def _forward(x: Tensor, linear: Tensor, *layers: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The answers; the sums of every hidden layer, and the activations."""
    hidden, sums = [x.expand(len(linear), *x.shape)], []
    *inner, last = _pairs(layers)
    for weight, bias in inner:
        sums.append(torch.baddbmm(bias, hidden[-1], weight))
        hidden.append(nn.functional.gelu(sums[-1]))
    return _last_layer(x, linear, *last, hidden[-1]), sums, hidden[1:]


def _backward(
    by_answers: Tensor,
    x: Tensor,
    linear: Tensor,
    layers: Sequence[Tensor],
    sums: Sequence[Tensor],
    activations: Sequence[Tensor],
    *,
    by_rows: bool,
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Gradients by the rows (None unless `by_rows`), and by `linear`, all weights and all biases."""
    hidden = [x.expand(len(linear), *x.shape), *activations]
    weights, outer = layers[: len(layers) // 2], by_answers.permute(1, 2, 0).contiguous()
    by_linear = (outer.flatten(0, 1) @ x).view(linear.mT.shape).mT
    by_weights, by_biases = [torch.bmm(outer, hidden[-1]).mT], [outer.sum(2).unsqueeze(1)]
    # One output needs no product.
    slopes = outer.mT * weights[-1].mT if outer.shape[1] == 1 else torch.bmm(outer.mT, weights[-1].mT)
    for layer in reversed(range(len(sums))):
        slopes = torch.ops.aten.gelu_backward(slopes, sums[layer])
        by_weights.insert(0, torch.bmm(hidden[layer].mT, slopes))
        by_biases.insert(0, slopes.sum(1, keepdim=True))
        if layer or by_rows:
            slopes = torch.bmm(slopes, weights[layer].mT)
    by_x = None
    if by_rows:
        by_x = slopes.sum(0) + outer.flatten(0, 1).mT @ linear.movedim(0, 1).flatten(1).mT
    return by_x, (by_linear, *by_weights, *by_biases)


def _last_layer(
    x: Tensor, linear: Tensor, weight: Tensor, bias: Tensor, hidden: Float[Tensor, "k n wide"]
) -> Float[Tensor, "n k outputs"]:
    # A product whose result has few columns is slow; the transposed one is not. The linear functions of all
    # members are one product.
    answers = torch.baddbmm(bias.mT, weight.mT, hidden.mT)
    answers += (x @ linear.movedim(0, 1).flatten(1)).mT.view_as(answers)
    return answers.permute(2, 0, 1)


def _differentiable_gradients(needs: Sequence[bool], by_answers: Tensor, *tensors: Tensor) -> Any:
    """Gradients that can be differentiated again."""
    inputs = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
    answers = differentiable_answers(*tensors)
    gradients = iter(torch.autograd.grad(answers, inputs, by_answers, create_graph=True))
    return tuple(next(gradients) if need else None for need in needs)


def _pairs(layers: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Weights and bias of every layer."""
    half = len(layers) // 2
    return list(zip(layers[:half], layers[half:], strict=True))


def _gelu(x: Tensor) -> Tensor:
    # ONNX Runtime has no error function in float64.
    return nn.functional.gelu(x.float()).to(x.dtype) if is_exporting() else nn.functional.gelu(x)
