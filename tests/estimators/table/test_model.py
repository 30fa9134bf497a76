"""Settings of a table's fit."""

from __future__ import annotations

import math

import pytest

from kdmkit.estimators.table.model import automatic_components, table_options


@pytest.mark.parametrize(
    ("rows", "steps"),
    [(200, 400), (5000, 400), (17_000, 1005), (30_000, 1500), (3_000_000, 11_719)],
)
def test_the_number_of_steps_follows_the_number_of_rows(rows: int, steps: int) -> None:
    """Fifteen epochs, from 400 to 1,500 steps, in whole epochs."""
    options = table_options(rows, {})
    per_epoch = math.ceil(rows / options.batch_size)
    assert options.max_epochs * per_epoch == pytest.approx(steps, abs=per_epoch)
    assert options.tolerance > 0


def test_chosen_settings_stay() -> None:
    options = table_options(1000, {"max_epochs": 3, "batch_size": 100, "learning_rate": 0.01})
    assert (options.max_epochs, options.batch_size, options.learning_rate) == (3, 100, 0.01)


def test_the_number_of_components_follows_the_number_of_rows() -> None:
    found = [automatic_components(rows) for rows in (10, 160, 1000, 5000, 16_384, 10**6)]
    assert found == [4, 10, 62, 141, 256, 256]
