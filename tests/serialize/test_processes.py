"""Several processes on one path, and processes that are killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

#: What both scripts share. A saved KDM's components all hold the number of the process that saved it.
START = """
import json, os, random, signal, sys, time
import torch, kdmkit as kdm

torch.set_num_threads(1)
path, folder = sys.argv[1], os.path.dirname(sys.argv[1])

def save(number):
    kdm.save(kdm.KDM(torch.full((20_000, 2), float(number)), None, kdm.RBF(1.0)), path)

def found():
    return kdm.load(path).components.unique().tolist()

def start(number, seconds):
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            save(number)
        os._exit(0)
    return pid

save(0)
found()
"""

TOGETHER = """
savers, models = [start(number, 2) for number in (1, 2)], []
end = time.monotonic() + 2
while time.monotonic() < end:
    models.append(found())
codes = [os.waitpid(pid, 0)[1] for pid in savers]
print(json.dumps({"codes": codes, "models": models}))
"""

KILLED = """
rng, models, litter = random.Random(0), [], []
# Until some have been killed in the middle of a file.
while len(models) < 10 or (not litter and len(models) < 300):
    pid = start(len(models) + 1, 60)
    time.sleep(rng.uniform(0, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    models.append(found())
    litter += set(os.listdir(folder)) - {"rho"}
save(0)
print(json.dumps({"models": models, "litter": litter}))
"""


def run(script: str, path: Path) -> Any:
    command = [sys.executable, "-c", START + script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_two_savers_and_a_loader(tmp_path: Path) -> None:
    result = run(TOGETHER, tmp_path / "rho")
    assert result["codes"] == [0, 0]
    assert {tuple(numbers) for numbers in result["models"]} <= {(0,), (1,), (2,)}
    assert len(result["models"]) > 5
    assert [p.name for p in tmp_path.iterdir()] == ["rho"]


def test_killed_saves_leave_a_whole_model_and_no_litter(tmp_path: Path) -> None:
    result = run(KILLED, tmp_path / "rho")
    for number, numbers in enumerate(result["models"], 1):
        assert len(numbers) == 1
        assert numbers[0] in range(number + 1)
    # Some were killed in the middle of a file; the last save removed what they left.
    assert result["litter"]
    assert [p.name for p in tmp_path.iterdir()] == ["rho"]
