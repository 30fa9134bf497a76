"""The entry point of the command `kdmkit`: extras, and commands of earlier versions."""

import subprocess
import sys
from pathlib import Path

import pytest

import kdmkit as kdm

#: Blocks modules as if they were not installed, then runs the command.
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
import importlib.util
spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {blocked} else spec(name, *a)
from kdmkit.cli import main
main()
"""


def run(*arguments: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED.format(blocked=blocked), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["bench", "demo", "reproduce"])
def test_moved_commands_name_their_replacement(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"kdmlab {command}" in result.stderr


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    result = run("ask", "model", "P(a)", blocked=(missing,))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "the command kdmkit needs the extra table: pip install 'kdmkit[table]'\n"


def test_a_question_needs_no_matplotlib(tmp_path: Path) -> None:
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit({"a": [1.0, 2.5, 3.0, 4.0] * 5})
    kdm.save(table, tmp_path / "model")
    result = run("ask", str(tmp_path / "model"), "P(a < 2)", blocked=("matplotlib",))
    assert result.returncode == 0, result.stderr
    assert "probability" in result.stdout


def test_commands_load_no_more_of_scipy_than_scikit_learn_does() -> None:
    code = (
        "import sys, sklearn.base\n"
        "before = {name for name in sys.modules if name.startswith('scipy.')}\n"
        "import kdmkit.cli.commands, kdmkit.estimators, kdmkit.serialize\n"
        "print({name for name in sys.modules if name.startswith('scipy.')} - before)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
