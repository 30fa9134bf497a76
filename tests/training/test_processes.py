"""Two processes do what one does."""

from itertools import chain
from typing import Any

import pytest
import torch

import typecheck
from helpers import two_processes
from training.problems import furthest
from training.several import everything


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    return two_processes("training.several", tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What this process finds alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with typecheck.off():
        computed = everything(0, tmp_path_factory.mktemp("one"))
    torch.set_num_threads(threads)
    return computed


def test_batches_are_split_without_duplicates(one, two):
    """Every step: the rows of the two processes together are those of the one, none twice."""
    alone = one["recorded"]["train"]
    shares = zip(two[0]["recorded"]["train"], two[1]["recorded"]["train"], strict=True)
    together = [[*first, *second] for first, second in shares]
    assert len(together) == len(alone) == 6
    for batch, wanted in zip(together, alone, strict=True):
        assert len(batch) == len(set(batch))
        assert set(batch) == set(wanted)
    sizes = [[len(batch) for batch in result["recorded"]["train"]] for result in two]
    assert all(abs(a - b) <= 1 for a, b in zip(*sizes, strict=True))


def test_validation_rows_are_split_without_duplicates(two):
    shown = [sorted(chain(*result["recorded"]["validation"][:1])) for result in two]
    assert sorted([*shown[0], *shown[1]]) == list(range(23))


def test_twenty_weighted_steps(one, two):
    wanted = one["twenty steps"]
    for result in two:
        assert furthest(result["twenty steps"]["state"], wanted["state"]) < 1e-9
        for entry, other in zip(result["twenty steps"]["history"], wanted["history"], strict=True):
            assert entry == pytest.approx(other, rel=1e-9)


def test_processes_agree_to_the_last_bit(two):
    for name in ("twenty steps", "two phases", "resumed", "statistics", "averaged", "averaged statistics"):
        assert furthest(two[0][name]["state"], two[1][name]["state"]) == 0, name
    assert two[0]["twenty steps"]["history"] == two[1]["twenty steps"]["history"]


def test_averaged_weights(one, two):
    wanted = one["averaged"]
    assert furthest(two[0]["averaged"]["state"], wanted["state"]) < 1e-9
    for entry, other in zip(two[1]["averaged"]["history"], wanted["history"], strict=True):
        assert entry == pytest.approx(other, rel=1e-9)


def test_phases_that_leave_parameters_unused(one, two):
    assert furthest(two[0]["two phases"]["state"], one["two phases"]["state"]) < 1e-9


@pytest.mark.parametrize("name", ["noisy", "dropout", "bags"])
def test_random_numbers_are_drawn_by_row(one, two, name):
    assert furthest(two[0][name]["state"], one[name]["state"]) < 1e-6
    assert furthest(two[1][name]["state"], one[name]["state"]) < 1e-6


def test_resuming(one, two):
    """The main process reads and writes; the others need not see the files."""
    assert [result["resumed"]["files"] for result in two] == [True, False]
    assert len(two[1]["resumed"]["history"]) == 4
    assert furthest(two[0]["resumed"]["state"], one["resumed"]["state"]) < 1e-9


def test_every_process_refuses_another_fits_checkpoint(two):
    for result in two:
        assert "checkpoint_dir: expected a checkpoint of this configuration" in result["refused"]["error"]


def test_a_whole_fit_scores_the_same(one, two):
    assert one["classifier"]["accuracy"] > 0.9
    for result in two:
        assert result["classifier"]["accuracy"] == pytest.approx(one["classifier"]["accuracy"], abs=0.01)
    assert two[0]["classifier"] == two[1]["classifier"]
