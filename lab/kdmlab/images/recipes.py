"""Settings of the experiments with images: chosen on validation data, the same for all runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from kdmlab.common.checks import bad_argument

Encoder = Literal["paper", "resnet"]
Kind = Literal["dense", "kdm", "ml-kdm"]
Model = Literal["dense", "kdm", "ml-kdm", "dense-alone", "kdm-alone", "ml-kdm-alone"]
ENCODERS: tuple[Encoder, ...] = get_args(Encoder)
MODELS: tuple[Model, ...] = get_args(Model)
#: Rows of the paper's own algorithms, with its encoders: no dense head teaches the KDM, and nothing but
#: labels shapes the encoder.
ALONE: dict[Model, Kind] = {"dense-alone": "dense", "kdm-alone": "kdm", "ml-kdm-alone": "ml-kdm"}


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
        head_weight: of the dense head's cross-entropy, while encoder and KDM are trained together.
        teaching: the share of the dense head's probabilities in the KDM's targets in that phase.
        head_epochs, head_rate: of the KDM alone on encoded images, before and after that phase.
        layout_weight: of the error of a linear map from the latent vector to the shrunken image, while the
            encoder is trained. A decoder can only draw what the encoder has kept.
        averaging: how far the moving average of weights reaches back, as a share of a phase's steps.
        dense_components: the dense head has as many parameters as a KDM with this number of components; 0 is
            `components`.
        sigma_start: the KDM's first bandwidth, in units of the distance between neighbouring components.
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
    likelihood_rate: float = 2e-2
    weight_decay: float = 0.05
    smoothing: float = 0.1
    head_weight: float = 1.0
    teaching: float = 0.7
    head_epochs: int = 8
    head_rate: float = 1e-2
    layout_weight: float = 0.0
    averaging: float = 0.1
    dense_components: int = 0
    sigma_start: float = 1.0

    def __post_init__(self) -> None:
        zero = ("weight_decay", "smoothing", "head_weight", "teaching", "head_epochs", "layout_weight")
        _check(self, may_be_zero=(*zero, "dense_components"))

    @property
    def has_teacher(self) -> bool:
        """Whether a dense head is trained beside the KDM."""
        return bool(self.head_weight or self.teaching)


@dataclass(frozen=True, kw_only=True)
class DecoderRecipe:
    """How decoders are trained and used to generate images. Lines of results call it `drawing`.

    Args:
        epochs: of a decoder, its latent vectors fixed.
        batch_size, learning_rate: of decoders, and of the conditional VAE.
        feature_weight: of the distance between the encoder's features of an image and of its reconstruction.
        latent_noise: standard deviation of the noise on the KDM's latent vectors while training, in units of
            the kernel's. Those of a conditional VAE have its posterior's.
        spread: width of the KDM's kernel in draws, relative to the fitted one.
        draws: generated images that are judged.
    """

    epochs: int
    batch_size: int = 256
    learning_rate: float = 1e-3
    feature_weight: float = 1.0
    latent_noise: float = 0.5
    spread: float = 1.0
    draws: int = 10_000

    def __post_init__(self) -> None:
        _check(self, may_be_zero=("feature_weight", "latent_noise"))


# Settings that lines have only where they differ from these values.
_OPTIONAL = {"dense_components": 0, "sigma_start": 1.0}
# Settings that are parts of a whole.
_SHARES = ("smoothing", "teaching", "averaging")


def _check(recipe: Recipe | DecoderRecipe, may_be_zero: tuple[str, ...]) -> None:
    for name, value in asdict(recipe).items():
        zero = name in may_be_zero
        if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
            raise ValueError(bad_argument(name, "≥ 0" if zero else "> 0", value))
        if name in _SHARES and value > 1:
            raise ValueError(bad_argument(name, "a share, at most 1", value))


#: (m, e) are the paper's. Other settings of the paper's encoders were chosen on held-out training images
#: (`results/table1-search.md`); those of residual networks were not compared with others.
RECIPES: dict[tuple[str, Encoder], Recipe] = {
    ("mnist", "paper"): Recipe(
        components=512,
        latent=128,
        encoder_epochs=18,
        joint_epochs=8,
        likelihood_epochs=10,
        weight_decay=0.15,
        layout_weight=0.03,
    ),
    ("fashion_mnist", "paper"): Recipe(
        components=256,
        latent=128,
        encoder_epochs=18,
        joint_epochs=8,
        likelihood_epochs=10,
        weight_decay=0.15,
        layout_weight=0.3,
    ),
    ("cifar10", "paper"): Recipe(
        components=1024,
        latent=32,
        encoder_epochs=36,
        joint_epochs=10,
        likelihood_epochs=10,
        weight_decay=0.5,
        layout_weight=0.3,
    ),
    ("digits", "paper"): Recipe(
        components=40,
        latent=16,
        encoder_epochs=6,
        joint_epochs=4,
        likelihood_epochs=4,
        batch_size=64,
    ),
    ("mnist", "resnet"): Recipe(
        components=512,
        latent=128,
        width=48,
        encoder_epochs=24,
        joint_epochs=8,
        likelihood_epochs=10,
        weight_decay=0.2,
    ),
    ("fashion_mnist", "resnet"): Recipe(
        components=256,
        latent=128,
        width=32,
        encoder_epochs=14,
        joint_epochs=4,
        likelihood_epochs=10,
        weight_decay=0.2,
    ),
    ("cifar10", "resnet"): Recipe(
        components=1024,
        latent=32,
        width=64,
        encoder_epochs=26,
        joint_epochs=8,
        likelihood_epochs=10,
        weight_decay=0.2,
    ),
    ("digits", "resnet"): Recipe(
        components=40,
        latent=16,
        width=8,
        encoder_epochs=6,
        joint_epochs=4,
        likelihood_epochs=4,
        batch_size=64,
    ),
}
#: What rows of `ALONE` have of their own, by data set: Enc+Dense (True), and the KDM before and after
#: Algorithm 2 (False). Chosen on held-out training images.
OWN: dict[tuple[str, bool], dict[str, Any]] = {
    ("mnist", True): {"latent": 32, "encoder_epochs": 8, "joint_epochs": 18, "joint_rate": 2e-3},
    ("mnist", False): {"encoder_epochs": 3, "joint_epochs": 23, "joint_rate": 2e-3, "head_epochs": 0},
    ("fashion_mnist", True): {"encoder_epochs": 8, "joint_epochs": 18, "joint_rate": 2e-3},
    ("fashion_mnist", False): {"encoder_epochs": 8, "joint_epochs": 18, "joint_rate": 2e-3, "head_epochs": 0},
    ("cifar10", True): {"latent": 16, "encoder_epochs": 16, "joint_epochs": 30, "joint_rate": 2e-3},
    ("cifar10", False): {"encoder_epochs": 16, "joint_epochs": 30, "joint_rate": 2e-3, "head_epochs": 0},
}
DECODER_RECIPES: dict[str, DecoderRecipe] = {
    "mnist": DecoderRecipe(epochs=12),
    "fashion_mnist": DecoderRecipe(epochs=12),
    "cifar10": DecoderRecipe(epochs=20),
    "digits": DecoderRecipe(epochs=8, batch_size=64, draws=200),
}
DATASETS: tuple[str, ...] = tuple(DECODER_RECIPES)

R = TypeVar("R", Recipe, DecoderRecipe)

#: The paper's search space of (m, e).
SPACE: dict[str, tuple[int, ...]] = {
    "components": tuple(2**k for k in range(2, 11)),
    "latent": tuple(2**k for k in range(1, 8)),
}


def changed(recipe: R, values: Mapping[str, Any]) -> R:
    """The recipe with some of its values replaced; whole numbers stay whole."""
    names = [field.name for field in fields(recipe)]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(bad_argument("vary", f"settings among {', '.join(names)}", ", ".join(unknown)))
    return replace(recipe, **{name: _alike(recipe, name, value) for name, value in values.items()})


def _alike(recipe: Recipe | DecoderRecipe, name: str, value: float) -> Any:
    if isinstance(getattr(recipe, name), float):
        return float(value)
    if not float(value).is_integer():
        raise ValueError(bad_argument(name, "a whole number", value))
    return int(value)


def recipe_of(model: Model, recipe: Recipe) -> Recipe:
    """The recipe of a row. Rows of `ALONE` have no distillation, no dense head beside the KDM, no layout."""
    return replace(recipe, head_weight=0.0, teaching=0.0, layout_weight=0.0) if model in ALONE else recipe


def recipe_for(dataset: str, encoder: Encoder, model: Model) -> Recipe:
    """The recipe that a row of the table is trained by."""
    recipe = RECIPES[dataset, encoder]
    if model in ALONE:
        recipe = changed(recipe, OWN.get((dataset, ALONE[model] == "dense"), {}))
    return recipe_of(model, recipe)


def settings_of_phase(recipe: Recipe, phase: str) -> dict[str, Any]:
    """The settings that the weights after a phase depend on."""
    if phase in ("encoder", "dense"):
        recipe = replace(recipe, components=recipe.dense_components or recipe.components, dense_components=0)
    with_kdm = ("head_", "teaching", "sigma_")
    skipped: tuple[str, ...] = {
        "encoder": ("joint_", *with_kdm, "likelihood_"),
        "dense": (*with_kdm, "likelihood_"),
        "kdm": ("likelihood_",),
    }.get(phase, ())
    return {name: value for name, value in settings(recipe).items() if not name.startswith(skipped)}


def settings(recipe: Recipe | DecoderRecipe) -> dict[str, Any]:
    """The settings of a line: all, less those of `_OPTIONAL` at these values."""
    return {name: value for name, value in asdict(recipe).items() if _OPTIONAL.get(name) != value}
