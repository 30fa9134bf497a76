"""Settings of the experiments with images: chosen on validation data, the same for all runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from kdmkit._core.checks import expected

Encoder = Literal["paper", "resnet"]
Model = Literal["dense", "kdm", "ml-kdm"]
ENCODERS: tuple[Encoder, ...] = get_args(Encoder)
MODELS: tuple[Model, ...] = get_args(Model)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a classifier is made and trained.

    Args:
        components: m, the number of the KDM's components.
        latent: e, the dimension of the encoder's output.
        width: channels of the residual network's first layer.
        encoder_epochs: of the encoder with a dense head.
        joint_epochs: of encoder and KDM together; for the baseline, of more training with its dense head.
        likelihood_epochs: of maximum likelihood with the encoder fixed.
        batch_size: images per step.
        learning_rate, joint_rate, likelihood_rate: peaks of the three one-cycle schedules.
        weight_decay: of AdamW, for the encoder and the dense head.
        smoothing: of labels in the first two phases.
        averaging: the memory of the moving average of weights, as a share of a phase's steps.
    """

    components: int
    latent: int
    width: int = 64
    encoder_epochs: int
    joint_epochs: int
    likelihood_epochs: int
    batch_size: int = 256
    learning_rate: float = 2e-3
    joint_rate: float = 5e-4
    likelihood_rate: float = 5e-3
    weight_decay: float = 0.05
    smoothing: float = 0.1
    averaging: float = 0.05

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            free = field.name in ("weight_decay", "smoothing")
            if not (value >= 0 if free else value > 0):
                raise ValueError(expected(field.name, "≥ 0" if free else "> 0", value))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How a decoder is trained and used.

    Args:
        epochs: of the decoder, the encoder fixed; of the conditional VAE beside it.
        batch_size, learning_rate: of both.
        feature_weight: of the distance between the encoder's features of an image and of its reconstruction.
        latent_noise: standard deviation of the noise on latent vectors while training, in units of the KDM's.
        spread: width of the kernel in draws, relative to the fitted one.
        draws: generated images that are judged.
    """

    epochs: int
    batch_size: int = 256
    learning_rate: float = 2e-3
    feature_weight: float = 1.0
    latent_noise: float = 0.5
    spread: float = 1.0
    draws: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            free = field.name in ("feature_weight", "latent_noise")
            if not (value >= 0 if free else value > 0):
                raise ValueError(expected(field.name, "≥ 0" if free else "> 0", value))


_GREY = {"encoder_epochs": 20, "joint_epochs": 10, "likelihood_epochs": 10}
_COLOUR = {"encoder_epochs": 40, "joint_epochs": 15, "likelihood_epochs": 10}
_SMALL = {"encoder_epochs": 6, "joint_epochs": 4, "likelihood_epochs": 4, "batch_size": 64, "width": 8}

#: (m, e) are the paper's; the rest was chosen on a part of the training images held out for it.
RECIPES: dict[tuple[str, Encoder], Recipe] = {
    ("mnist", "paper"): Recipe(components=512, latent=128, **_GREY),
    ("fashion_mnist", "paper"): Recipe(components=256, latent=128, **_GREY),
    ("cifar10", "paper"): Recipe(components=1024, latent=32, **_COLOUR),
    ("digits", "paper"): Recipe(components=40, latent=16, **_SMALL),
    ("mnist", "resnet"): Recipe(components=512, latent=128, **_GREY),
    ("fashion_mnist", "resnet"): Recipe(components=256, latent=128, **_GREY),
    ("cifar10", "resnet"): Recipe(components=1024, latent=32, **_COLOUR),
    ("digits", "resnet"): Recipe(components=40, latent=16, **_SMALL),
}
DRAWINGS: dict[str, Drawing] = {
    "mnist": Drawing(epochs=30),
    "fashion_mnist": Drawing(epochs=30),
    "cifar10": Drawing(epochs=40),
    "digits": Drawing(epochs=8, batch_size=64, draws=200),
}
DATASETS: tuple[str, ...] = tuple(DRAWINGS)

#: The paper's search space of (m, e).
SPACE: dict[str, tuple[int, ...]] = {
    "components": tuple(2**k for k in range(2, 11)),
    "latent": tuple(2**k for k in range(1, 8)),
}


def changed(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with some of its values replaced; whole numbers stay whole."""
    known = {field.name: type(getattr(recipe, field.name)) for field in fields(recipe)}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(expected("vary", f"settings among {', '.join(known)}", ", ".join(unknown)))
    return replace(recipe, **{name: known[name](value) for name, value in values.items()})


def settings(recipe: Recipe | Drawing) -> dict[str, Any]:
    return asdict(recipe)
