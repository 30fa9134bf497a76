"""Generates images of a class: draws latent vectors given the label, decodes them, and judges the images."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit._core.files import write_arrays
from kdmkit.experiments.images.data import CLASSES, Pictures, pixels
from kdmkit.experiments.images.jobs import Job, Trained
from kdmkit.experiments.images.measures import classification, frechet
from kdmkit.experiments.images.models import DenseModel, KDMModel, encode, in_parts, make_decoder
from kdmkit.experiments.images.phases import seeded, train_decoder, train_vae
from kdmkit.experiments.images.recipes import RECIPES, DecoderRecipe, settings
from kdmkit.experiments.images.vae import ConditionalVAE

Generator = Literal["judge", "ml-kdm", "vae"]
GENERATORS: tuple[Generator, ...] = ("judge", "ml-kdm", "vae")
#: Seed of the classifier that judges: a residual network with a dense head, trained with augmented images. It
#: shares nothing with the models that generate.
JUDGE_SEED = 0
# Images of each class in a figure; classes to mix; a smaller spread; neighbours to show.
SHOWN, MIXED, NARROW, NEIGHBOURS = 10, (3, 8), 0.3, 3


@dataclass(frozen=True)
class GenerationJob:
    """Generation from one run.

    Args:
        run: the run whose ML-KDM draws; its seed and place also serve the others.
        decoder: how its decoder is trained and used.
        samples: where the images of the figures go; None for no figures.
    """

    run: Job
    decoder: DecoderRecipe
    samples: Path | None

    def key(self, generator: Generator) -> dict[str, Any]:
        return {
            "dataset": self.run.dataset,
            "generator": generator,
            "seed": JUDGE_SEED if generator == "judge" else self.run.seed,
            "settings": settings(self._judge_job().recipe if generator == "judge" else self.run.recipe),
            "drawing": {} if generator == "judge" else settings(self.decoder),
        }

    def _judge_job(self) -> Job:
        recipe = RECIPES[self.run.dataset, "resnet"]
        return replace(self.run, encoder="resnet", seed=JUDGE_SEED, recipe=recipe)

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
    judge, data = job.judge(), job.run.data()
    part = "validation" if job.run.held_out else "test"
    if generator == "judge":
        return {f"{part}_accuracy": classification(judge, data.x_test, data.y_test)["accuracy"]}
    trained = Trained(job.run)
    labels = torch.arange(CLASSES).repeat_interleave(max(1, job.decoder.draws // CLASSES))
    if generator == "vae":
        images = _sample_vae(trained, job.decoder, labels)
        extra: dict[str, Any] = {}
    else:
        made = kdm_generator(trained, job.decoder)
        images = _sample_kdm(made, job.decoder.spread, labels)
        extra = _shown(made, images, labels, data, job)
    if job.samples is not None:
        _keep(job.samples, f"{job.run.dataset}-{generator}", {"grid": _grid(images, labels), **extra})
    return {**judged(judge, images, labels, data.x_test), "phase_seconds": trained.store.seconds}


def kdm_generator(trained: Trained, recipe: DecoderRecipe) -> KDMGenerator:
    """The generator of a run, its decoder trained where that is missing."""
    model = trained.likelihood()

    def train(decoder: nn.Sequential) -> None:
        seeds = range(trained.job.seed + 1, trained.job.seed + 1 + recipe.critics)
        critics = [Trained(replace(trained.job, seed=seed)).dense() for seed in seeds]
        train_decoder(model, decoder, critics, trained.data, trained.setting, recipe)

    with seeded(trained.job.seed):
        decoder = make_decoder(trained.data.shape, trained.job.recipe).to(trained.data.x_train.device)
    return KDMGenerator(model, trained.cached("decoder", _decoder_settings(trained, recipe), decoder, train))


def _decoder_settings(trained: Trained, recipe: DecoderRecipe) -> dict[str, Any]:
    """The settings that the weights of a decoder depend on."""
    return {**settings(trained.job.recipe), **settings(replace(recipe, spread=1.0, draws=1))}


def _sample_kdm(made: KDMGenerator, spread: float, labels: Tensor) -> Float[Tensor, "n c s s"]:
    device = made.model.layer.logits.device
    source = torch.Generator(device).manual_seed(0)
    counts = torch.bincount(labels, minlength=CLASSES).tolist()
    parts = [made.sample(n, y=y, spread=spread, generator=source) for y, n in enumerate(counts) if n]
    return torch.cat(parts)


def _sample_vae(trained: Trained, recipe: DecoderRecipe, labels: Tensor) -> Float[Tensor, "n c s s"]:
    data, device = trained.data, trained.data.x_train.device
    with seeded(trained.job.seed):
        vae = ConditionalVAE(data.shape, trained.job.recipe.latent).to(device)
    setting = trained.setting
    depends = _decoder_settings(trained, recipe)
    vae = trained.cached("vae", depends, vae, lambda vae: train_vae(vae, data, setting, recipe))
    noise = torch.randn(len(labels), vae.latent, generator=torch.Generator().manual_seed(0)).to(device)
    both = torch.cat([noise, labels.unsqueeze(1).to(noise)], 1)
    return in_parts(lambda part: vae.decode(part[:, :-1], part[:, -1].long()), both)


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
