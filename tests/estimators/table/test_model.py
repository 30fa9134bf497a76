"""Settings of a table's fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kdmkit.estimators import KDMTable
from kdmkit.estimators.table.model import fine_share, table_options
from kdmkit.training import TABLE_RECIPE, TARGET_RECIPE, Table


@pytest.mark.parametrize(
    ("rows", "steps"),
    [(200, 200), (5000, 200), (17_000, 476), (30_000, 767), (3_000_000, 5860)],
)
def test_the_number_of_steps_follows_the_number_of_rows(rows: int, steps: int) -> None:
    """Fourteen epochs, at least 200 steps, at most 384,000 rows, in whole epochs."""
    options = table_options(rows, {})
    per_epoch = math.ceil(rows / options.batch_size)
    assert options.max_epochs * per_epoch == pytest.approx(steps, abs=per_epoch)
    assert options.tolerance > 0


def test_batches_follow_the_number_of_rows() -> None:
    assert [table_options(rows, {}).batch_size for rows in (30, 1000, 5000, 10**6)] == [64, 128, 512, 512]
    assert table_options(10**6, {}, recipe=TARGET_RECIPE).batch_size == 256


def test_chosen_settings_stay() -> None:
    options = table_options(1000, {"max_epochs": 3, "batch_size": 100, "learning_rate": 0.01})
    assert (options.max_epochs, options.batch_size, options.learning_rate) == (3, 100, 0.01)


def test_the_number_of_components_follows_the_number_of_rows() -> None:
    found = [TABLE_RECIPE.components(rows, 0.0) for rows in (10, 160, 1000, 5000, 16_384, 10**6)]
    assert found == [4, 11, 39, 88, 160, 256]


def test_tables_of_numbers_have_more_components() -> None:
    assert [TABLE_RECIPE.components(10_000, share) for share in (0.3, 0.4, 1.0)] == [125, 200, 200]


def test_numbers_with_many_values_are_fine() -> None:
    """More than √100 = 10 different values that are observed; codes are never fine."""
    values = torch.arange(100.0).unsqueeze(-1)
    columns = {"many": values, "ten": values % 10, "hidden": values, "codes": torch.arange(100)}
    assert fine_share(Table(columns, {"hidden": torch.arange(100) < 5})) == 0.25
    assert fine_share(Table({"gaps": torch.full((100, 1), torch.nan)})) == 0


def test_weak_dependences_are_shrunk_more() -> None:
    concentrations = {"a": 1.0, "b": 40.0, "c": 10_000.0}
    assert TABLE_RECIPE.pseudo_rows(concentrations) == {"a": 0.1, "b": 2.0, "c": 5.0}
    assert TARGET_RECIPE.pseudo_rows(concentrations) == {"a": 1.0, "b": 2.0, "c": 20.0}


def test_presence_that_may_be_independent_has_one_chance() -> None:
    """Other variables keep weak dependences, and so does presence where targets are predicted from it."""
    concentrations, both = {"a": 1.0, "b": 40.0}, {"independent": ["a", "b"], "presences": ["b"]}
    assert TABLE_RECIPE.pseudo_rows(concentrations, **both) == {"a": 20.0, "b": 1000.0}
    assert TARGET_RECIPE.pseudo_rows(concentrations, **both) == {"a": 20.0, "b": 20.0}


def test_a_fit_to_the_end_does_not_learn_noise_by_heart() -> None:
    """Independent columns: rows of the fit are hardly more probable than others, also without validation.

    With regularisation that fades the difference is about .45 nats per row.
    """
    seen, other = _noise(300, seed=0), _noise(2000, seed=100)
    table = KDMTable(n_components=16, max_epochs=60, validation_fraction=0.0, random_state=0, device="cpu")
    table.fit(seen)
    assert np.mean(table.score_samples(seen)) - np.mean(table.score_samples(other)) < 0.25


def _noise(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.choice(list("uvwxyz"), rows) for name in "abcd"}
