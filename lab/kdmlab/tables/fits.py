"""Fits on disk: made once, on any machine, and measured later, on any other.

A folder holds `fit.json` (seconds, parameters, machine), the synthetic rows, and the model if there is one.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import kdmkit as kdm
from kdmlab.common import machine, versions
from kdmlab.common.checks import bad_argument
from kdmlab.common.files import read_arrays, replacing, write_arrays
from kdmlab.tables import methods
from kdmlab.tables.data import Array, Rows, TableData, complete, count, halves, sample_rows, take
from kdmlab.tables.imputation import remove_cells

#: What a model is fitted to: all training rows; one half; all, with the target named; rows with holes.
Variant = Literal["all", "half", "targets", "incomplete"]
#: Rows at most, where all methods fill in missing cells.
IMPUTATION_ROWS = 10_000


@dataclass(frozen=True)
class Fit:
    """One fit.

    Args:
        dataset: the name of the table.
        method: a table model or a peer that generates.
        variant: what it is fitted to.
        seed: of the fit, of the half and of the removed cells.
        device: `"cpu"` or `"cuda"`.
        rows: the training rows at most; None is all.
    """

    dataset: str
    method: str
    variant: Variant
    seed: int
    device: str
    rows: int | None

    def folder(self, work_dir: Path) -> Path:
        size = "all" if self.rows is None else self.rows
        names = (self.dataset.replace("/", "."), size, self.method, self.variant, self.seed, self.device)
        return work_dir / "-".join(map(str, names))

    def training_rows(self, data: TableData) -> Rows:
        data = data.limited(self.rows)
        if self.variant == "half":
            return halves(data.train, self.seed)[0]
        if self.variant == "incomplete":
            return incomplete(data, self.seed)[1]
        return data.train


def incomplete(data: TableData, seed: int) -> tuple[Rows, Rows, Rows]:
    """Training rows for imputation: as they were, with holes, and masks of the holes."""
    truth = sample_rows(data.train, IMPUTATION_ROWS)
    return truth, *remove_cells(truth, seed)


def make(fit: Fit, data: TableData, work_dir: Path, processes: int = 1) -> Path:
    """The folder of a fit; made unless it is there, with the same settings.

    Args:
        processes: that fit at the same time; a part of the facts.
    """
    folder = fit.folder(work_dir)
    settings = methods.settings(methods.TARGETS if fit.variant == "targets" else fit.method)
    if not _is_made(folder, settings):
        if fit.device == "cuda" and not torch.cuda.is_available():
            wanted = f"fits of that device in {work_dir}, where this machine has none"
            raise ValueError(bad_argument("device", wanted, f"no {folder.name}"))
        measured = _write(fit, fit.training_rows(data), data.target, folder)
        where = {"processes": processes, "machine": machine(), "versions": versions()}
        text = json.dumps({**asdict(fit), "settings": settings, **measured, **where}, indent=1)
        with replacing(folder / "fit.json") as temporary:  # the last file: a killed fit is made again
            temporary.write_text(text, encoding="utf-8")
    return folder


def _is_made(folder: Path, settings: Mapping[str, Any]) -> bool:
    path = folder / "fit.json"
    return path.exists() and json.loads(path.read_text("utf-8"))["settings"] == settings


def _write(fit: Fit, rows: Rows, target: str, folder: Path) -> dict[str, Any]:
    (folder / "fit.json").unlink(missing_ok=True)
    start, processor = time.perf_counter(), time.process_time()
    if fit.method in methods.PEERS:
        draw = methods.PEERS[fit.method](rows, fit.seed)
        measured: dict[str, Any] = {}
    else:
        named = {"targets": [target]} if fit.variant == "targets" else {}
        # Codes such as months are texts of digits, which `KDMTable` would read as numbers.
        types = {name: "category" for name, column in rows.items() if column.dtype == object}
        model = methods.table(fit.method, fit.seed, fit.device, types=types, **named).fit(rows)
        draw = model.sample
        measured = {"parameters": methods.count_parameters(model), "epochs": len(model.history_)}
    measured["fit_seconds"] = round(time.perf_counter() - start, 3)
    measured["fit_processor_seconds"] = round(time.process_time() - processor, 3)
    if fit.method not in methods.PEERS and fit.variant != "half":  # of a half, only the rows are judged
        kdm.save(model, folder / "model.safetensors")
    if fit.variant in ("all", "half"):
        start = time.perf_counter()
        synthetic = _complete_rows(draw, count(rows))
        measured["draw_seconds"] = round(time.perf_counter() - start, 3)
        methods.check_rows(synthetic, count(rows))
        write_arrays(folder / "synthetic.npz", _stored(synthetic))
    return {**measured, "fitted_rows": count(rows)}


def _complete_rows(draw: methods.Draw, n: int) -> Rows:
    """n drawn rows without a missing cell, as the real rows that they are compared with."""
    most = n
    while True:
        drawn = draw(most)
        rows = complete(drawn)
        if count(rows) >= n or count(rows) < most // 10:
            return take(rows, np.arange(min(n, count(rows))))
        most = math.ceil(1.05 * most * n / count(rows))


def remove(fit: Fit, work_dir: Path) -> None:
    shutil.rmtree(fit.folder(work_dir), ignore_errors=True)


def facts(folder: Path) -> dict[str, Any]:
    """The facts of a fit that a line of results records."""
    description = json.loads((folder / "fit.json").read_text("utf-8"))
    names = ("fit_seconds", "fit_processor_seconds", "draw_seconds", "parameters", "epochs", "fitted_rows")
    return {
        **{name: description[name] for name in (*names, "processes") if name in description},
        "fitted_on": {"machine": description["machine"], "versions": description["versions"]},
    }


def model_in(folder: Path) -> kdm.KDMTable:
    model: kdm.KDMTable = kdm.load(folder / "model.safetensors")
    return model


def synthetic_in(folder: Path) -> Rows:
    stored = read_arrays(folder / "synthetic.npz", "synthetic rows")
    names = stored["names"].tolist()
    return {
        name: column.astype(object) if (column := stored[f"column{i}"]).dtype.kind == "U" else column
        for i, name in enumerate(names)
    }


def _stored(rows: Mapping[str, Array]) -> dict[str, Array]:
    columns = {
        f"column{i}": column.astype(str) if column.dtype == object else column
        for i, column in enumerate(rows.values())
    }
    return {"names": np.array(list(rows)), **columns}
