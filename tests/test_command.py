"""The entry point of the command `kdmkit`: extras, and commands of earlier versions."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import kdmkit as kdm
from kdmkit import cli


def stop(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that the command prints before it ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["kdmkit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize("command", ["bench", "demo", "reproduce"])
def test_moved_commands_name_their_replacement(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"is now kdmlab {command}:" in stop([command, "--help"], monkeypatch, capsys)


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_the_extra_the_command_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == missing else find_spec(name))
    said = stop(["ask", "model", "P(a)"], monkeypatch, capsys)
    assert said == "the command kdmkit needs the extra table: pip install 'kdmkit[table]'\n"


#: The command with matplotlib as if it were not installed. scikit-learn loads parts of SciPy.
ASK = """
import sys
import sklearn.base
sys.modules["matplotlib"] = None
before = {name for name in sys.modules if name.startswith("scipy.")}
from kdmkit.cli import main
try:
    main()
finally:
    print("more of SciPy:", {name for name in sys.modules if name.startswith("scipy.")} - before)
"""


def test_a_question_needs_no_matplotlib_and_no_more_of_scipy(tmp_path: Path) -> None:
    table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit({"a": [1.0, 2.5, 3.0, 4.0] * 5})
    kdm.save(table, tmp_path / "model")
    command = [sys.executable, "-c", ASK, "ask", str(tmp_path / "model"), "P(a < 2)"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "probability" in result.stdout
    assert "more of SciPy: set()" in result.stdout


def test_the_entry_point_imports_neither_typer_nor_rich() -> None:
    code = "import sys, kdmkit.cli; print({'typer', 'rich'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
