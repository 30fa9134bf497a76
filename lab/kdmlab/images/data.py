"""Images as tensors: for training, for tests, and from other sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn import functional

from kdmlab.datasets import Dataset, Name, load
from kdmlab.images.architectures import Shape

CLASSES = 10
#: The share of the training images that is held out to choose settings.
HELD_OUT = 0.1
#: For each set, the sets that the model should find novel.
NOVEL = {
    "mnist": ("fashion_mnist",),
    "fashion_mnist": ("mnist",),
    "cifar10": ("noise", "mnist", "fashion_mnist"),
    "digits": ("noise",),
}


@dataclass(frozen=True)
class Pictures:
    """Training images and test images: the official ones, or a held-out part of the training images."""

    name: str
    x_train: UInt8[Tensor, "n c s s"]
    y_train: Int64[Tensor, " n"]
    x_test: UInt8[Tensor, "k c s s"]
    y_test: Int64[Tensor, " k"]

    @property
    def shape(self) -> Shape:
        return Shape(self.x_train.shape[1], self.x_train.shape[2])

    def to(self, device: torch.device) -> Pictures:
        tensors = (self.x_train, self.y_train, self.x_test, self.y_test)
        return Pictures(self.name, *(tensor.to(device) for tensor in tensors))


def pictures(name: str, data_dir: Path | str, *, held_out: bool, half: int | None = None) -> Pictures:
    """A data set's images; with `held_out` the official test images are not used at all.

    `half` is 0 or 1 for one of two disjoint halves of the images to train on.
    """
    images = _pictures(load(cast(Name, name), data_dir), name, held_out)
    if half is None:
        return images
    return replace(images, x_train=images.x_train[half::2], y_train=images.y_train[half::2])


def _pictures(dataset: Dataset, name: str, held_out: bool) -> Pictures:
    x, y = _channels_first(dataset.x_train), torch.from_numpy(dataset.y_train)
    if not held_out:
        return Pictures(name, x, y, _channels_first(dataset.x_test), torch.from_numpy(dataset.y_test))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    cut = round(HELD_OUT * len(y))
    return Pictures(name, x[order[cut:]], y[order[cut:]], x[order[:cut]], y[order[:cut]])


def check_data(names: Sequence[str], data_dir: Path | str, say: Callable[[str], None]) -> None:
    """Reads every data set, and the sets novel to it, so that missing or broken files are found now."""
    for name in names:
        load(cast(Name, name), data_dir, say=say)
    others = {other: name for name in names for other in NOVEL[name] if other not in (*names, "noise")}
    for other, name in others.items():
        try:
            load(cast(Name, other), data_dir, download=False)
        except FileNotFoundError as error:
            say(f"{name}: no novelty against {other} ({error})")


def novel_images(
    name: str, data_dir: Path | str, shape: Shape, *, held_out: bool, padded: bool = False
) -> dict[str, UInt8[Tensor, "n c s s"]]:
    """Images of other sets, in the shape of this one; sets that are not at hand are left out.

    With `padded`, smaller images get a black border; otherwise they are enlarged.
    """
    images = {}
    for other in NOVEL[name]:
        with suppress(FileNotFoundError):
            images[other] = _fitted(_other(other, data_dir, held_out, shape), shape, padded)
    return images


def _other(name: str, data_dir: Path | str, held_out: bool, shape: Shape) -> UInt8[Tensor, "n c s s"]:
    if name == "noise":
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, (2000, *_sides(shape)), generator=generator).byte()
    dataset = load(cast(Name, name), data_dir, download=False)
    return _channels_first(dataset.x_train[:10_000] if held_out else dataset.x_test)


def _sides(shape: Shape) -> tuple[int, int, int]:
    return shape.channels, shape.size, shape.size


def _fitted(x: UInt8[Tensor, "n c s s"], shape: Shape, padded: bool = False) -> UInt8[Tensor, "n k t t"]:
    missing = shape.size - x.shape[-1]
    if padded and missing > 0:
        x = functional.pad(x, [missing // 2, missing - missing // 2] * 2)
    elif x.shape[-1] != shape.size:
        x = functional.interpolate(x.float(), size=(shape.size, shape.size), mode="bilinear").round().byte()
    return x.expand(-1, shape.channels, -1, -1)


def _channels_first(x: Any) -> UInt8[Tensor, "n c s s"]:
    x = x[..., None] if x.ndim == 3 else x
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def pixels(x: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]; numbers as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x
