"""Levels of few rows, which draws have one text in place of; new keys; new levels of later rows."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from kdmkit.estimators.table.codecs.base import Codec, LeftOutCodec
from kdmkit.estimators.table.codecs.categories import LevelsCodec
from kdmkit.estimators.table.codecs.functions import DerivedCodec
from kdmkit.estimators.table.codecs.keys import Keys, keys_of
from kdmkit.estimators.table.codecs.kinds import decide
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import RawColumn

_SHOWN = 3


def texts_as_levels(raw: RawFrame, types: Mapping[str, str]) -> dict[str, str]:
    """The kind "category" for columns of texts that would be left out."""
    columns = [column for name, column in raw.columns.items() if name not in types]
    texts = [column for column in columns if column.storage.base == "string"]
    return {column.name: "category" for column in texts if decide(column)[0] == "text"}


def with_least_rows(column: Any, least_rows: int) -> Any:
    """A column whose levels with fewer rows than this are rare."""
    if not isinstance(column.codec, LevelsCodec) or not column.codec.counts:
        return column
    codec = LevelsCodec.from_config({**column.codec.config(), "least_rows": least_rows})
    return replace(column, codec=codec, details=codec.describe())


def with_new_keys(columns: Sequence[Any], raw: RawFrame) -> list[Any]:
    """The columns, of which draws have new keys in place of identifiers."""
    is_sample = raw.n_total is not None
    return [
        _with_keys(column, keys_of(raw.columns[column.name], is_sample=is_sample))
        if column.kind == "identifier"
        else column
        for column in columns
    ]


def _with_keys(column: Any, keys: Keys | None) -> Any:
    codec = LeftOutCodec(column.name, column.kind, keys=keys)
    return replace(column, codec=codec, details=codec.describe())


def grown(column: Any, raw: RawColumn, least_rows: int | None) -> Any:
    """A column with the levels, or the form of the keys, of more rows."""
    if column.codec.keys is not None:
        return _with_keys(column, column.codec.keys.joined(keys_of(raw, is_sample=False)))
    if not isinstance(column.codec, LevelsCodec):
        return column
    codec = column.codec.grown(raw, least_rows)
    return column if codec is column.codec else replace(column, codec=codec, details=codec.describe())


def pooled(column: RawColumn, codec: Codec, named: Collection[str] | None) -> RawColumn:
    """Drawn cells with one text in place of rare levels.

    Args:
        named: columns whose rare levels stay, since they were asked for; None: all columns.
    """
    inner = codec.inner if isinstance(codec, DerivedCodec) else codec
    if named is None or column.name in named or not isinstance(inner, LevelsCodec):
        return column
    values = inner.pooled(column.values)
    storage = column.storage
    if storage.categories is not None and values is not column.values:
        levels = set(storage.categories)
        new = tuple(value for value in dict.fromkeys(values.tolist()) if value not in levels)
        storage = replace(storage, categories=storage.categories + new)
    return replace(column, values=values, storage=storage)


class UnseenLevels:
    """Counts cells with levels that the fitted rows lack, to warn of all of them at once."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def count(self, column: RawColumn | None, codec: Codec, observed: Tensor) -> None:
        """Counts the cells of a column, if the frame has it, that are there but not observed."""
        levels = codec.inner if isinstance(codec, DerivedCodec) else codec
        if column is None or not isinstance(levels, LevelsCodec):
            return
        unseen = ~observed.numpy() & ~column.missing
        if unseen.any():
            examples = list(dict.fromkeys(map(repr, column.values[np.flatnonzero(unseen)[:100]].tolist())))
            more = ", …" if len(examples) > _SHOWN else ""
            listed = ", ".join(examples[:_SHOWN]) + more
            self._parts.append(f"{int(unseen.sum())} in {column.name!r} ({listed})")

    def warn(self) -> None:
        """One warning for all columns."""
        if self._parts:
            parts = "; ".join(self._parts)
            warnings.warn(f"levels that the fitted rows lack are taken for missing: {parts}", stacklevel=4)
