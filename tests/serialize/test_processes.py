"""Several processes on one path, and processes that are killed."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

import kdmkit as kdm

#: Saves a KDM again and again; its components all hold the process's number. A line says that it started.
SAVER = """
import sys, torch, kdmkit as kdm
path, number, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
rho = kdm.KDM(torch.full((20_000, 2), number), None, kdm.RBF(1.0))
kdm.save(rho, path)
print("started", flush=True)
import time
end = time.monotonic() + seconds
while time.monotonic() < end:
    kdm.save(rho, path)
"""


def saver(path: Path, number: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SAVER, str(path), str(number), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def number_in(path: Path) -> float:
    """The number of the process that saved the model, which has to be whole."""
    numbers = kdm.load(path).components.unique()
    assert numbers.numel() == 1
    return numbers.item()


def test_two_savers_and_a_loader(tmp_path: Path) -> None:
    path = tmp_path / "rho"
    savers = [saver(path, number, seconds=3) for number in (1, 2)]
    for process in savers:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    found = []
    while any(process.poll() is None for process in savers):
        found.append(number_in(path))
    for process in savers:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    assert set(found) <= {1.0, 2.0}
    assert len(found) > 5
    assert [p.name for p in tmp_path.iterdir()] == ["rho"]


def test_killed_saves_leave_a_whole_model_and_no_litter(tmp_path: Path) -> None:
    path, rng = tmp_path / "rho", random.Random(0)
    kdm.save(kdm.KDM(torch.zeros(20_000, 2), None, kdm.RBF(1.0)), path)
    processes = [saver(path, number, seconds=60) for number in range(1, 6)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert number_in(path) in range(6)
    # What the killed ones left is gone after the next save.
    (tmp_path / f"{leftover_prefix(tmp_path)}0123456789abcdef.tmp").write_bytes(b"half a mod")
    kdm.save(kdm.KDM(torch.full((3, 2), 7.0), None, kdm.RBF(1.0)), path)
    assert number_in(path) == 7
    assert [p.name for p in tmp_path.iterdir()] == ["rho"]


def leftover_prefix(folder: Path) -> str:
    """How the names of the temporary files of `rho` start, as a killed save shows them."""
    name = ""
    while not name:
        process = saver(folder / "rho", 5, seconds=60)
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None and not name:
            name = next((p.name for p in folder.iterdir() if p.name != "rho"), "")
        process.kill()
        process.communicate()
    return name.rpartition("-")[0] + "-"
