"""Whole new rows that are drawn."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice
from kdmkit.distributions.event_text import Pair
from kdmkit.distributions.events import Box, Condition, Event
from kdmkit.estimators.table.answering.engine import TableEngine, impossible
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.outcomes import columns_of
from kdmkit.estimators.table.row_rules import RowRules
from kdmkit.estimators.table.rules import comparable
from kdmkit.estimators.table.schema import Schema
from kdmkit.kernels import Missing

# A smaller share of draws that satisfied their conditions is a warning.
_FEW_ACCEPTED = 0.9
# The same for draws that only have to keep the rules of the table.
_FEW_KEPT = 0.1
# Rounds of draws before a condition on several columns is given up, and the least share that may satisfy it.
_ROUNDS, _LEAST_SHARE = 200, 1e-4


class RowSampler:
    """Draws of whole rows that satisfy an event literally.

    Boxes are drawn exactly. Comparisons of two columns, rules between columns and conditions on columns that
    formulas compute hold by rejection: `accepted` is the share of draws that satisfied them. A draw that
    rounding has put on the wrong side of an end is replaced, too.

    Args:
        engine: the fitted table.
        given: the event.
        complete: whether all cells are there.
    """

    def __init__(self, engine: TableEngine, given: Event, *, complete: bool = False) -> None:
        self._complete = complete
        for name in sorted(columns_of(given) & engine.schema.can_miss) if complete else ():
            given = given & ~Condition(name, Missing)
        self.engine, self.boxes = engine, engine.boxes(given)
        self._rules = RowRules(engine.schema, {str(key) for box in self.boxes for key in box})
        by_rejection: set[Any] = {key for box in self.boxes for key in box if isinstance(key, Pair)}
        by_rejection |= {*self._rules.plan}
        plain = [{key: part for key, part in box.items() if key not in by_rejection} for box in self.boxes]
        if not self.boxes:
            raise impossible(given)
        distinct = list({tuple(sorted(box.items(), key=str)): box for box in plain}.values())
        #: What is drawn from: without comparisons of columns, alternatives may overlap.
        self._drawn_from = [{}] if {} in distinct else distinct
        self._evidence = engine.evidence(self._drawn_from)
        #: Draws become cells by this schema: given single values are exact.
        self.schema = engine.schema.with_points(plain)
        self._given = given
        self.accepted = 1.0

    def frame(self, n: int, generator: torch.Generator, library: str | None, first_key: int = 0) -> Any:
        """n rows as a frame; rare levels stay in columns that the event is about.

        Args:
            library: pandas, polars or arrow; None: that of the fitted frame.
            first_key: the number of the first new key of identifiers.
        """
        check_choice("frame", library, (None, "pandas", "polars", "arrow"))
        values = {name: value.cpu() for name, value in self.draw(n, generator).items()}
        named, computed = columns_of(self._given), self._cells(values, self._rules.names)
        return self.schema.decode(
            values, named=named, backend=library, first_key=first_key, computed=computed
        )

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n rows of all variables."""
        parts: list[dict[str, Tensor]] = []
        kept = drawn = accepted = 0
        for _ in range(_ROUNDS):
            wanted = n - kept
            size = wanted if not drawn else min(1 << 18, int(1.1 * wanted * drawn / max(kept, 1)) + 16)
            try:
                rows = self._evidence.sample(size, generator, self._variables)
            except ValueError as error:
                raise impossible(self._given) from error
            copies = torch.from_numpy(self._copies(rows)).to(generator.device)
            inside = copies.isfinite()
            if bool((copies[inside] > 1).any()):
                inside &= torch.rand(size, generator=generator, device=generator.device) * copies < 1
            parts.append({name: value[inside][:wanted] for name, value in rows.items()})
            kept, drawn = kept + len(next(iter(parts[-1].values()))), drawn + size
            accepted += int(inside.sum())
            self.accepted = accepted / drawn
            if kept >= n or (drawn >= 1 / _LEAST_SHARE and not kept):
                break
        if kept < n:
            wanted_share = f"an event that at least {_LEAST_SHARE:.2%} of the draws satisfy"
            raise ValueError(bad_argument("given", wanted_share, f"{kept} of {drawn} draws"))
        is_compared = any(isinstance(key, Pair) for box in self.boxes for key in box)
        if self.accepted < (_FEW_ACCEPTED if is_compared else _FEW_KEPT):
            what = "conditions and rules" if self._rules else "conditions"
            warnings.warn(f"{self.accepted:.1%} of the draws satisfied the {what}", stacklevel=3)
        return {name: torch.cat([part[name] for part in parts]) for name in self._variables}

    @property
    def _variables(self) -> tuple[str, ...]:
        """The variables that are drawn: those of values, and of presence if cells may be missing."""
        presences = {v.name for p in self.engine.schema.presences.values() for v in p.variables}
        return tuple(n for n in self.engine.joint.variables if not (self._complete and n in presences))

    def _copies(self, rows: Mapping[str, Tensor]) -> np.ndarray:
        """How many of the alternatives drawn from hold each row; ∞ if it does not satisfy the event."""
        n = len(next(iter(rows.values())))
        keys = {key for box in self.boxes for key in box}
        names = {name for key in keys for name in (key if isinstance(key, Pair) else (key,))}
        cells = self._cells(rows, {*names, *self._rules.names})
        kept = self._rules.kept(cells) if self._rules else np.ones(n, dtype=bool)
        if {} in self.boxes:
            return np.where(kept, 1, np.inf)
        outcomes = {name: self._outcomes(name, cells[name]) for name in names}

        def inside(box: Box) -> np.ndarray:
            here = np.ones(n, dtype=bool)
            for key, region in box.items():
                pair = key if isinstance(key, Pair) else (key,)
                missing = np.logical_or.reduce([cells[name].missing for name in pair])
                numbers = self._signs(key, cells) if isinstance(key, Pair) else outcomes[key]
                here &= np.where(missing, region.has_missing, region.contains(numbers))
            return here

        holds = kept & np.logical_or.reduce(list(map(inside, self.boxes)))
        return np.where(holds, np.sum(list(map(inside, self._drawn_from)), 0), np.inf)

    def _outcomes(self, name: str, cells: RawColumn) -> np.ndarray:
        """The outcomes of cells; NaN for computed numbers that the column never had."""
        codec = self.engine.columns[name].codec
        outcomes = codec.outcomes_of(cells.values)
        if name not in self._rules.plan:
            return outcomes
        return np.where(codec.encode(cells).observed.numpy(), outcomes, np.nan)

    def _signs(self, pair: Pair, cells: Mapping[str, RawColumn]) -> np.ndarray:
        """The sign of left − right."""
        left, right = (comparable(self.engine.schema, name, cells[name]) for name in pair)
        return (left > right).astype(float) - (left < right)

    def _cells(self, rows: Mapping[str, Tensor], names: Collection[str]) -> dict[str, RawColumn]:
        """The cells of some columns, those of `self._rules` among them, with computed ones."""
        cells = decoded_cells(self.schema, rows, names)
        return cells | (self._rules.drawn(cells) if self._rules else {})


def decoded_cells(schema: Schema, rows: Mapping[str, Tensor], names: Collection[str]) -> dict[str, RawColumn]:
    """The cells of some columns in rows of variables."""
    n_rows = len(next(iter(rows.values())))
    return {name: schema.decode_column(name, rows, n_rows) for name in names}
