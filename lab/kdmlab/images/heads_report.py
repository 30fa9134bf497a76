"""Tables of calibration and novelty of image heads, and their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kdmlab.common import (
    Claim,
    Mean,
    Report,
    Row,
    claims_table,
    markdown_table,
    provenance,
    select,
)
from kdmlab.images.recipes import ALONE, DATASETS, MODELS, Model

#: The most that the expected calibration error may be.
CALIBRATION = {"mnist": 0.005, "fashion_mnist": 0.01, "cifar10": 0.015}
#: The least area under the ROC curve against another set.
NOVELTY = {
    ("mnist", "fashion_mnist"): 0.99,
    ("fashion_mnist", "mnist"): 0.98,
    ("cifar10", "noise"): 0.98,
    ("cifar10", "mnist"): 0.98,
}
#: A smaller area is allowed if it is at most this far below the best rival's.
BEHIND_RIVAL = -0.01
#: How many runs a claim is about.
RUNS = 5
#: The score of novelty that targets are about: its name, and the vectors that it is a function of.
SCORE = "KDM, all layers"
# Scores by KDMs; all others are rivals.
_OWN = ("KDM", "log evidence")


class Group(NamedTuple):
    """Runs with the same settings."""

    dataset: str
    model: Model
    smoothing: float
    rows: Sequence[Row]

    @property
    def names(self) -> list[str]:
        return [self.dataset, self.model, f"{self.smoothing:g}"]

    def mean(self, field: str) -> Mean:
        return Mean.of([row[field] for row in self.rows])


def groups(rows: Sequence[Row]) -> list[Group]:
    return [
        Group(dataset, model, smoothing, some)
        for dataset in DATASETS
        for model in MODELS
        for smoothing in sorted({row["settings"]["smoothing"] for row in rows})
        if (
            some := [
                row
                for row in select(rows, dataset=dataset, model=model)
                if row["settings"]["smoothing"] == smoothing
            ]
        )
    ]


def table(rows: Sequence[Row]) -> Report:
    """Calibration, novelty and targets, from lines of test images."""
    groups_of_rows = groups(rows)
    novelty_header = ["AUROC of “KDM, all layers”", "target", "measured", "less the best rival", "met"]
    notes = (
        "Trained on nine tenths of the training images, calibrated on the other tenth: a dense head by a "
        "temperature, a KDM by a temperature and a factor of its bandwidths (“width”). Accuracy, NLL in nats "
        "and ECE with 15 bins on the official test images, before and after calibration: means over runs "
        "(± half the width of the 99 % t-interval). Encoders are the paper's, with a normalisation of latent "
        "vectors at the end.",
        "## Novelty",
        _novelty(groups_of_rows),
        "Test images against images of other sets (smaller ones are padded): means over runs. “KDM” is log p "
        "of the KDM whose components are the vectors of training images; its bandwidth has the largest "
        "likelihood of the held-out tenth. “Log evidence” is that of the head. “All layers” are the latent "
        "vector and, for every convolution, the normalised means and standard deviations of its channels "
        "over positions. The other sets choose nothing.",
        "## Targets",
        claims_table(list(calibration_claims(groups_of_rows)), ".4f"),
        markdown_table(novelty_header, list(novelty_claims(groups_of_rows))),
        "A target of novelty is met by the value, or by one at most .01 below the best rival score of the "
        "same model: maximum probability, energy, Mahalanobis distance, distance to the tenth neighbour.",
        provenance(rows),
        "Written by `kdmlab reproduce heads` from the lines in `table1-heads.jsonl`.",
    )
    return Report("Calibration and novelty of image heads", *_calibration(groups_of_rows, "test"), notes)


def search_table(rows: Sequence[Row]) -> Report:
    """Settings compared on validation images."""
    groups_of_rows = groups(rows)
    notes = (
        "Calibrated on one half of the held-out tenth of the training images; the other half is scored: "
        "means over runs.",
        "## Novelty",
        _novelty(groups_of_rows),
        "AUROC of held-out images against images that are made of other held-out images, and against smooth "
        "noise: means over runs.",
        provenance(rows),
        "Written by `kdmlab reproduce heads --search` from the lines in `table1-heads-search.jsonl`.",
    )
    return Report("Image heads: settings compared", *_calibration(groups_of_rows, "validation"), notes)


def _calibration(groups: Sequence[Group], part: str) -> tuple[list[str], list[list[str]]]:
    header = ["data", "model", "label smoothing", "runs", "NLL", "ECE", "width", "temperature"]
    header += ["accuracy, calibrated", "NLL, calibrated", "ECE, calibrated"]
    before = (f"{part}_nll", f"{part}_ece", "width", "temperature")
    after = ("calibrated_accuracy", "calibrated_nll", "calibrated_ece")
    cells = [
        [
            *group.names,
            str(len(group.rows)),
            *(f"{group.mean(field).mean:.4f}" for field in before),
            *(group.mean(field).text for field in after),
        ]
        for group in groups
    ]
    return header, cells


# ---- novelty


def _novelty(groups: Sequence[Group]) -> str:
    """A table for every data set: scores against other sets."""
    parts = []
    for dataset in dict.fromkeys(group.dataset for group in groups):
        some = [group for group in groups if group.dataset == dataset]
        others = list(dict.fromkeys(other for group in some for other in _areas(group, SCORE)))
        lines = [
            [*group.names, score, *(Mean.of(areas).text for areas in _areas(group, score).values())]
            for group in some
            for score in group.rows[-1]["novelty_auroc"]
        ]
        header = ["data", "model", "label smoothing", "score, vectors", *others]
        parts.append(markdown_table(header, lines))
    return "\n\n".join(parts)


def _areas(group: Group, score: str) -> dict[str, list[float]]:
    """Areas under the ROC curve of all runs, by the other set."""
    others = group.rows[-1]["novelty_auroc"][score]
    return {other: [row["novelty_auroc"][score][other] for row in group.rows] for other in others}


def novelty_claims(groups: Sequence[Group]) -> Iterator[list[str]]:
    for group in groups:
        if group.model.startswith("dense"):
            continue
        for (dataset, other), least in NOVELTY.items():
            if dataset == group.dataset and other in (areas := _areas(group, SCORE)):
                claim = Claim("", areas[other], least, runs=RUNS)
                behind = Claim("", _less_rival(group, other), BEHIND_RIVAL, runs=RUNS)
                verdict = claim.verdict if claim.met else behind.verdict
                what = f"{dataset}, {group.model}, against {other}"
                yield [what, claim.target, claim.shown(".4f"), behind.shown("+.4f"), verdict]


def _less_rival(group: Group, other: str) -> list[float]:
    """Areas of the KDM's score less those of the rival with the largest mean."""
    rivals = [score for score in group.rows[-1]["novelty_auroc"] if not score.startswith(_OWN)]
    best = max(rivals, key=lambda score: sum(_areas(group, score)[other]))
    pairs = zip(_areas(group, SCORE)[other], _areas(group, best)[other], strict=True)
    return [ours - rival for ours, rival in pairs]


# ---- calibration


def calibration_claims(groups: Sequence[Group]) -> Iterator[Claim]:
    """Errors of calibration, and NLL less that of the dense head, both calibrated."""
    for group in groups:
        if group.model.startswith("dense") or group.dataset not in CALIBRATION:
            continue
        what = f"{group.dataset}, {group.model}"
        errors = [row["calibrated_ece"] for row in group.rows]
        yield Claim(f"{what}: ECE", errors, most=CALIBRATION[group.dataset], runs=RUNS)
        baseline = "dense-alone" if group.model in ALONE else "dense"
        dense = {
            row["seed"]: row["calibrated_nll"]
            for other in groups
            for row in other.rows
            if (other.dataset, other.model, other.smoothing) == (group.dataset, baseline, group.smoothing)
        }
        more = [row["calibrated_nll"] - dense[row["seed"]] for row in group.rows if row["seed"] in dense]
        yield Claim(f"{what}: NLL less that of {baseline}", more, most=0.0, runs=RUNS)
