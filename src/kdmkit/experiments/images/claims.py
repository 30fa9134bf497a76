"""What the table has to show, and whether it does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kdmkit.experiments._results import Row
from kdmkit.experiments._statistics import half_width

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
#: Accuracy of the KDM less that of Enc+Dense at least, less that of ML-KDM at most.
BEHIND_DENSE, LOST_BY_LIKELIHOOD = -0.001, 0.006
RECOGNISED = {"mnist": 0.97, "fashion_mnist": 0.85, "cifar10": 0.60}
NOVELTY = {("fashion_mnist", "mnist"): 0.95}
#: How many runs a claim is about.
RUNS = {"paper": 10, "resnet": 3}


@dataclass(frozen=True)
class Interval:
    """A mean with half the width of its t-interval.

    >>> Interval.of([0.9, 0.92, 0.91]).text
    '0.9100 ± 0.0573'
    """

    mean: float
    half: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        return cls(float(np.mean(values)), half_width(values), len(values))

    @property
    def text(self) -> str:
        return f"{self.mean:.4f}" if math.isnan(self.half) else f"{self.mean:.4f} ± {self.half:.4f}"


@dataclass(frozen=True)
class Claim:
    """A target for the mean of some values, from below or from above.

    >>> Claim("accuracy", [0.91, 0.93], least=0.9, runs=3).cells
    ['accuracy', '≥ 0.9', '0.9200', '2', 'yes, of 2 runs']
    """

    what: str
    values: Sequence[float]
    least: float | None = None
    most: float | None = None
    runs: int = 1

    @property
    def cells(self) -> list[str]:
        target = f"≥ {self.least:.4g}" if self.least is not None else f"≤ {self.most:.4g}"
        if not self.values:
            return [self.what, target, "", "0", "not run"]
        n, mean = len(self.values), float(np.mean(self.values))
        met = (self.least is None or mean >= self.least) and (self.most is None or mean <= self.most)
        few = f", of {n} {'run' if n == 1 else 'runs'}" if n < self.runs else ""
        return [self.what, target, f"{mean:.4f}", str(n), ("yes" if met else "no") + few]


def picked(rows: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def claims(rows: Sequence[Row], drawn: Sequence[Row]) -> list[list[str]]:
    """What, target, measured, runs, and whether it is met."""
    return [
        claim.cells for claim in (*_accuracies(rows), *_differences(rows), *_drawn(drawn), *_novelties(rows))
    ]


def _accuracies(rows: Sequence[Row]) -> Iterator[Claim]:
    for (dataset, encoder, model), least in ACCURACY.items():
        some = picked(rows, dataset=dataset, encoder=encoder, model=model)
        what = f"{dataset}, {encoder} encoder, {model}: accuracy"
        yield Claim(what, [row["test_accuracy"] for row in some], least, runs=RUNS[encoder])


def _differences(rows: Sequence[Row]) -> Iterator[Claim]:
    """Of runs that share a seed, and with it the encoder of the first phase."""
    for dataset in RECOGNISED:
        kdm, dense, likelihood = (
            _by_seed(picked(rows, dataset=dataset, encoder="paper", model=model))
            for model in ("kdm", "dense", "ml-kdm")
        )
        ahead = [kdm[seed] - dense[seed] for seed in kdm if seed in dense]
        lost = [kdm[seed] - likelihood[seed] for seed in kdm if seed in likelihood]
        yield Claim(f"{dataset}: KDM less Enc+Dense", ahead, BEHIND_DENSE, runs=RUNS["paper"])
        yield Claim(f"{dataset}: KDM less ML-KDM", lost, most=LOST_BY_LIKELIHOOD, runs=RUNS["paper"])


def _by_seed(rows: Sequence[Row]) -> Mapping[int, float]:
    return {row["seed"]: row["test_accuracy"] for row in rows}


def _drawn(drawn: Sequence[Row]) -> Iterator[Claim]:
    for dataset, least in RECOGNISED.items():
        ours, vae = (picked(drawn, dataset=dataset, generator=name) for name in ("ml-kdm", "vae"))
        yield Claim(f"{dataset}: generated images recognised", [row["recognised"] for row in ours], least)
        if vae:
            bound = float(np.mean([row["frechet"] for row in vae]))
            what = f"{dataset}: Fréchet distance, not above the conditional VAE's"
            yield Claim(what, [row["frechet"] for row in ours], most=bound)


def _novelties(rows: Sequence[Row]) -> Iterator[Claim]:
    for (dataset, other), least in NOVELTY.items():
        some = picked(rows, dataset=dataset, encoder="paper", model="ml-kdm")
        values = [row["novelty_auroc"][other] for row in some if other in row["novelty_auroc"]]
        yield Claim(f"{dataset} against {other}: novelty AUROC", values, least, runs=RUNS["paper"])
