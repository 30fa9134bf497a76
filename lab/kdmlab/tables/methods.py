"""Methods that make synthetic rows: the table model and peers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from kdmkit import KDMTable
from kdmkit.training import TABLE_RECIPE, TARGET_RECIPE, TREE_RECIPE
from kdmlab.tables.data import Array, Rows, count, is_missing

#: Table models by what is not default.
TABLES: dict[str, dict[str, Any]] = {"kdm": {}}
KDM, INDEPENDENT, REAL = "kdm", "independent", "real"
TARGETS = "kdm-targets"


def settings(method: str) -> dict[str, Any]:
    """Settings of a method: a line with other settings is outdated. Peers have their defaults."""
    if method not in (*TABLES, TARGETS):
        return {}
    if method == TARGETS:
        table = asdict(TARGET_RECIPE)
    else:  # what is for targets changes nothing
        table = {name: v for name, v in asdict(TABLE_RECIPE).items() if not name.startswith("target_")}
    recipe = json.loads(json.dumps({"table": table, "tree": asdict(TREE_RECIPE)}))  # as a line has it
    return {"recipe": recipe, **TABLES.get(method, {})}


def table(method: str, seed: int, device: str, **settings: Any) -> KDMTable:
    """An unfitted table model. A fit on a GPU can be loaded without one: its device is automatic."""
    where = "cpu" if device == "cpu" else "auto"
    return KDMTable(random_state=seed, device=where, **{**TABLES[method], **settings})


# A peer is fitted to rows and returns a function of a number of rows.
Draw = Callable[[int], Rows]


def independent(rows: Rows, seed: int) -> Draw:
    """Every column on its own, drawn from the training rows."""
    rng = np.random.default_rng(seed)
    observed = {name: column[~is_missing(column)] for name, column in rows.items()}
    return lambda n: {name: rng.choice(column, n) for name, column in observed.items()}


def ctgan(rows: Rows, seed: int) -> Draw:
    from ctgan import CTGAN

    return _by_ctgan(CTGAN(), rows, seed)


def tvae(rows: Rows, seed: int) -> Draw:
    from ctgan import TVAE

    return _by_ctgan(TVAE(), rows, seed)


def _by_ctgan(model: Any, rows: Rows, seed: int) -> Draw:
    """Default settings; CTGAN's package takes no missing cell: such rows are left out."""
    import pandas as pd

    complete = ~np.any([is_missing(column) for column in rows.values()], axis=0)
    frame = pd.DataFrame({name: column[complete] for name, column in rows.items()})
    model.set_random_state(seed)
    model.fit(frame, [name for name, column in rows.items() if column.dtype == object])

    def draw(n: int) -> Rows:
        drawn = model.sample(n)
        return {name: np.asarray(drawn[name], column.dtype) for name, column in rows.items()}

    return draw


PEERS: dict[str, Callable[[Rows, int], Draw]] = {"independent": independent, "ctgan": ctgan, "tvae": tvae}
#: Methods that run unless others are named; CTGAN's take hours on a CPU.
DEFAULT = (KDM, INDEPENDENT)


def count_parameters(model: KDMTable) -> int:
    return sum(parameter.numel() for parameter in model.module_.parameters())


def check_rows(rows: Mapping[str, Array], n: int) -> None:
    """Raises unless there are n synthetic rows without missing cells."""
    missing = [name for name, column in rows.items() if is_missing(column).any()]
    if missing or count(rows) != n:
        raise ValueError(f"synthetic rows: expected {n} complete rows, got {count(rows)}, missing {missing}")
