"""Generates images of a class: draws latent vectors given the label, decodes them, and judges the images."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kdmlab.common.checks import bad_argument
from kdmlab.common.files import write_arrays
from kdmlab.images.architectures import paper_decoder
from kdmlab.images.data import CLASSES, Pictures, pixels
from kdmlab.images.jobs import Job, Trained
from kdmlab.images.measures import classification, frechet
from kdmlab.images.models import DenseModel, KDMModel, encode, in_parts
from kdmlab.images.phases import (
    Latents,
    kdm_latents,
    seeded,
    train_decoder,
    train_vae,
    vae_latents,
)
from kdmlab.images.recipes import RECIPES, DecoderRecipe, settings
from kdmlab.images.vae import ConditionalVAE

Generator = Literal["judge", "classifier", "ml-kdm", "vae", "ml-kdm-plain", "vae-plain"]
#: The judge and the KDM of a run as a classifier, then what draws. Decoders called plain match pixels alone.
GENERATORS: tuple[Generator, ...] = get_args(Generator)
DRAWING: tuple[Generator, ...] = GENERATORS[2:]
#: Seed of the classifier that judges: a residual network with a dense head, trained with augmented images.
JUDGE_SEED = 0
#: The halves of the training images that models and decoders learn from, and the judge.
MODELS_HALF, JUDGE_HALF = 0, 1
# Images of each class in a figure; classes to mix; a smaller spread; neighbours to show.
SHOWN, MIXED, NARROW, NEIGHBOURS = 10, (3, 8), 0.3, 3


@dataclass(frozen=True)
class GenerationJob:
    """Generation from one run.

    Args:
        run: the run whose ML-KDM draws; its seed and place also serve the others. Its models learn from one
            half of the training images, whatever its `half`.
        decoder: how decoders are trained and used.
        samples: where the images of the figures go; None for no figures.
    """

    run: Job
    decoder: DecoderRecipe
    samples: Path | None

    def key(self, generator: Generator) -> dict[str, Any]:
        drawing = settings(self.drawing(generator)) if generator in DRAWING else {}
        return {
            "dataset": self.run.dataset,
            "generator": generator,
            "seed": JUDGE_SEED if generator == "judge" else self.run.seed,
            "half": JUDGE_HALF if generator == "judge" else MODELS_HALF,
            "settings": settings(self._judge_job().recipe if generator == "judge" else self.run.recipe),
            "drawing": drawing,
        }

    def drawing(self, generator: Generator) -> DecoderRecipe:
        """How the decoder of a generator is trained."""
        return replace(self.decoder, feature_weight=0.0) if generator.endswith("-plain") else self.decoder

    def trained(self) -> Trained:
        """The models of this run."""
        return Trained(replace(self.run, half=MODELS_HALF))

    def _judge_job(self) -> Job:
        recipe = RECIPES[self.run.dataset, "resnet"]
        return replace(self.run, encoder="resnet", seed=JUDGE_SEED, recipe=recipe, half=JUDGE_HALF)

    def judge(self) -> DenseModel:
        return Trained(self._judge_job()).encoder()


class KDMGenerator:
    """Generates images from a KDM: label → latent vector → image.

    Args:
        model: encoder and joint KDM.
        decoder: trained for that encoder.
    """

    def __init__(self, model: KDMModel, decoder: nn.Sequential) -> None:
        self.model, self.decoder = model.eval(), decoder.eval()

    def sample(
        self,
        n: int,
        *,
        y: SupportsIndex | Float[Tensor, " k"],
        spread: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n c s s"]:
        """Images of a class, or of a mixture of classes with the given probabilities.

        Args:
            n: how many.
            y: a label, or a distribution over labels.
            spread: width of the kernel relative to the fitted one: less is closer to the components.
            generator: source of randomness.
        """
        probs = _label_probs(y).to(self.model.layer.logits)
        z = self.model.latents(n, probs, spread=spread, generator=generator)
        return in_parts(self.decoder, z)


class VAEGenerator:
    """Generates images from a conditional VAE: latent vector from the prior, and the label → image.

    Args:
        latent: the dimension of z.
        decoder: of latent vector and label.
    """

    def __init__(self, latent: int, decoder: nn.Sequential) -> None:
        self.latent, self.decoder = latent, decoder.eval()

    def sample(
        self, n: int, *, y: int, spread: float = 1.0, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c s s"]:
        """Images of a class, with z from N(0, spread²·I)."""
        device = next(self.decoder.parameters()).device
        noise = torch.randn(n, self.latent, generator=generator, device=device)
        label = torch.eye(CLASSES, device=device)[y].expand(n, -1)
        return in_parts(self.decoder, torch.cat([spread * noise, label], 1))


def _label_probs(y: SupportsIndex | Tensor) -> Float[Tensor, " k"]:
    """Probabilities of all labels, from a label or from probabilities."""
    if isinstance(y, Tensor) and y.shape == (CLASSES,):
        return y
    try:
        label = -1 if isinstance(y, bool) else operator.index(y)
    except (TypeError, ValueError):
        label = -1
    if not 0 <= label < CLASSES:
        wanted = f"a label 0 … {CLASSES - 1}, or a tensor of {CLASSES} probabilities"
        raise ValueError(bad_argument("y", wanted, y))
    return torch.eye(CLASSES)[label]


def generate(job: GenerationJob, generator: Generator) -> dict[str, Any]:
    """Trains what is missing, generates equally many images of every class, and judges them."""
    trained = job.trained()
    data, part = trained.data, "validation" if job.run.held_out else "test"
    if generator not in DRAWING:
        model = job.judge() if generator == "judge" else trained.likelihood()
        accuracy = classification(model, data.x_test, data.y_test)["accuracy"]
        return {f"{part}_accuracy": accuracy, "phase_seconds": trained.store.seconds}
    judge = job.judge()
    recipe = job.drawing(generator)
    make = kdm_generator if generator.startswith("ml-kdm") else vae_generator
    made = make(trained, recipe)
    each = max(1, recipe.draws // CLASSES)
    labels = torch.arange(CLASSES).repeat_interleave(each)
    draw = partial(made.sample, each, spread=recipe.spread)
    source = torch.Generator(data.x_train.device).manual_seed(0)
    images = torch.cat([draw(y=label, generator=source) for label in range(CLASSES)])
    if job.samples is not None and not generator.endswith("-plain"):
        extra = _shown(made, images, labels, data, job) if isinstance(made, KDMGenerator) else {}
        _keep(job.samples, f"{job.run.dataset}-{generator}", {"grid": _grid(images, labels), **extra})
    result = judged(judge, images, labels, data.x_test)
    return {**result, "train_images": len(data.y_train), "phase_seconds": trained.store.seconds}


def kdm_generator(trained: Trained, recipe: DecoderRecipe) -> KDMGenerator:
    """The KDM of a run with its decoder, which is trained where it is missing."""
    model = trained.likelihood()
    latents = partial(kdm_latents, model, trained.data, recipe.latent_noise)
    return KDMGenerator(model, _decoder(trained, recipe, "decoder", trained.job.recipe.latent, latents))


def vae_generator(trained: Trained, recipe: DecoderRecipe) -> VAEGenerator:
    """The conditional VAE of a run, with a decoder that is trained as the KDM's is."""
    data, latent = trained.data, trained.job.recipe.latent
    with seeded(trained.job.seed):
        vae = ConditionalVAE(data.shape, latent).to(data.x_train.device)
    depends = {**settings(trained.job.recipe), "rate": recipe.learning_rate, "size": recipe.batch_size}
    vae = trained.cached("vae", depends, vae, lambda vae: train_vae(vae, data, trained.setting, recipe))
    latents = partial(vae_latents, vae, data)
    return VAEGenerator(latent, _decoder(trained, recipe, "vae-decoder", latent + CLASSES, latents))


def _decoder(
    trained: Trained,
    recipe: DecoderRecipe,
    phase: str,
    size: int,
    latents: Callable[[], Latents],
) -> nn.Sequential:
    """A decoder of vectors of some size; both kinds match features of the KDM's encoder."""

    def train(decoder: nn.Sequential) -> None:
        encoder = trained.likelihood().encoder
        train_decoder(decoder, latents(), encoder, trained.data, trained.setting, recipe)

    with seeded(trained.job.seed):
        decoder = paper_decoder(trained.data.shape, size).to(trained.data.x_train.device)
    depends = {**settings(trained.job.recipe), **settings(replace(recipe, spread=1.0, draws=1))}
    return trained.cached(phase, depends, decoder, train)


# ---- judging


def judged(
    judge: DenseModel,
    images: Float[Tensor, "n c s s"],
    labels: Int64[Tensor, " n"],
    real: UInt8[Tensor, "k c s s"],
) -> dict[str, Any]:
    """The share of images that the judge recognises, and their Fréchet distance from real ones."""
    chosen = in_parts(judge, images).argmax(1).cpu()
    right = (chosen == labels).double()
    by_class = [float(right[labels == label].mean()) for label in range(CLASSES)]
    distance = frechet(encode(judge.encoder, images), encode(judge.encoder, real))
    return {"recognised": float(right.mean()), "recognised_by_class": by_class, "frechet": distance}


# ---- for the figures


def _shown(
    made: KDMGenerator, images: Tensor, labels: Tensor, data: Pictures, job: GenerationJob
) -> dict[str, UInt8[Tensor, "..."]]:
    """Mixed classes, a smaller spread, and the training images nearest to the first image of each class."""
    half = torch.zeros(CLASSES)
    half[list(MIXED)] = 1 / len(MIXED)
    device = made.model.layer.logits.device
    draw_some = partial(made.sample, SHOWN, generator=torch.Generator(device).manual_seed(1))
    first = torch.stack([images[labels == label][0] for label in range(CLASSES)])
    spreads = [draw_some(y=label, spread=NARROW * job.decoder.spread) for label in range(CLASSES)]
    return {
        "mixed": as_bytes(draw_some(y=half, spread=job.decoder.spread)),
        "narrow": as_bytes(torch.cat(spreads)),
        "first": as_bytes(first),
        "neighbours": nearest(first, data.x_train, NEIGHBOURS).flatten(0, 1),
    }


def nearest(
    images: Float[Tensor, "n c s s"], training: UInt8[Tensor, "k c s s"], count: int
) -> UInt8[Tensor, "n count c s s"]:
    """For every image, the training images with the smallest Euclidean distances between pixels."""
    wanted = images.flatten(1).float()
    parts = [torch.cdist(wanted, pixels(part).flatten(1)) for part in training.split(10_000)]
    return training[torch.cat(parts, 1).topk(count, largest=False).indices]


def _grid(images: Tensor, labels: Tensor) -> UInt8[Tensor, "n c s s"]:
    return as_bytes(torch.cat([images[labels == label][:SHOWN] for label in range(CLASSES)]))


def as_bytes(images: Tensor) -> UInt8[Tensor, "n c s s"]:
    return (255 * images.float()).round().clamp(0, 255).byte()


def _keep(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    write_arrays(folder / f"{name}.npz", {key: value.cpu().numpy() for key, value in arrays.items()})
