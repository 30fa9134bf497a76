"""The table of the experiments with images, from their lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kdmlab.common import (
    CONFIDENCE,
    Mean,
    Report,
    Row,
    markdown_table,
    newest,
    provenance,
    select,
)
from kdmlab.images.claims import by_seed, claims
from kdmlab.images.recipes import ALONE, DATASETS, ENCODERS, MODELS, Model

_LABELS = {
    "dense": "Enc+Dense",
    "kdm": "KDM",
    "ml-kdm": "ML-KDM",
    "dense-alone": "Enc+Dense alone",
    "kdm-alone": "KDM alone (Algorithm 3)",
    "ml-kdm-alone": "KDM alone, then Algorithm 2",
}
# What draws, and what its decoder matches.
_GENERATORS = {
    "ml-kdm": ("ML-KDM", "pixels, features"),
    "vae": ("conditional VAE", "pixels, features"),
    "ml-kdm-plain": ("ML-KDM", "pixels"),
    "vae-plain": ("conditional VAE", "pixels"),
}
_PAPER = {
    ("mnist", "kdm"): ".993 ± .001",
    ("mnist", "ml-kdm"): ".993 ± .001",
    ("mnist", "dense"): ".992 ± .001",
    ("fashion_mnist", "kdm"): ".916 ± .004",
    ("fashion_mnist", "ml-kdm"): ".895 ± .004",
    ("fashion_mnist", "dense"): ".907 ± .005",
    ("cifar10", "kdm"): ".811 ± .005",
    ("cifar10", "ml-kdm"): ".776 ± .012",
    ("cifar10", "dense"): ".810 ± .006",
}

_ALONE = (
    "Rows called alone are the paper's algorithms: no dense head teaches the KDM, and no layout loss shapes "
    "the encoder, which is pretrained with a dense head as in the paper. Enc+Dense alone and the KDM alone "
    "have recipes of their own (see Settings), with the same number of epochs for the encoder; e may differ. "
    "Algorithm 2 (maximum likelihood) goes on from the KDM alone with the encoder fixed."
)
# Rows that differ in the head.
_PAIRS = (
    ("kdm-alone", "dense-alone"),
    ("ml-kdm-alone", "dense-alone"),
    ("kdm", "dense"),
    ("ml-kdm", "dense"),
)


def table(rows: Sequence[Row], generated: Sequence[Row]) -> Report:
    """Accuracies, then generation, novelty, targets, settings and provenance."""
    rows, generated = _newest(rows), _newest(generated)
    header = ["data", "encoder", "augmented", "model", "runs", "accuracy", "the paper's", "NLL", "ECE"]
    cells = [
        _cells(some, dataset, encoder, model)
        for dataset in DATASETS
        for encoder in ENCODERS
        for model in MODELS
        if (some := select(rows, dataset=dataset, encoder=encoder, model=model))
    ]
    notes = [
        f"Accuracy on the official test images: mean over runs ± half the width of its {CONFIDENCE:.0%} "
        "t-interval. NLL in nats, ECE with 15 bins. ML-KDM is the KDM after maximum likelihood with the "
        "encoder fixed. Enc+Dense has a head with as many parameters as the KDM; both go on from the same "
        "encoder of the first phase and train it for as many epochs. The KDM has a few more of its own on "
        "encoded images, and learns from the dense head, which is trained beside it.",
        *([_ALONE] if any(row["model"] in ALONE for row in rows) else []),
        *_heads(rows),
        *_generation(generated),
        *_novelty(rows),
        "## Targets",
        markdown_table(["what", "target", "measured", "runs", "met"], claims(rows, generated)),
        *_provenance([*rows, *generated]),
    ]
    return Report("Table 1: images", header, cells, notes)


def _newest(rows: Sequence[Row]) -> list[Row]:
    return newest(rows, ("dataset", "encoder", "model", "generator"), ("settings", "drawing"))


def _cells(rows: Sequence[Row], dataset: str, encoder: str, model: Model) -> list[str]:
    accuracy = Mean.of([row["test_accuracy"] for row in rows])
    return [
        dataset,
        encoder,
        "yes" if rows[0]["augmented"] else "no",
        _LABELS[model],
        str(accuracy.n),
        accuracy.text,
        _PAPER.get((dataset, ALONE.get(model, model)), "") if encoder == "paper" else "",
        *(f"{Mean.of([row[name] for row in rows]).mean:.4f}" for name in ("test_nll", "test_ece")),
    ]


def _heads(rows: Sequence[Row]) -> list[str]:
    """Differences between runs with the same seed, whose models differ in the head."""
    lines = []
    for dataset in DATASETS:
        for one, other in _PAIRS:
            ours, theirs = (by_seed(rows, dataset, model) for model in (one, other))
            differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            if differences:
                difference = Mean.of(differences)
                lines.append([dataset, _LABELS[one], _LABELS[other], str(difference.n), difference.text])
    if not lines:
        return []
    text = (
        "Test accuracy of the first less that of the second, runs of the same seed, paper's encoders: mean ± "
        f"half the width of its {CONFIDENCE:.0%} t-interval."
    )
    header = ["data", "head", "compared with", "runs", "difference"]
    return ["## The head exchanged", markdown_table(header, lines), text]


def _generation(generated: Sequence[Row]) -> list[str]:
    lines = []
    for dataset in DATASETS:
        judge = select(generated, dataset=dataset, generator="judge")
        accuracy = f"{judge[-1]['test_accuracy']:.4f}" if judge else ""
        for generator, labels in _GENERATORS.items():
            some = select(generated, dataset=dataset, generator=generator)
            if some:
                means = [Mean.of([row[field] for row in some]).text for field in ("recognised", "frechet")]
                lines.append([dataset, *labels, str(len(some)), *means, accuracy])
    if not lines:
        return []
    header = ["data", "generator", "decoder matches", "runs", "recognised", "Fréchet", "judge's accuracy"]
    text = (
        "Images of each class in equal numbers, drawn from the fitted distributions. Encoder, KDM, "
        "conditional VAE and decoders learn from one half of the training images, the judge from the other. "
        "“Recognised”: the share that the judge, a residual network, takes for the class that was asked. "
        "“Fréchet”: the distance from the test images in the judge's features. All decoders are trained the "
        "same way, for as many epochs, on fixed latent vectors: encoded images with noise (KDM), or draws "
        "from the posterior beside the label (conditional VAE, fitted by its evidence bound for as many "
        "epochs as encoder and KDM). They match pixels, or pixels and the features of the KDM's encoder. No "
        "classifier criticises them."
    )
    return ["## Generation", markdown_table(header, lines), text]


def _novelty(rows: Sequence[Row]) -> list[str]:
    lines = []
    for dataset in DATASETS:
        for encoder in ENCODERS:
            for model in ("kdm", "ml-kdm", "kdm-alone", "ml-kdm-alone"):
                some = select(rows, dataset=dataset, encoder=encoder, model=model)
                for other in some[-1]["novelty_auroc"] if some else ():
                    values = [row["novelty_auroc"][other] for row in some if other in row["novelty_auroc"]]
                    lines.append([dataset, encoder, _LABELS[model], other, Mean.of(values).text])
    if not lines:
        return []
    return [
        "## Novelty",
        markdown_table(["data", "encoder", "model", "against", "AUROC"], lines),
        "Test images against those of other sets (or noise) by −log p(z), z the encoded image.",
    ]


def _provenance(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    chosen = {_recipe_name(row): row["settings"] for row in rows if "encoder" in row}
    drawings = {row["dataset"]: row["drawing"] for row in rows if row.get("drawing")}
    return [
        "## Settings",
        "\n".join(f"- {name}: `{json.dumps(value)}`" for name, value in {**chosen, **drawings}.items()),
        "Chosen in runs with a tenth of the training images held out (`--search`, `table1-search.md`), but "
        "not by trying every combination, and those of residual networks without comparing any. The runs "
        "above train on all training images. A seed fixes first weights and batches, but not the order in "
        "which a GPU adds up: the same run, repeated, differs as much as another seed.",
        f"{provenance(rows)} Processes that share a device each count their own time.",
        "Written by `kdmlab reproduce table1` from `table1.jsonl` and `table1-generation.jsonl`.",
    ]


def _recipe_name(row: Row) -> str:
    alone = f", {_LABELS[row['model']]}" if row["model"] in ALONE else ""
    return f"{row['dataset']}, {row['encoder']}{alone}"
