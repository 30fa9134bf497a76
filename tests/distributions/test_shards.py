"""Components that are divided among two processes: the answers of one."""

from pathlib import Path
from typing import Any

import pytest
import torch

import kdmkit as kdm
import typecheck
from distributions.sharded import CASES, M, density, questions
from helpers import two_processes


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    for name, (make, _) in CASES.items():
        kdm.save(make(), folder / name)
    kdm.save(kdm.nn.DensityLayer(2, 3), folder / "other")
    kdm.save(kdm.KDM(torch.zeros(1, 1), None, kdm.RBF(1.0)), folder / "few")
    return two_processes("distributions.sharded", folder, timeout=240)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_answer_as_one(two: Any, name: str) -> None:
    make, ask = CASES[name]
    with typecheck.off():
        wanted = ask(make())
    assert two[0][name].keys() == wanted.keys()
    for question, answer in wanted.items():
        for found in two:
            torch.testing.assert_close(found[name][question], answer, rtol=0, atol=1e-5, msg=question)


def test_both_processes_have_the_same_answers(two: Any) -> None:
    for name in CASES:
        for question, answer in two[0][name].items():
            assert torch.equal(answer, two[1][name][question]), (name, question)


def test_parts_that_processes_made_themselves(two: Any) -> None:
    with typecheck.off():
        wanted = questions(density(torch.float64))
    for question, answer in wanted.items():
        torch.testing.assert_close(two[1]["parts"][question], answer, rtol=1e-9, atol=1e-9)


def test_each_process_holds_its_share(two: Any) -> None:
    assert [found["components"] for found in two] == [M // 2, M - M // 2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weights", "a KDM that is whole in this process, got one of 2 shards"),
        ("sample", "one of 2 shards"),
        ("icdf", "one of 2 shards"),
        ("save", "one of 2 shards"),
        ("evidence", "evidence: expected a KDM that is whole in this process"),
        ("twice", "one of 2 shards"),
        ("again", "rho: expected given weights, without a batch"),
        ("kernels", "rho: expected in process 1 what process 0 has"),
        ("class", "a saved KDM or JointKDM, got DensityLayer"),
        ("absent", "process 1: "),
        ("files", "path: expected one file for all processes, got another in process 1"),
        ("few", "at least 2 components"),
    ],
)
def test_refusals(two: Any, name: str, message: str) -> None:
    for found in two:
        assert message in found["refusals"][name]


def test_without_processes() -> None:
    with pytest.raises(ValueError, match="group: expected processes that torchrun started"):
        kdm.join_shards(kdm.KDM(torch.zeros(2, 1), None, kdm.RBF(1.0)))


def test_own_bytes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reads its own rows of a file, not those of others."""
    from kdmkit.serialize import shards

    many = kdm.KDM(torch.rand(4000, 3), None, kdm.RBF(torch.rand(4000, 3) + 1))
    kdm.save(many, tmp_path / "rho")

    class Half:
        rank, count = 1, 2

    read: list[int] = []
    original = shards._Reader._read

    def counted(self: Any, name: str, rows: slice) -> Any:
        tensor = original(self, name, rows)
        read.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(shards._Reader, "_read", counted)
    with (tmp_path / "rho").open("rb") as stream, typecheck.off():
        shard = shards._Shard.of(tmp_path / "rho", stream, Half())
    assert torch.equal(shard.rho.components, many.components[2000:])
    torch.testing.assert_close(shard.rho.kernel.bandwidth.value, many.kernel.bandwidth.value[2000:])
    assert sum(read) < 0.51 * (tmp_path / "rho").stat().st_size
