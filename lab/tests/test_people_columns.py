"""Columns as people write them."""

from __future__ import annotations

from kdmlab.columns.people import people_columns


def test_columns_are_thirty_to_develop_on_and_thirty_to_measure() -> None:
    parts = [people_columns(part) for part in ("development", "test")]
    assert [len(part) for part in parts] == [30, 30]
    names = {(column.dataset, column.column) for part in parts for column in part}
    assert len(names) == 60
