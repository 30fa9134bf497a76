"""The columns of a table: how rows become events of variables and come back."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.distributions.events import Box
from kdmkit.estimators.table.codecs.base import LeftOutCodec
from kdmkit.estimators.table.codecs.kinds import check_types
from kdmkit.estimators.table.codecs.rare import (
    UnseenLevels,
    grown,
    pooled,
    texts_as_levels,
    with_least_rows,
    with_new_keys,
)
from kdmkit.estimators.table.codecs.texts import recognised
from kdmkit.estimators.table.column import (
    Column,
    Columns,
    absent_cells,
    fit_column,
    shared_box,
    with_presence_by_texts,
)
from kdmkit.estimators.table.derived import derived_cells, encode_derived, grown_function, linked
from kdmkit.estimators.table.frames.cells import joined, marked_frame, read_cells
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.frames.restore import build_frame
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage
from kdmkit.estimators.table.presence import Presence
from kdmkit.estimators.table.rules import NO_RULES, Rules, rules_from_config
from kdmkit.estimators.table.vocabulary import left_out
from kdmkit.nn import Variable
from kdmkit.training import Table

# Numbers further out are taken for this one: in float32 they would be infinite.
_FAR = 1e30
# Boxes that one question may consist of.
_MOST_BOXES = 10_000


class Schema:
    """The columns of a table.

    Args:
        columns: in the order of the frame.
        backend: the library of the fitted frame: pandas, polars, pyarrow, mapping or array.
        labels: the names as the frame has them.
        sample: the number of rows by which the columns were recognised, and of all rows; None: by all rows.
        missing: what an empty cell is: an `"outcome"`, or an `"unknown"` value.
        rules: between columns.
        broken_rules: what a row is that breaks one: `"impossible"`, or `"rare"`.

    >>> columns = Schema.from_frame({"age": [31, 45, 52], "smokes": ["yes", "no", "no"]}).columns
    >>> [(column.name, column.kind) for column in columns.values()]
    [('age', 'count'), ('smokes', 'category')]
    """

    def __init__(
        self,
        columns: Sequence[Column],
        backend: str,
        labels: Sequence[Any],
        sample: tuple[int, int] | None = None,
        missing: str = "unknown",
        rules: Rules = NO_RULES,
        broken_rules: str = "impossible",
    ) -> None:
        self.columns = linked({column.name: column for column in columns})
        self.backend, self.labels, self.sample, self.missing = backend, tuple(labels), sample, missing
        self.rules, self.broken_rules = rules, broken_rules
        #: How a query writes the values of each column, once it was asked for.
        self.syntax: dict[str, Any] | None = None

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        types: Mapping[str, str] | None = None,
        *,
        missing: str = "outcome",
        texts: str = "left out",
        least_rows: int | None = None,
        markers: Mapping[str, Sequence[str]] | None = None,
        identifiers: str = "new",
        reviewed: Collection[str] = (),
    ) -> Schema:
        """The schema of a frame.

        Args:
            frame: pandas, polars, Arrow or anything else that narwhals reads; a mapping of arrays; a
                two-dimensional array; a path to CSV or Parquet.
            types: kinds that the caller decides, by column; `reviewed` are those by a schema.
            texts: what becomes of texts of single people or things, as in `KDMTable`.
            least_rows: levels of texts with fewer rows are rare; None: by the number of rows.
            missing: what an empty cell is: an `"outcome"`, or an `"unknown"` value.
            identifiers: of draws: `"new"` keys, or `"left out"`.
        """
        raw = read_frame("X", frame)
        if not raw.n_rows:
            raise ValueError(bad_argument("X", "at least one row", "none"))
        wanted = check_types(types, list(raw.columns))
        raw = recognised(raw, wanted, markers or {})
        wanted |= texts_as_levels(raw, wanted) if texts != "left out" else {}
        least_rows = 1 if texts == "drawn" else least_rows
        cells = enumerate(raw.columns.values())
        columns = [fit_column(i, c, wanted, raw.numbers, missing, reviewed) for i, c in cells]
        if least_rows is not None:
            columns = [with_least_rows(column, least_rows) for column in columns]
        if identifiers == "new":
            columns = with_new_keys(columns, raw)
        sample = None if raw.n_total is None else (raw.n_rows, raw.n_total)
        return cls(with_presence_by_texts(columns), raw.backend, raw.labels, sample, missing)

    # ---- frames

    @property
    def storages(self) -> dict[str, Storage]:
        """How the frame stores each column."""
        return {name: column.storage for name, column in self.columns.items()}

    @cached_property
    def texts(self) -> dict[str, str]:
        """For each column of numbers with texts among them, the column of these texts."""
        return {name: column.storage.texts for name, column in self.columns.items() if column.storage.texts}

    def marked(self, frame: Any) -> RawFrame:
        """The columns of a frame, with texts that stand for missing cells taken for missing."""
        return marked_frame(read_frame("X", frame), self.storages)

    def read(self, frame: Any) -> RawFrame:
        """The columns of a frame, with texts read as those of the fitted rows."""
        return read_cells(self.marked(frame), self.storages)

    def grown(self, frame: RawFrame, least_rows: int | None) -> Schema:
        """The schema with the levels of more rows, which `read` gave."""
        roots = {n: grown(c, frame.columns[n], least_rows) for n, c in self.columns.items() if not c.source}
        columns = [
            roots.get(name)
            or grown_function(c, self.columns[c.source].codec, roots[c.source].codec, frame, least_rows)
            for name, c in self.columns.items()
        ]
        if all(new is old for new, old in zip(columns, self.columns.values(), strict=True)):
            return self
        return self.with_columns(columns)

    def with_columns(self, columns: Sequence[Column]) -> Schema:
        """The schema with other columns of the same names."""
        made = copy.copy(self)
        made.columns = linked({column.name: column for column in columns})
        for name in ("modelled", "presences", "can_miss"):
            made.__dict__.pop(name, None)
        made.syntax = None
        return made

    def source_of(self, name: str) -> str:
        """The column of the frame that has a column's cells."""
        return next((source for source, texts in self.texts.items() if texts == name), name)

    def check_columns(self, frame: RawFrame) -> None:
        """Raises if a frame has other columns than the schema."""
        absent = [f"no {name!r}" for name in self.columns if name not in frame.columns]
        unknown = [f"also {name!r}" for name in frame.columns if name not in self.columns]
        if got := ", ".join(absent + unknown):
            raise ValueError(bad_argument("X", "the columns of the rows before", got))

    def _warn_of_unknown(self, raw: RawFrame) -> None:
        unknown = [name for name in raw.columns if name not in self.columns]
        if unknown and len(unknown) == len(raw.columns):
            similar = "".join(did_you_mean(name, self.columns) for name in unknown[:1])
            got = f"{', '.join(map(repr, unknown))}{similar}"
            raise ValueError(bad_argument("X", "at least one column of the table", got))
        if unknown:
            listed = ", ".join(map(repr, unknown))
            warnings.warn(f"columns that the table was not fitted to are ignored: {listed}", stacklevel=3)

    # ---- the model's side

    def variables(self, n_components: int | None = None) -> list[Variable]:
        """Variables of a layer for all columns that are modelled: `c0`, `c1`, `c2_week`, `c2_weekday`, …

        Those of presence come last: `c1_present`.

        Args:
            n_components: the number of components, if each has a bandwidth.
        """
        values = [
            Variable(name, kernel, shape)
            for column in self.roots.values()
            for name, kernel, shape in zip(
                column.variables, column.codec.kernels(n_components), column.codec.shapes, strict=True
            )
        ]
        return values + [v for presence in self.presences.values() for v in presence.variables]

    @cached_property
    def presences(self) -> dict[str, Presence]:
        """For each column, the variables that say whether its cells are there."""
        return {n: column.presence for n, column in self.columns.items() if column.presence is not None}

    @cached_property
    def can_miss(self) -> frozenset[str]:
        """The columns of which a missing cell is an outcome."""
        return frozenset(name for name, column in self.modelled.items() if column.can_miss)

    def encode(self, frame: Any, *, missing: str = "outcome", dtype: torch.dtype | None = None) -> Table:
        """Rows as events, by variable.

        Columns that the schema lacks are ignored with one warning; cells of absent columns are unknown.
        `log_offset` of the table converts log-densities to the user's units, and holds the probability of
        levels and values that the fitted rows could not have. It is about zero for most tables.

        Args:
            missing: what an empty cell is: an `"outcome"` where the fitted rows had empty cells, or an
                `"unknown"` value everywhere.
            dtype: of events that are numbers; None is torch's default.
        """
        raw = self.read(frame)
        self._warn_of_unknown(raw)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        values: dict[str, Tensor] = {}
        observed: dict[str, Tensor] = {}
        offset = torch.zeros(raw.n_rows, dtype=torch.float64)
        unseen = UnseenLevels()
        is_outcome = "outcome" == missing == self.missing
        for column in self.roots.values():
            is_absent = column.name not in raw.columns
            one = absent_cells(column, raw.n_rows) if is_absent else raw.columns[column.name]
            cells = column.codec.encode(one)
            unseen.count(one, column.codec, cells.observed)
            # An empty cell of a column that was complete is as rare as a new value.
            is_new = is_outcome and not is_absent and column.presence is None
            unknown = np.zeros_like(one.missing) if is_new else one.missing
            offset = offset + cells.log_offset + column.codec.log_share(cells, unknown)
            for name, part in zip(column.variables, cells.parts, strict=True):
                values[name] = part.clamp(-_FAR, _FAR).to(dtype) if part.is_floating_point() else part
                observed[name] = cells.observed
            if column.presence is not None and column.presence.name:
                values[column.presence.name] = column.presence.encode(one.missing)
                certain = np.full(raw.n_rows, not is_absent) if is_outcome else ~one.missing
                observed[column.presence.name] = torch.from_numpy(certain)
        for column in self.derived.values():
            offset = offset + encode_derived(self, column, raw, is_outcome, values, observed)
            unseen.count(raw.columns.get(column.name), column.codec, observed[column.code])
        unseen.warn()
        return Table(values, observed, log_offset=offset)

    # ---- the user's side

    def decode(
        self,
        values: Mapping[str, Tensor],
        *,
        columns: Sequence[str] | None = None,
        index: Any = None,
        named: Collection[str] | None = None,
        backend: str | None = None,
        first_key: int | None = None,
        computed: Mapping[str, RawColumn] | None = None,
    ) -> Any:
        """A frame like the one that came in, for events `(rows, *event)` by variable.

        Cells are missing where their presence says so, if it is among the values. Constants come back as
        they are; texts, empty columns and identifiers without new keys are left out.

        Args:
            columns: the columns wanted; None: constants, and all columns whose variables `values` has.
            index: the index of a frame of pandas; None counts from 0.
            named: columns whose rare levels stay; in others they are one text. None: all columns.
            backend: as in `build_frame`; None: that of the fitted frame.
            first_key: the number of the first new key of identifiers; None: no new keys.
            computed: columns that are not decoded, but taken as they are.
        """
        n_rows = len(next(iter(values.values())))
        wanted = list(self.columns) if columns is None else list(columns)
        raw: list[RawColumn] = []
        for name in wanted:
            column = self.column("columns", name)
            has_values = column.variables and all(part in values for part in column.variables)
            has_keys = first_key is not None and column.codec.keys is not None
            if column.kind == "constant" or has_values or has_keys:
                made = (computed or {}).get(name)
                cells = made or self.decode_column(name, values, n_rows, first_key or 0)
                raw.append(pooled(cells, column.codec, named))
            elif columns is not None:
                got = f"{name!r} ({column.kind}, left out)" if not column.variables else f"none for {name!r}"
                raise ValueError(bad_argument("values", "values of all columns wanted", got))
        labels = dict(zip(self.columns, self.labels, strict=True))
        raw = joined(raw, self.texts)
        return build_frame(raw, backend or self.backend, [labels[column.name] for column in raw], index)

    def decode_column(
        self, name: str, values: Mapping[str, Tensor], n_rows: int, first_key: int = 0
    ) -> RawColumn:
        """One column as an array."""
        column = self.columns[name]
        if column.source:
            return derived_cells(self, column, values)
        if column.codec.keys is not None:
            decoded = column.codec.keys.new(first_key, n_rows, column.storage.base)
        elif isinstance(column.codec, LeftOutCodec):
            cells = np.empty(n_rows, dtype=object)
            cells[:] = [column.codec.constant] * n_rows
            decoded = cells.astype(BASES[column.storage.base])
        else:
            decoded = column.codec.decode(*(values[part] for part in column.variables))
        is_known = column.presence is not None and not values.keys().isdisjoint(column.presence.there)
        missing = column.presence.is_missing(values).cpu().numpy() if is_known else np.zeros(n_rows, bool)
        return RawColumn(name, decoded, missing, column.storage)

    def with_points(self, boxes: Sequence[Box]) -> Schema:
        """The schema for draws inside of some boxes: single values in them are exact."""
        return self.with_columns([column.with_points(boxes) for column in self.columns.values()])

    def column(self, argument: str, name: Any) -> Column:
        """A column by its name; an unknown one raises."""
        if name not in self.columns:
            wanted = f"a column of the table{did_you_mean(name, self.columns)}"
            raise ValueError(bad_argument(argument, wanted, repr(name)))
        return self.columns[name]

    @cached_property
    def modelled(self) -> dict[str, Column]:
        """The columns that questions can be about, by name."""
        return {name: column for name, column in self.columns.items() if column.variables}

    @property
    def roots(self) -> dict[str, Column]:
        """The columns that have variables of their own."""
        return {name: column for name, column in self.modelled.items() if not column.source}

    @property
    def derived(self) -> dict[str, Any]:
        """The columns that are functions of others."""
        return {name: column for name, column in self.modelled.items() if column.source}

    def modelled_column(self, argument: str, name: Any) -> Column:
        """A column of the model by its name; one that is unknown or left out raises."""
        if name in self.modelled:
            return self.modelled[name]
        column = self.columns.get(name)
        got = left_out(name, column.reason) if column else f"{name!r}{did_you_mean(name, self.modelled)}"
        raise ValueError(bad_argument(argument, "a column of the model", got))

    # ---- questions

    def boxes(self, box: Box) -> list[Box]:
        """A box of outcomes of columns as disjoint boxes of regions of variables."""
        parts = [self.columns[name].boxes(region) for name, region in box.items()]
        n_boxes = math.prod(map(len, parts))
        if len(parts) == 1:
            return parts[0]
        if n_boxes > _MOST_BOXES:
            raise ValueError(bad_argument("given", f"a union of at most {_MOST_BOXES} boxes", n_boxes))
        joined = map(shared_box, itertools.product(*parts))
        return [box for box in joined if not any(region.is_empty for region in box.values())]

    # ---- description

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `from_config` makes an equal schema."""
        labels = [label if isinstance(label, int) else str(label) for label in self.labels]
        frame = {"backend": self.backend, "labels": labels, "missing": self.missing}
        sample = {} if self.sample is None else {"sample": list(self.sample)}
        rules = {"rules": self.rules.config(), "broken_rules": self.broken_rules} if self.rules else {}
        return {**frame, "columns": [column.config() for column in self.columns.values()], **rules, **sample}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Schema:
        """The schema that `config` describes."""
        columns = [Column.from_config(fields) for fields in config["columns"]]
        rules = rules_from_config(config.get("rules", ()), [column.name for column in columns])
        how = config.get("missing", "unknown"), rules, config.get("broken_rules", "impossible")
        sample = tuple(config.get("sample") or ()) or None
        return cls(columns, config["backend"], config["labels"], sample, *how)

    def __str__(self) -> str:
        """A table of the columns and their kinds."""
        return repr(Columns(self.columns, self.origin))

    @property
    def origin(self) -> str:
        """The sample by which the columns were recognised, in words; empty if there was none."""
        text = "recognised by a uniform sample of {:,} of {:,} rows"
        return text.format(*self.sample) if self.sample else ""
