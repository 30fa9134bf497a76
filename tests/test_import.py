"""What `import kdmkit` loads, and that names which load later are there all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

import kdmkit

#: They are loaded when they are first used: most take a noticeable part of a second to import.
HEAVY = [
    "accelerate",
    "matplotlib",
    "pandas",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "starlette",
    "torch._dynamo",
    "torch._inductor",
    "triton",
    "typer",
    "uvicorn",
    "kdmkit.cli",
    "kdmkit.estimators",
    "kdmkit.explore",
    "kdmkit.metrics",
    "kdmkit.nn",
    "kdmkit.plotting",
    "kdmkit.serialize",
    "kdmkit.training",
]


def run(code: str) -> str:
    """What a fresh process prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


#: Steps of a program, and the modules that none of them may load beyond what torch and NumPy load.
STEPS = {
    "import kdmkit as kdm; kdm.KDM(torch.zeros(3, 2), None, kdm.RBF(1.0)).log_prob(torch.zeros(1, 2))": HEAVY,
    "import kdmkit.plotting": ["matplotlib"],
    "models = kdm.nn.Predictor(kdm.nn.JointLayer(2, 3, 4)), kdm.KDM.from_probs(torch.ones(2) / 2)\n"
    "for model in models: kdm.save(model, path); kdm.load(path)": ["sklearn", "kdmkit.estimators"],
    "training = kdm.training": ["accelerate"],
    # Lazy names are those of their modules.
    "model = kdm.KDMClassifier; import kdmkit.estimators, kdmkit.training, kdmkit.serialize\n"
    "assert model is kdmkit.estimators.KDMClassifier and training is kdmkit.training\n"
    "assert kdm.load is kdmkit.serialize.load": [],
}


def loaded(steps: dict[str, list[str]], path: Path) -> list[list[str]]:
    """Which of its modules every step loads, one step after the other in a fresh process."""
    lines = [f"import numpy, sys, torch; path = {str(path)!r}; before = set(sys.modules); result = []"]
    for statement, modules in steps.items():
        lines += [statement, f"result.append(sorted(({{*sys.modules}} - before) & {{*{modules}}}))"]
    return eval(run("\n".join([*lines, "print(result)"])))


def test_imports_are_light(tmp_path: Path) -> None:
    assert loaded(STEPS, tmp_path / "model") == [[]] * len(STEPS)


def test_the_help_of_the_command_is_light(tmp_path: Path) -> None:
    lighter = ("kdmkit.cli", "rich", "typer")
    use = (
        "from typer.testing import CliRunner; from kdmkit.cli.commands import app\n"
        "CliRunner().invoke(app, ['--help'])"
    )
    assert loaded({use: [name for name in HEAVY if name not in lighter]}, tmp_path) == [[]]


@pytest.mark.parametrize("name", kdmkit.__all__)
def test_every_public_name_can_be_used_at_once(name: str) -> None:
    assert getattr(kdmkit, name) is not None
    assert name in dir(kdmkit)


def test_star_imports_every_public_name() -> None:
    names = {}
    exec("from kdmkit import *", names)
    assert set(kdmkit.__all__) <= set(names)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'kdmkit' has no attribute 'KDMTree'"):
        kdmkit.KDMTree  # noqa: B018


@pytest.mark.parametrize("name", kdmkit._REMOVED)
def test_removed_names_name_their_replacement(name: str) -> None:
    assert name not in kdmkit.__all__
    with pytest.raises(AttributeError, match=f"no attribute '{name}' any more: ") as caught:
        getattr(kdmkit, name)
    assert str(caught.value).endswith(kdmkit._REMOVED[name])


@pytest.mark.parametrize(
    "statement", ["import kdmkit.datasets", "from kdmkit import datasets", "from kdmkit.datasets import load"]
)
def test_a_removed_module_names_its_replacement(statement: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="any more: use the loaders of"):
        exec(statement, {})
