"""The tables of searches on held-out training images, from their lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdmlab.common import Mean, Report, Row, markdown_table, provenance
from kdmlab.common.lines import key_name

# Settings that span the paper's grid, and what goes with them.
_GRID = ("components", "latent", "dense_components")


def search_table(rows: Sequence[Row], generated: Sequence[Row] = ()) -> Report:
    """Accuracy and generated images on held-out images, by the settings that were varied."""
    varying = _varying(rows, "settings")
    header = ["data", "encoder", "model", *varying, "runs", "accuracy on held-out images"]
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        group = (row["dataset"], row["encoder"], row["model"], *_values(row["settings"], varying))
        groups.setdefault(group, []).append(row["validation_accuracy"])
    ranked = sorted(groups.items(), key=lambda item: (*item[0][:3], -Mean.of(item[1]).mean))
    cells = [
        [*map(str, group), str(len(accuracies)), Mean.of(accuracies).text] for group, accuracies in ranked
    ]
    notes = [
        "A tenth of the training images is held out; the test images were not looked at.",
        *_grids(rows),
        *_search_generation(generated),
        provenance([*rows, *generated]),
    ]
    return Report("Search on validation data", header, cells, notes)


def _grids(rows: Sequence[Row]) -> list[str]:
    """Accuracy of the KDM alone by m and e, where several of both were tried with the same other settings."""
    groups: dict[tuple[str, str], dict[tuple[int, int], list[float]]] = {}
    for row in rows:
        if row["model"] == "kdm-alone":
            others = {name: value for name, value in row["settings"].items() if name not in _GRID}
            cell = row["settings"]["components"], row["settings"]["latent"]
            cells = groups.setdefault((row["dataset"], key_name(others)), {})
            cells.setdefault(cell, []).append(row["validation_accuracy"])
    sections = ["## The KDM alone by number of components m and latent dimension e"]
    for (dataset, _), cells in groups.items():
        ms, es = (sorted({cell[i] for cell in cells}) for i in (0, 1))
        if len(ms) > 1 and len(es) > 1:
            header = [dataset, *(f"e = {e}" for e in es)]
            lines = [[f"m = {m}", *(_cell(cells.get((m, e), [])) for e in es)] for m in ms]
            sections.append(markdown_table(header, lines))
    return sections if len(sections) > 1 else []


def _cell(accuracies: Sequence[float]) -> str:
    if not accuracies:
        return ""
    runs = f" ({len(accuracies)} runs)" if len(accuracies) > 1 else ""
    return f"{Mean.of(accuracies).mean:.4f}{runs}"


def _search_generation(generated: Sequence[Row]) -> list[str]:
    if not generated:
        return []
    of_model, of_drawing = _varying(generated, "settings"), _varying(generated, "drawing")
    cells = [
        [
            *(str(row[name]) for name in ("dataset", "generator", "seed")),
            *_values(row["settings"], of_model),
            *_values(row["drawing"], of_drawing),
            *(f"{row[name]:.4f}" for name in ("recognised", "frechet")),
        ]
        for row in sorted(generated, key=lambda row: (row["dataset"], row["generator"], row["frechet"]))
    ]
    header = ["data", "generator", "seed", *of_model, *of_drawing, "recognised", "Fréchet"]
    text = "Fréchet distances are from held-out images. A line per decoder and spread."
    return ["## Generated images", markdown_table(header, cells), text]


def _varying(rows: Sequence[Row], part: str) -> list[str]:
    """The settings that differ between lines about the same data set and encoder."""
    seen: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        for name, value in row[part].items():
            seen.setdefault((name, row["dataset"], row.get("encoder")), set()).add(str(value))
    return list(dict.fromkeys(name for (name, *_), values in seen.items() if len(values) > 1))


def _values(settings: Row, names: Sequence[str]) -> list[str]:
    """Settings as text; blank where a line has no such setting."""
    return [str(settings.get(name, "")) for name in names]
