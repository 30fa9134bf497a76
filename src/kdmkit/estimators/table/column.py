"""One column of a table: how its cells are events of variables, and what outcomes it has."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kdmkit.distributions.events import Box
from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.codecs.functions import GONE
from kdmkit.estimators.table.codecs.kinds import codec_from_config, decide, fit_codec
from kdmkit.estimators.table.codecs.texts import doubt
from kdmkit.estimators.table.display import rich_table, text_table
from kdmkit.estimators.table.frames.cells import A_NUMBER
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage
from kdmkit.estimators.table.presence import Presence
from kdmkit.kernels import Region
from kdmkit.kernels.regions import Missing, intersection, is_point, region_of, union

#: Above the lines of columns in a printed table.
COLUMN_HEADER = ("column", "kind", "missing", "details", "why")


@dataclass(frozen=True)
class Column:
    """One column of a table: an entry of `Columns`.

    Attributes:
        name: the column's name.
        kind: float, integer, count, duration, boolean, category, ordinal, date, time, constant, identifier,
            text or empty.
        why: the reason in a few words.
        details: levels, range, resolution, atoms.
        variables: names of the variables of its values in the model, one for each part; () if it is left out.
        codec: turns its cells into events and back.
        missing: the share of missing cells in the rows it was fitted to.
        storage: how the frame stores the column.
        presence: the variable that says whether a cell is there; None if missing cells are unknown values.
        unsure: what else the column may be, and how to decide it; "" if the kind is certain.
        source: the column that it is a function of, whose variables it has; "" if it has its own.
        code: the name of its codes among the events of rows, if it is such a function.

    With `table` as in the example of `KDMTable`:

    >>> table.columns_["size"].kind
    'category'
    """

    name: str
    kind: str
    why: str
    details: str
    variables: tuple[str, ...]
    codec: Codec
    missing: float
    storage: Storage
    presence: Presence | None = None
    unsure: str = ""
    source: str = ""
    code: str = ""

    @property
    def can_miss(self) -> bool:
        """Whether a missing cell is an outcome."""
        steps = getattr(self.codec, "steps", None)
        gone = steps is not None and (GONE in steps.codes or steps.missing == GONE)
        return self.presence is not None or (gone and bool(self.missing))

    @property
    def order_kind(self) -> Any:
        """What columns that can be compared share: "number", "date", "time", or ordered levels; None if no
        order means anything.
        """
        if self.codec.numeric or self.kind in ("date", "time"):
            return "number" if self.codec.numeric else self.kind
        return tuple(self.codec.levels or ()) if self.codec.ordered else None

    @property
    def examples(self) -> tuple[str, ...]:
        """Values of the column as they are written: its levels, or the ends of its range; no rare texts."""
        return self.codec.examples()

    @property
    def all_variables(self) -> tuple[str, ...]:
        """All variables of the column in the model: not those of texts that say whether it is there."""
        indicators = () if self.presence is None else tuple(v.name for v in self.presence.variables)
        return (*indicators, *self.variables)

    # ---- outcomes: those of its values, and `Missing`

    def trimmed(self, outcomes: Region) -> Region:
        """A region of outcomes; `WHOLE` if it holds all of them, `NOTHING` if it holds none."""
        values = self.codec.trimmed(outcomes)
        return values if self.presence is None else self.presence.trimmed(outcomes, values)

    def value_boxes(self, outcomes: Region) -> list[Box]:
        """Disjoint boxes of regions of the variables of values; one empty box if all values are inside."""
        values = self.codec.trimmed(region_of(outcomes.spans))
        if values.is_empty or values.is_whole:
            return [] if values.is_empty else [{}]
        return self._boxes_of(values)

    def _boxes_of(self, values: Region) -> list[Box]:
        names = self.variables
        return [{names[place]: box[place] for place in box} for box in self.codec.boxes(values)]

    def boxes(self, outcomes: Region) -> list[Box]:
        """Disjoint boxes of regions of the column's variables, for a region that is `trimmed`."""
        if self.presence is not None:
            return self.presence.boxes(outcomes, self.value_boxes(outcomes))
        return self._boxes_of(region_of(outcomes.spans) if outcomes.has_missing else outcomes)

    def with_points(self, boxes: Sequence[Mapping[Any, Region]]) -> Column:
        """The column inside of some boxes: numbers beside a single value in them are that value."""
        spans = [span for box in boxes if self.name in box for span in box[self.name].spans]
        points = [stop[1] for start, stop in spans if is_point((start, stop))]
        return replace(self, codec=self.codec.with_points(points)) if points else self

    @cached_property
    def seen(self) -> Region:
        """Outcomes of the data: from the least to the greatest value, and `Missing`."""
        return self.codec.seen if self.presence is None else union([self.codec.seen, Missing])

    # ---- description

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `from_config` makes an equal column."""
        return {
            "kind": self.kind,
            "why": self.why,
            "variables": list(self.variables),
            "missing": self.missing,
            "codec": self.codec.config(),
            "storage": self.storage.config(),
            "presence": None if self.presence is None else self.presence.config(),
            **({"unsure": self.unsure} if self.unsure else {}),
            **({"source": self.source, "code": self.code} if self.source else {}),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Column:
        """The column that `config` describes."""
        storage = Storage.from_config(config["storage"])
        codec = codec_from_config(config["codec"], storage)
        presence = config.get("presence")  # models of 0.2 have none
        return cls(
            name=codec.name,
            kind=config["kind"],
            why=config["why"],
            details=codec.describe(),
            variables=tuple(config["variables"]),
            codec=codec,
            missing=config["missing"],
            storage=storage,
            presence=None if presence is None else Presence.from_config(presence),
            unsure=config.get("unsure", ""),
            source=config.get("source", ""),
            code=config.get("code", ""),
        )

    @property
    def reason(self) -> str:
        """The kind, and why."""
        return f"{self.kind}: {self.why}"

    @property
    def line(self) -> tuple[str, ...]:
        """The line of the column in a printed table, below `COLUMN_HEADER`."""
        ends = "" if self.codec.levels is not None else " … ".join(self.examples)
        details = "; ".join(filter(None, (self.details, ends)))
        why = f"{self.why}; unsure: {self.unsure}" if self.unsure else self.why
        return (self.name, self.kind, f"{self.missing:.1%}", details, why)


def fit_column(
    i: int,
    raw: RawColumn,
    types: Mapping[str, str],
    numbers: np.ndarray | None,
    missing: str,
    reviewed: Collection[str] = (),
) -> Column:
    """A column of some rows.

    Args:
        i: its number.
        types: kinds that the caller decides, by column.
        numbers: of the rows in the frame, if they are a sample.
        missing: what an empty cell is: an `"outcome"`, or an `"unknown"` value.
        reviewed: columns in `types` by a schema: kinds that agree with the cells keep their reasons.
    """
    kind, why = decide(raw, numbers)
    if raw.name in types and (raw.name not in reviewed or types[raw.name] != kind):
        kind, why = types[raw.name], "asked for"
    is_outcome = missing == "outcome" and bool(raw.missing.any())
    if kind == "constant" and is_outcome:
        kind = {"integer": "integer", "float": "float"}.get(raw.storage.base, "category")
        why = "one value, or missing"
    codec = fit_codec(raw, kind)
    if kind == "empty":
        warnings.warn(f"column {raw.name!r} is left out: all cells are missing", stacklevel=4)
    names = (f"c{i}" if not part else f"c{i}_{part}" for part in codec.part_names)
    return Column(
        name=raw.name,
        kind=kind,
        why=why,
        details=codec.describe(),
        variables=tuple(names) if codec.modelled else (),
        codec=codec,
        missing=float(raw.missing.mean()),
        storage=raw.storage,
        unsure="" if raw.name in types else doubt(raw, kind),
        presence=Presence.fit(f"c{i}_present", raw.missing) if codec.modelled and is_outcome else None,
    )


def absent_cells(column: Column, n_rows: int) -> RawColumn:
    """A column with missing cells only."""
    values = np.zeros(n_rows, dtype=BASES[column.storage.base])
    return RawColumn(column.name, values, np.ones(n_rows, dtype=bool), column.storage)


def with_presence_by_texts(columns: Sequence[Column]) -> list[Column]:
    """The columns, in which numbers among texts are there where the column of these texts says so."""
    by_name = {column.name: column for column in columns}
    return [
        replace(column, presence=_presence_by_texts(by_name[column.storage.texts]))
        if column.presence is not None
        and column.storage.texts in by_name
        and A_NUMBER in (by_name[column.storage.texts].codec.levels or ())
        else column
        for column in columns
    ]


def _presence_by_texts(texts: Column) -> Presence:
    (name,) = texts.variables
    outer = () if texts.presence is None else tuple(texts.presence.there.items())
    code = list(texts.codec.levels or ()).index(A_NUMBER)
    return Presence("", 0.0, (*outer, (name, code)))


def shared_box(boxes: Sequence[Box]) -> Box:
    """What all boxes hold; columns of texts share variables with columns of numbers."""
    joined: Box = {}
    for box in boxes:
        for name, region in box.items():
            joined[name] = intersection([joined[name], region]) if name in joined else region
    return joined


class Columns(dict[str, Column]):
    """The columns of a table by name; prints as a table of their kinds. `KDMTable.columns_` has it.

    Args:
        columns: by name.
        origin: the sample by which the columns were recognised, in words; empty if there was none.

    With `table` as in the example of `KDMTable`:

    >>> {name: column.kind for name, column in table.columns_.items()}
    {'size': 'category', 'weight': 'float'}
    """

    def __init__(self, columns: Mapping[str, Column], origin: str = "") -> None:
        super().__init__(columns)
        self.origin = origin

    def __repr__(self) -> str:
        text = text_table(COLUMN_HEADER, [column.line for column in self.values()])
        return f"{text}\n{self.origin}" if self.origin else text

    def __rich__(self) -> Any:
        return rich_table(
            COLUMN_HEADER, [column.line for column in self.values()], caption=self.origin or None
        )
