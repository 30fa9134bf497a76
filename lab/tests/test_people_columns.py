"""Columns as people write them."""

from __future__ import annotations

from kdmlab.columns.people import people_columns


def test_columns_are_thirty_to_develop_on_and_twice_thirty_to_measure() -> None:
    parts = [people_columns(part) for part in ("development", "test", "others")]
    assert [len(part) for part in parts] == [30, 30, 30]
    names = {(column.dataset, column.column) for part in parts for column in part}
    assert len(names) == 90
