"""What the table has to show, and whether it does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from kdmkit.experiments._results import Row

CONFIDENCE = 0.99
ACCURACY = {
    ("mnist", "paper", "kdm"): 0.9940,
    ("fashion_mnist", "paper", "kdm"): 0.924,
    ("cifar10", "paper", "kdm"): 0.852,
    ("mnist", "paper", "ml-kdm"): 0.9935,
    ("fashion_mnist", "paper", "ml-kdm"): 0.918,
    ("cifar10", "paper", "ml-kdm"): 0.847,
    ("mnist", "resnet", "kdm"): 0.9965,
    ("fashion_mnist", "resnet", "kdm"): 0.940,
    ("cifar10", "resnet", "kdm"): 0.94,
}
#: KDM less Enc+Dense at least, KDM less ML-KDM at most.
BEHIND_DENSE, LOST_BY_LIKELIHOOD = -0.001, 0.006
RECOGNISED = {"mnist": 0.97, "fashion_mnist": 0.85, "cifar10": 0.60}
NOVELTY = {("fashion_mnist", "mnist"): 0.95}


@dataclass(frozen=True)
class Interval:
    """A mean with the half-width of its t-interval.

    >>> Interval.of([0.9, 0.92, 0.91]).text
    '0.9100 ± 0.0573'
    """

    mean: float
    half: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        n = len(values)
        spread = float(np.std(values, ddof=1)) if n > 1 else math.nan
        quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) if n > 1 else math.nan
        return cls(float(np.mean(values)), quantile * spread / n**0.5, n)

    @property
    def text(self) -> str:
        return f"{self.mean:.4f}" if math.isnan(self.half) else f"{self.mean:.4f} ± {self.half:.4f}"


def picked(rows: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def mean_of(rows: Sequence[Row], field: str) -> float | None:
    return float(np.mean([row[field] for row in rows])) if rows else None


def claims(rows: Sequence[Row], drawn: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """What, target, measured and whether it is met, of everything that was run."""
    found = [_accuracy(rows, *key) for key in ACCURACY]
    for dataset in RECOGNISED:
        found += [*_differences(rows, dataset), *_generated(drawn, dataset)]
    found += [_novelty(rows, *pair) for pair in NOVELTY]
    return [claim for claim in found if claim is not None]


Claim = tuple[str, str, str, str]


def _accuracy(rows: Sequence[Row], dataset: str, encoder: str, model: str) -> Claim | None:
    value = mean_of(picked(rows, dataset=dataset, encoder=encoder, model=model), "test_accuracy")
    target = ACCURACY[dataset, encoder, model]
    return _at_least(f"{dataset}, {encoder} encoder, {model}: accuracy", value, target)


def _differences(rows: Sequence[Row], dataset: str) -> list[Claim | None]:
    means: Mapping[str, float | None] = {
        model: mean_of(picked(rows, dataset=dataset, encoder="paper", model=model), "test_accuracy")
        for model in ("dense", "kdm", "ml-kdm")
    }
    kdm, dense, likelihood = means["kdm"], means["dense"], means["ml-kdm"]
    ahead = None if kdm is None or dense is None else kdm - dense
    lost = None if kdm is None or likelihood is None else kdm - likelihood
    return [
        _at_least(f"{dataset}: accuracy of KDM less Enc+Dense", ahead, BEHIND_DENSE),
        _at_most(f"{dataset}: accuracy of KDM less ML-KDM", lost, LOST_BY_LIKELIHOOD),
    ]


def _generated(drawn: Sequence[Row], dataset: str) -> list[Claim | None]:
    ours, vae = (picked(drawn, dataset=dataset, generator=name) for name in ("ml-kdm", "vae"))
    bound = mean_of(vae, "frechet")
    nearer = (
        None
        if bound is None
        else _at_most(
            f"{dataset}: Fréchet distance (target: the conditional VAE's)", mean_of(ours, "frechet"), bound
        )
    )
    share = f"{dataset}: generated images recognised"
    return [_at_least(share, mean_of(ours, "recognised"), RECOGNISED[dataset]), nearer]


def _novelty(rows: Sequence[Row], dataset: str, other: str) -> Claim | None:
    some = picked(rows, dataset=dataset, encoder="paper", model="ml-kdm")
    values = [row["novelty_auroc"][other] for row in some if other in row["novelty_auroc"]]
    mean = float(np.mean(values)) if values else None
    return _at_least(f"{dataset} against {other}: novelty AUROC", mean, NOVELTY[dataset, other])


def _at_least(what: str, value: float | None, target: float) -> Claim | None:
    if value is None:
        return None
    return what, f"≥ {target:.4g}", f"{value:.4f}", "yes" if value >= target else "no"


def _at_most(what: str, value: float | None, target: float) -> Claim | None:
    if value is None:
        return None
    return what, f"≤ {target:.4g}", f"{value:.4f}", "yes" if value <= target else "no"
