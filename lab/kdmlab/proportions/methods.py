"""The methods of Table 2: each learns from bags alone and then scores rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from kdmkit import RBF, KDMProportionClassifier
from kdmkit.kernels import typical_distance
from kdmkit.nn import JointLayer, make_linear
from kdmkit.training import Bags, Device, FitOptions, Rows, encode_rows, fit
from kdmlab.proportions.likelihood import (
    CountLikelihood,
    Labels,
    MeanOfBag,
    RowLikelihood,
    predicted_labels,
    split_rows,
)
from kdmlab.proportions.lmmcm import LMMCM

Array = NDArray[Any]
Scorer = Callable[[Array], Array]
# The dimension of latent vectors.
LATENT = 16
# Learning rate of the first phase of a head behind an encoder, and the usual one of the second.
RATES = (3e-3, 9e-4)


@dataclass(frozen=True)
class TrainingBags:
    """Rows `X (n, d)`, the bag of each row `(n,)`, and the share of positives in each bag `(n_bags,)`."""

    X: Array
    bags: Array
    share: Array

    @property
    def proportions(self) -> Array:
        return np.column_stack([1 - self.share, self.share])


def kdm(training: TrainingBags, seed: int, *, sigma_factor: float, **settings: Any) -> Scorer:
    """A KDM over the features themselves, RBF × cosine."""
    distance = typical_distance(torch.from_numpy(training.X), "mean")
    return _fitted(training, seed, sigma=sigma_factor * distance, **settings)


def _fitted(training: TrainingBags, seed: int, **settings: Any) -> Scorer:
    settings = {"loss": "likelihood"} | settings
    model = KDMProportionClassifier(standardize=False, random_state=seed, **settings)
    model.fit(training.X, training.bags, training.proportions)
    return lambda X: model.predict_proba(X)[:, 1]


def kdm_encoder(
    training: TrainingBags, seed: int, *, members: int, dropout: float, input_dropout: float, **settings: Any
) -> Scorer:
    """The mean of several KDMs, each with a small encoder of its own.

    Members have the seeds 100·seed + member, which define the committed results.
    """
    scorers = []
    for member in range(members):
        number, width = 100 * seed + member, training.X.shape[1]
        encoder = small_encoder(width, dropout=dropout, input_dropout=input_dropout, seed=number)
        scorers.append(_fitted(training, number, encoder=encoder, **settings))
    return lambda X: np.mean([score(X) for score in scorers], axis=0)


def small_encoder(
    features: int,
    *,
    hidden: int = 64,
    latent: int = LATENT,
    dropout: float,
    input_dropout: float = 0.0,
    seed: int,
) -> nn.Module:
    """Two hidden layers with GELU and dropout, then a linear map to latent vectors."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Dropout(input_dropout),
            nn.Linear(features, hidden, dtype=torch.float32),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden, dtype=torch.float32),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, latent, dtype=torch.float32),
        )


def committee(
    training: TrainingBags, seed: int, *, members: int, dropout: float, input_dropout: float, **settings: Any
) -> Scorer:
    """The mean of several `two_phases`, with the encoders, seeds and validation bags of `kdm_encoder`."""
    modules = []
    for number in range(100 * seed, 100 * seed + members):
        width = training.X.shape[1]
        encoder = small_encoder(width, dropout=dropout, input_dropout=input_dropout, seed=number)
        modules.append(two_phases(training, encoder, number, **settings))
    return lambda X: np.mean(
        [_probability(module, torch.from_numpy(X).float()) for module in modules], axis=0
    )


def two_phases(
    training: TrainingBags,
    encoder: nn.Module,
    seed: int,
    *,
    loss: Literal["likelihood", "counts"] = "likelihood",
    n_components: int | None = None,
    sigma_factor: float = 1.0,
    learning_rate: float = RATES[1],
    max_epochs: int,
    batch_size: int,
    device: Device,
) -> Labels:
    """An encoder with a dense head by the likelihood of rows, then with a head of choice and another loss.

    Args:
        training: what is learned from.
        encoder: from rows to vectors of length `LATENT`.
        seed: of validation bags, first weights, and order of rows.
        loss: of the second phase.
        n_components: of the KDM of the second phase; None keeps the dense head.
        sigma_factor: its first bandwidth, in mean distances between latent vectors.
        learning_rate: of the second phase.
        max_epochs: of each phase.
        batch_size: rows per step; whole bags where counts are learned from.
        device: where to compute.
    """
    ids, validation = split_rows((torch.arange(len(training.share)),), 0.1, seed)
    labels = Labels(encoder, make_linear(LATENT, 2, torch.Generator().manual_seed(seed)))
    bags = Bags(torch.from_numpy(training.X).float(), torch.from_numpy(training.bags))
    shares = torch.from_numpy(training.proportions).float()
    prior = torch.from_numpy(training.proportions[ids.tensors[0]].mean(0)).float()
    settings: dict[str, Any] = {
        "max_epochs": max_epochs,
        "weight_decay": 1e-2,
        "seed": seed,
        "device": device,
    }

    def learn(objective: nn.Module, prepare: Callable[[Rows], Rows], size: int, rate: float) -> None:
        options = FitOptions(batch_size=size, learning_rate=rate, **settings)
        fit(objective, prepare(ids), None if validation is None else prepare(validation), options=options)

    by_row = partial(_rows_with_proportions, bags, shares)
    learn(RowLikelihood(labels, prior), by_row, batch_size, RATES[0])
    if n_components is not None:
        labels.head = _kdm_head(labels.cpu(), by_row(ids), n_components, sigma_factor, seed)
    if loss == "likelihood":
        learn(RowLikelihood(labels, prior), by_row, batch_size, learning_rate)
    else:
        counts = partial(_bags_with_counts, bags, shares)
        size = max(1, batch_size // int(bags.size.max()))
        learn(CountLikelihood(labels, prior, bags), counts, size, learning_rate)
    return labels.cpu().eval()


def _kdm_head(labels: Labels, rows: Rows, n_components: int, sigma_factor: float, seed: int) -> JointLayer:
    """Random latent vectors as components, with the labels that the dense head predicts for their bags."""
    x, proportions = rows.tensors
    z = encode_rows(labels.encoder, x)
    amplitudes = predicted_labels(proportions, labels.head, z).sqrt()
    layer = JointLayer(LATENT, 2, n_components, in_kernel=RBF(torch.ones(LATENT)), dtype=torch.float32)
    sigma = sigma_factor * typical_distance(z, "mean")
    generator = torch.Generator().manual_seed(seed)
    return layer.initialize(z, amplitudes, method="random", sigma=sigma, generator=generator)


def _rows_with_proportions(bags: Bags, shares: Tensor, some: Rows) -> Rows:
    """The rows of some bags, each with the proportions of its bag."""
    (ids,) = some.tensors
    return Rows((bags.inside(ids), shares[ids].repeat_interleave(bags.size[ids], 0)))


def _bags_with_counts(bags: Bags, shares: Tensor, some: Rows) -> Rows:
    """Some bags, each with its number of positives."""
    (ids,) = some.tensors
    size = bags.size[ids]
    return Rows((bags.first[ids], size, (shares[ids, 1] * size).round().long()), size.float(), size)


@torch.no_grad()
def _probability(module: nn.Module, x: Tensor) -> Array:
    log_probs: Tensor = module(x)
    return np.asarray(log_probs[:, 1].exp())


def network(
    training: TrainingBags,
    seed: int,
    *,
    hidden: int,
    learning_rate: float,
    max_epochs: int,
    batch_size: int,
    device: Device,
) -> Scorer:
    """A network whose mean answer over a bag is fitted to the bag's proportions."""
    encoder = small_encoder(training.X.shape[1], hidden=hidden, latent=2, dropout=0.1, seed=seed)
    bags = Bags(torch.from_numpy(training.X).float(), torch.from_numpy(training.bags))
    shares = torch.from_numpy(training.proportions).float()
    train, validation = split_rows((bags.first, bags.size, shares), 0.1, seed)
    options = FitOptions(
        max_epochs=max_epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=1e-2,
        seed=seed,
        device=device,
    )
    fit(MeanOfBag(bags, encoder, nn.Identity()), train, validation, options=options)
    encoder.cpu().eval()
    return lambda X: _positive(encoder, torch.from_numpy(X).float())


@torch.no_grad()
def _positive(module: nn.Module, x: Tensor) -> Array:
    logits: Tensor = module(x)
    return np.asarray(logits[:, 1] - logits[:, 0])


def lmmcm(
    training: TrainingBags, seed: int, *, standardize: bool = False, device: str, **settings: Any
) -> Scorer:
    """The baseline of the paper's table. With `standardize` one-hot columns are scaled like numbers."""
    model = LMMCM(device=device, random_state=seed, **settings)
    scaler = StandardScaler(with_mean=standardize, with_std=standardize).fit(training.X)
    model.fit(scaler.transform(training.X), training.bags, training.share)
    return lambda X: model.decision_function(scaler.transform(X))


LEARN: dict[str, Callable[..., Scorer]] = {
    "kdm": kdm,
    "kdm-encoder": kdm_encoder,
    "lmmcm": lmmcm,
    "network": network,
    "kdm-refined": committee,
    "network-likelihood": committee,
    "network-refined": committee,
    "kdm-algorithm-4": kdm,
    "lmmcm-standardized": lmmcm,
}
