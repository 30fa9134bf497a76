"""Scores of novelty: the density of a KDM, and rivals on the same vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional

from kdmkit import KDM, RBF
from kdmkit.nn import Scaler
from kdmlab.images.data import pixels
from kdmlab.images.models import DenseModel, KDMModel, in_parts

# The neighbour whose distance is a score.
_NEIGHBOUR = 10
# Training images that are components of the density and candidates for neighbours.
_MEMORY = 50_000
# Validation images whose likelihood chooses the bandwidth, and the ends of the search for its logarithm.
_JUDGED, _RANGE = 2000, (-4.0, 1.5)

Score = Callable[[Tensor], Tensor]


# ---- vectors


class Vectors(NamedTuple):
    """Vectors of images, made of parts.

    Args:
        values: the parts side by side; the last one is the latent vector.
        sizes: of the parts.
    """

    values: Float[Tensor, "n d"]
    sizes: Sequence[int]

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """The factor of every column: the latent vector counts as much as all other parts together.

        The squares have the mean 1.
        """
        size, others = sum(self.sizes), len(self.sizes) - 1
        shares = [1 / (2 * others)] * others + [0.5] if others else [1.0]
        parts = [
            torch.full((n,), (share * size / n) ** 0.5) for n, share in zip(self.sizes, shares, strict=True)
        ]
        return torch.cat(parts).to(self.values)


def vectors(encoder: nn.Sequential, x: UInt8[Tensor, "n c s s"]) -> dict[str, Vectors]:
    """The vectors that are scored: the latent vector; with "all layers" also those before it.

    A classifier's latent vector forgets most of what tells a foreign image. A layer with positions is
    represented by the mean and the standard deviation of every channel over positions. Like the latent
    vector, these moments are normalised: their length is the contrast of an image, and faint images would be
    at the centre of all others.
    """
    encoder.eval()
    sizes = [part.shape[1] for part in _parts(encoder, x[:1])]
    both = in_parts(lambda some: torch.cat(_parts(encoder, some), 1), x)
    return {"latent": Vectors(both[:, -sizes[-1] :], sizes[-1:]), "all layers": Vectors(both, sizes)}


def _parts(encoder: nn.Sequential, x: Tensor) -> list[Tensor]:
    parts, h = [], pixels(x)
    for layer in encoder:
        h = layer(h)
        if isinstance(layer, nn.GELU) and h.ndim == 4 and h.shape[-1] > 1:
            parts.append(torch.cat(torch.std_mean(h.float(), (-1, -2)), 1))
    return [*(functional.normalize(part, dim=1) for part in parts), h.float()]


# ---- scores: functions of vectors that are low for novel images


def vector_scores(training: Vectors, y: Int64[Tensor, " n"], held_out: Tensor) -> dict[str, Score]:
    """Scores of vectors by those of training images; the bandwidth has the best likelihood of others.

    Distances are those of standardised vectors, whose columns are weighted by `Vectors.weights`.
    """
    scaler, weights = Scaler.from_data(training.values), training.weights

    def scaled(v: Tensor) -> Tensor:
        return (scaler(v) * weights).float()

    memory = scaled(training.values[:_MEMORY])
    on_scaled: dict[str, Score] = {
        "KDM": density(memory, scaled(held_out[:_JUDGED])),
        "Mahalanobis": mahalanobis(scaled(training.values), y),
        "nearest neighbour": partial(nearest_neighbour, memory),
    }
    return {name: partial(_composed, scaled, score) for name, score in on_scaled.items()}


def _composed(scaled: Score, score: Score, v: Tensor) -> Tensor:
    return score(scaled(v))


def density(components: Float[Tensor, "m d"], held_out: Float[Tensor, "k d"]) -> Score:
    """log p(v) of the KDM whose components are the vectors of training images.

    Its one bandwidth has the largest mean log p(v) of vectors that are held out.
    """

    def kdm(log_std: float) -> KDM:
        return KDM.from_samples(components, RBF.from_std(float(torch.tensor(log_std).exp())))

    def loss(log_std: float) -> float:
        return -float(in_parts(kdm(log_std).log_prob, held_out).mean())

    minimum = minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": 0.01})
    return kdm(float(minimum.x)).log_prob


def mahalanobis(z: Float[Tensor, "n e"], y: Int64[Tensor, " n"]) -> Score:
    """−min_c (v − μ_c)ᵀΣ⁻¹(v − μ_c), with the classes' means and their common covariance."""
    z = z.double()
    means = torch.stack([z[y == label].mean(0) for label in y.unique()])
    inside = z - means[torch.searchsorted(y.unique(), y)]
    covariance = inside.mT @ inside / len(z)
    ridge = 1e-6 * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
    factor = torch.linalg.cholesky(covariance + ridge)

    def score(v: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(factor, v.double().mT, upper=False).mT
        centres = torch.linalg.solve_triangular(factor, means.mT, upper=False).mT
        return -torch.cdist(white, centres).square().amin(1)

    return score


def nearest_neighbour(memory: Float[Tensor, "n e"], v: Float[Tensor, "m e"]) -> Float[Tensor, " m"]:
    """Minus the distance to the tenth neighbour among training images."""
    return -torch.cdist(v, memory).kthvalue(min(_NEIGHBOUR, len(memory)), dim=1).values


def head_scores(model: DenseModel | KDMModel) -> dict[str, Score]:
    """Scores of latent vectors by a head alone."""
    if isinstance(model, KDMModel):
        layer = model.layer
        return {
            "max-probability": lambda z: layer(z).probs.amax(-1),
            "log evidence": lambda z: layer(z).log_evidence,
        }
    head = model.head
    return {
        "max-probability": lambda z: head(z).float().log_softmax(-1).amax(-1),
        "energy": lambda z: head(z).float().logsumexp(-1),
    }


# ---- outsiders that choose settings


def outsiders(x: UInt8[Tensor, "n c s s"]) -> dict[str, UInt8[Tensor, "k c s s"]]:
    """Foreign images made of known ones, and smooth noise: none of them is from another set."""
    generator = torch.Generator().manual_seed(0)
    half = len(x) // 2
    made = {
        "mixed": (x[:half].float() + x[half : 2 * half].float()) / 2,
        "shuffled": _shuffled(x, generator),
        "inverted": 255 - x,
        "turned": x.rot90(1, (-1, -2)),
        "smooth noise": _smooth_noise(x, generator),
        "faded": 0.4 * x.float(),
        "blurred": functional.avg_pool2d(x.float(), 5, 1, 2),
    }
    return {name: images.byte() for name, images in made.items()}


def _shuffled(x: Tensor, generator: torch.Generator) -> Tensor:
    """Sixteen square parts of every image in a random order."""
    side = x.shape[-1] // 4
    parts = functional.unfold(x.float(), side, stride=side)
    order = torch.rand(len(x), 1, parts.shape[-1], generator=generator).argsort(-1).to(x.device)
    return functional.fold(parts.take_along_dim(order, -1), x.shape[-1], side, stride=side)


def _smooth_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    coarse = torch.randn(len(x), x.shape[1], 6, 6, generator=generator).to(x.device)
    fine = functional.interpolate(coarse, size=x.shape[-2:], mode="bicubic")
    return (128 + 60 * fine).clamp(0, 255)
