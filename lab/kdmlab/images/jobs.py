"""One run of one data set: what is trained from what, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from kdmkit.training import Device
from kdmlab.images.architectures import Shape
from kdmlab.images.augment import AUGMENTS
from kdmlab.images.data import Pictures, novel_images, pictures
from kdmlab.images.measures import classification, novelty
from kdmlab.images.models import (
    DenseModel,
    KDMModel,
    count_parameters,
    in_parts,
    make_encoder,
    make_head,
    make_layer,
    make_layout,
)
from kdmlab.images.phases import (
    Setting,
    seeded,
    train_dense,
    train_encoder,
    train_kdm,
    train_likelihood,
)
from kdmlab.images.recipes import (
    ALONE,
    Encoder,
    Model,
    Recipe,
    recipe_of,
    settings,
    settings_of_phase,
)
from kdmlab.images.store import M, Store


@dataclass(frozen=True)
class Place:
    """Folders of data and weights, and the device."""

    data_dir: Path
    work_dir: Path
    device: Device


@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        dataset: its name.
        encoder: the paper's, or the residual network, which is trained with augmented images.
        seed: of the first weights, the order of images and the first components.
        recipe: its settings.
        held_out: whether a part of the training images stands in for the test images.
        place: where it runs.
        half: 0 or 1 to train on one of two disjoint halves of the training images; None for all.
    """

    dataset: str
    encoder: Encoder
    seed: int
    recipe: Recipe
    held_out: bool
    place: Place
    half: int | None = None

    @property
    def augmented(self) -> bool:
        return self.encoder == "resnet"

    def key(self, model: Model) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "model": model,
            "encoder": self.encoder,
            "augmented": self.augmented,
            "seed": self.seed,
            "settings": settings(recipe_of(model, self.recipe)),
        }

    @property
    def folder(self) -> Path:
        """The folder of its weights."""
        words = [self.dataset, self.encoder, str(self.seed)]
        words += ["validation"] if self.held_out else []
        words += [] if self.half is None else [f"half{self.half}"]
        return self.place.work_dir / "-".join(words)

    def data(self) -> Pictures:
        return _pictures(self.dataset, self.place.data_dir, self.held_out, self.half, self.place.device)


# Every process keeps its data sets on the device: a gigabyte for all three and their halves.
@lru_cache(maxsize=9)
def _pictures(name: str, data_dir: Path, held_out: bool, half: int | None, device: Device) -> Pictures:
    return pictures(name, data_dir, held_out=held_out, half=half).to(torch.device(device))


@lru_cache(maxsize=4)
def _novel(name: str, data_dir: Path, shape: Shape, held_out: bool) -> dict[str, UInt8[Tensor, "n c s s"]]:
    return novel_images(name, data_dir, shape, held_out=held_out)


class Trained:
    """The models of a run, each trained from the one before when it is first asked for."""

    def __init__(self, job: Job) -> None:
        self.job, self.data = job, job.data()
        augment = AUGMENTS[job.dataset] if job.augmented else None
        self.setting = Setting(job.recipe, job.seed, job.place.device, augment)
        self.store = Store(job.folder)

    def model(self, name: str) -> DenseModel | KDMModel:
        if name == "dense":
            return self.dense()
        return self.kdm() if name == "kdm" else self.likelihood()

    def encoder(self) -> DenseModel:
        """Encoder and dense head after the first phase."""
        return self._phase(
            "encoder", self._new_dense(), lambda model: train_encoder(model, self.data, self.setting)
        )

    def dense(self) -> DenseModel:
        def train(model: DenseModel) -> None:
            model.load_state_dict(self.encoder().state_dict())
            train_dense(model, self.data, self.setting)

        return self._phase("dense", self._new_dense(), train)

    def kdm(self) -> KDMModel:
        def train(model: KDMModel) -> None:
            start = self.encoder()
            model.encoder.load_state_dict(start.encoder.state_dict())
            train_kdm(model, start, self.data, self.setting)

        return self._phase("kdm", self._new_kdm(), train)

    def likelihood(self) -> KDMModel:
        def train(model: KDMModel) -> None:
            model.load_state_dict(self.kdm().state_dict())
            train_likelihood(model, self.data, self.setting)

        return self._phase("ml-kdm", self._new_kdm(), train)

    def cached(self, phase: str, depends: Mapping[str, Any], module: M, train: Callable[[M], None]) -> M:
        """The module with the weights of a phase, trained with this precision."""
        return self.store.cached(phase, {"precision": self.setting.precision, **depends}, module, train)

    def _phase(self, phase: str, module: M, train: Callable[[M], None]) -> M:
        return self.cached(phase, settings_of_phase(self.job.recipe, phase), module, train)

    def new_encoder(self) -> nn.Sequential:
        return make_encoder(self.job.encoder, self.data.shape, self.job.recipe)

    def _new_dense(self) -> DenseModel:
        job = self.job
        with seeded(job.seed):
            encoder = self.new_encoder()
            head, layout = make_head(job.recipe), make_layout(self.data.shape, job.recipe)
            model = DenseModel(encoder, head, layout)
        return self._placed(model)

    def _new_kdm(self) -> KDMModel:
        job = self.job
        with seeded(job.seed):
            model = KDMModel(self.new_encoder(), make_layer(job.recipe))
        return self._placed(model)

    def _placed(self, model: Any) -> Any:
        device = self.data.x_train.device
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        return model.to(device=device, memory_format=layout)


def measure(job: Job, model: Model) -> dict[str, Any]:
    """Trains the phases that are missing, then scores the test images (or those held out) once."""
    trained = Trained(replace(job, recipe=recipe_of(model, job.recipe)))
    classifier = trained.model(ALONE.get(model, model))
    data, part = trained.data, "validation" if job.held_out else "test"
    scores = classification(classifier, data.x_test, data.y_test)
    result: dict[str, Any] = {f"{part}_{name}": value for name, value in scores.items()}
    if isinstance(classifier, KDMModel):
        others = _novel(job.dataset, job.place.data_dir, data.shape, job.held_out)
        result["novelty_auroc"] = novelty(classifier, data.x_test, others)
        result[f"{part}_log_density"] = float(in_parts(classifier.log_density, data.x_test).mean())
    head = classifier.layer if isinstance(classifier, KDMModel) else classifier.head
    return {
        **result,
        "head_parameters": count_parameters(head),
        "encoder_parameters": count_parameters(classifier.encoder),
        "train_images": len(data.y_train),
        "device": data.x_train.device.type,
        "precision": trained.setting.precision,
        "phase_seconds": trained.store.seconds,
    }


def held_out(job: Job, recipe: Recipe) -> Job:
    """The run that judges a recipe without the test images."""
    return replace(job, recipe=recipe, held_out=True)
