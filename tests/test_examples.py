"""The examples run, print their result, and draw their figure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# A line that each example prints.
LINES = {
    "density": "integral over the plane: 1.0000",
    "classify_and_generate": "draws of sun classified as sun",
    "regression_bands": "throw: 90 % intervals hold",
    "label_proportions": "votes predicted correctly",
    "own_encoder": "novelty AUROC of log p(z)",
    "uncertain_inputs_and_chains": "a bird of 18 g",
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LINES)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_example(name: str, tmp_path: Path) -> None:
    # Batches are small: threads would wait for each other, and tests run side by side.
    settings = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"}
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert LINES[name] in run.stdout
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
