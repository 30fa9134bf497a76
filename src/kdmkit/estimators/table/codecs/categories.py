"""Levels: categories, booleans, ordered categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import repeat, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.estimators.table.codecs.analysis import smoothing
from kdmkit.estimators.table.codecs.base import Cells, Codec
from kdmkit.estimators.table.codecs.number_lists import CodePart
from kdmkit.estimators.table.codecs.parts import Events, listed
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage, from_json, to_json
from kdmkit.kernels import Interval, Region
from kdmkit.kernels.region_forms import by_edges, single_values

#: What draws have in place of rare levels.
OTHER = "(other)"
_EXAMPLES = 5
_FEWEST, _MOST_FEWEST, _ROWS_FOR_ONE_MORE = 2, 5, 500


def fewest_rows(n_rows: int) -> int:
    """How many of n rows a text needs at least to be drawn: 2 + n/500, at most 5.

    >>> [fewest_rows(n) for n in (100, 1000, 100_000)]
    [2, 4, 5]
    """
    return min(_MOST_FEWEST, _FEWEST + n_rows // _ROWS_FOR_ONE_MORE)


class LevelsCodec(Codec):
    """A column of levels: each is a code of the kernel `Levels`.

    A level that the fitted rows lack is taken for missing, and its row is as much less probable as new levels
    are rare: their share is estimated by that of levels with one row (Good and Turing).

    Args:
        base: what the levels are, see `Storage`.
        levels: in the order of their codes.
        ordered: whether that order means something.
        share: the probability of a level that the fitted rows lack.
        spread: the smoothing of `Levels`.
        counts: the number of rows of each level, of levels that are texts; else empty.
        least_rows: texts with fewer rows are rare: draws have `OTHER` in their place.
    """

    codec = "levels"

    def __init__(
        self,
        name: str,
        kind: str,
        base: str,
        levels: Sequence[Any],
        *,
        ordered: bool,
        share: float,
        spread: float,
        counts: Sequence[int] = (),
        least_rows: int = 1,
    ) -> None:
        self.name, self.kind, self.base = name, kind, base
        self._levels, self.ordered = list(levels), ordered
        self.share, self.spread = share, spread
        self.counts, self.least_rows = tuple(counts), least_rows
        self.parts = (CodePart(tuple(range(len(levels))), spread),)
        self._codes = {level: code for code, level in enumerate(self._levels)}
        self._written = {str(level): code for level, code in self._codes.items()}

    @classmethod
    def fit(cls, column: RawColumn, kind: str, least_rows: int | None = None) -> LevelsCodec:
        """Levels are those that a dtype declares, then the other ones in ascending order.

        Args:
            least_rows: texts with fewer rows are rare; None: by the number of rows.
        """
        storage, present = column.storage, column.present
        values, counts = _count(present)
        declared = list(storage.categories or ())
        if kind == "boolean" and storage.base == "boolean":
            declared = [False, True]
        levels = declared + sorted(set(values) - set(declared))
        ordered = (kind == "ordinal") or (kind == "boolean" and storage.base != "string")
        closed = storage.ordered or storage.base == "boolean"
        share = 0.0 if closed else (sum(count == 1 for count in counts) + 0.5) / (len(present) + 1)
        rows = dict(zip(values, counts, strict=True))
        is_text = storage.base == "string" and not ordered
        return cls(
            column.name,
            kind,
            storage.base,
            levels,
            ordered=ordered,
            share=min(share, 0.5),
            spread=smoothing(len(levels), len(present)),
            counts=[rows.get(level, 0) for level in levels] if is_text else (),
            least_rows=fewest_rows(len(present)) if least_rows is None else least_rows,
        )

    def grown(self, column: RawColumn, least_rows: int | None) -> LevelsCodec:
        """The codec with the levels of more rows, new ones last; the same one if its levels are no texts.

        Args:
            least_rows: as in `fit`.
        """
        if not self.counts or column.storage.base != "string":
            return self
        values, new = _count(column.present)
        more = dict(zip(values, new, strict=True))
        levels = [*self._levels, *sorted(set(more) - set(self._codes))]
        counts = [
            before + more.get(level, 0) for level, before in zip_longest(levels, self.counts, fillvalue=0)
        ]
        n = sum(counts)
        config = {
            **self.config(),
            "levels": to_json(levels),
            "counts": counts,
            "share": min(0.5, (sum(count == 1 for count in counts) + 0.5) / (n + 1)),
            "spread": smoothing(len(levels), n),
            "least_rows": fewest_rows(n) if least_rows is None else least_rows,
        }
        return LevelsCodec.from_config(config)

    # ---- rare levels

    @cached_property
    def rare(self) -> np.ndarray:
        """Which levels have too few rows to be drawn."""
        return np.array([count < self.least_rows for count in self.counts], dtype=bool)

    def pooled(self, values: np.ndarray) -> np.ndarray:
        """Drawn values with one text in place of all rare levels."""
        if not self.rare.any():
            return values
        rare = {level for level, is_rare in zip(self._levels, self.rare, strict=True) if is_rare}
        return np.array([OTHER if value in rare else value for value in values.tolist()], dtype=object)

    @property
    def levels(self) -> Sequence[Any]:
        return self._levels

    # ---- rows

    def encode(self, column: RawColumn) -> Cells:
        codes = _look_up(column.values, column.missing, self._codes)
        if (self.base == "string") != (column.storage.base == "string") and not column.missing.all():
            codes = self._look_up_texts(column)
        events = Events(torch.from_numpy(np.maximum(codes, 0)), codes >= 0, np.zeros(len(codes)))
        return self._cells([events], column.missing)

    def _look_up_texts(self, column: RawColumn) -> np.ndarray:
        """Codes by the text of values: the levels are texts and the values are not, or the reverse."""
        codes = {_written(level): code for level, code in self._codes.items()}
        written = np.array([_written(value) for value in column.values.tolist()], dtype=object)
        looked_up = _look_up(written, column.missing, codes)
        if (looked_up < 0).all():
            wanted = f"values like {self._levels[0]!r}"
            raise TypeError(bad_argument(f"column {self.name!r}", wanted, column.example))
        return looked_up

    def decode(self, *parts: Tensor) -> np.ndarray:
        levels = np.empty(len(self._levels), dtype=object)
        levels[:] = self._levels
        values: np.ndarray = levels[parts[0].detach().cpu().long().numpy()]
        return values.astype(BASES[self.base])

    # ---- questions

    def read(self, region: Region) -> Region:
        if not self.ordered and single_values(region) is None:
            raise self._no_value("a level or a set of levels, which have no order", region)
        codes = by_edges(region, lambda level, after: self._code(level) + (0.5 if after else -0.5))
        if isinstance(region, Interval) and not codes.spans and region.closed == "both":
            raise self._no_value("low ≤ high", (region.low, region.high))
        return codes

    def _code(self, value: Any) -> int:
        value = value.item() if isinstance(value, np.generic) else value
        try:
            if value in self._codes:
                return self._codes[value]
        except TypeError:
            pass
        if str(value) in self._written:
            return self._written[str(value)]
        raise self._no_value(f"one of {self._listed()}{did_you_mean(value, self._levels)}", value)

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        return _look_up(values, np.zeros(len(values), bool), self._codes).astype(np.float64)

    def raw(self, values: Sequence[Any]) -> RawColumn:
        codes = [self._codes.get(value, self._written.get(str(value), -1)) for value in values]
        missing = np.array([code < 0 for code in codes], dtype=bool)
        array = np.empty(len(codes), dtype=object)
        array[:] = [self._levels[max(code, 0)] for code in codes]
        return RawColumn(self.name, array.astype(BASES[self.base]), missing, Storage(self.base))

    # ---- description

    def describe(self) -> str:
        rare = int(self.rare.sum())
        drawn = f"; {rare} with fewer than {self.least_rows} rows are drawn as {OTHER}" if rare else ""
        return f"{len(self._levels)} levels: {self._listed()}{drawn}"

    def examples(self) -> tuple[str, ...]:
        rare = self.rare if len(self.rare) else np.zeros(len(self._levels), bool)
        common = [str(level) for level, is_rare in zip(self._levels, rare, strict=True) if not is_rare]
        return tuple(common[:_EXAMPLES])

    def _listed(self) -> str:
        return listed([str(level) for level in self._levels], 6)

    def config(self) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "name": self.name,
            "kind": self.kind,
            "base": self.base,
            "levels": to_json(self._levels),
            "ordered": self.ordered,
            "share": self.share,
            "spread": self.spread,
            **({"counts": list(self.counts), "least_rows": self.least_rows} if self.counts else {}),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LevelsCodec:
        options = {key: config[key] for key in ("ordered", "share", "spread")}
        options |= {key: config[key] for key in ("counts", "least_rows") if key in config}
        levels = from_json(config["levels"], config["base"])
        return cls(config["name"], config["kind"], config["base"], levels, **options)


def _written(value: Any) -> str:
    """A value as files write it: whole numbers without a point, booleans in small letters."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value)
    return text.lower() if text.lower() in ("true", "false") else text


def _count(values: np.ndarray) -> tuple[list[Any], list[int]]:
    """Distinct values, with the number of rows of each."""
    if values.dtype == object:
        counts: dict[Any, int] = {}
        for value in values:
            counts[value] = counts.get(value, 0) + 1
        return list(counts), list(counts.values())
    distinct, rows = np.unique(values, return_counts=True)
    return distinct.tolist(), rows.tolist()


def _look_up(values: np.ndarray, missing: np.ndarray, codes: Mapping[Any, int]) -> np.ndarray:
    """The code of every value, −1 if it has none."""
    if values.dtype == object:
        looked_up = np.fromiter(map(codes.get, values, repeat(-1)), np.int64, len(values))
    else:
        distinct, place = np.unique(values, return_inverse=True)
        by_level = np.array([codes.get(value, -1) for value in distinct.tolist()], np.int64)
        looked_up = by_level[place.reshape(-1)]
    return np.where(missing, -1, looked_up)
