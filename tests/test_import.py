"""What `import kdmkit` loads, and that names which load later are there all the same."""

import subprocess
import sys

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


def loaded(statement: str, modules: list[str]) -> list[str]:
    """Which of the modules a statement loads in a fresh process, beyond what torch and NumPy load."""
    return eval(
        run(
            "import sys, numpy, torch; before = set(sys.modules)\n"
            f"{statement}\n"
            f"print([name for name in {modules} if name in sys.modules and name not in before])"
        )
    )


def test_importing_is_light() -> None:
    assert loaded("import kdmkit", HEAVY) == []


def test_a_distribution_needs_no_heavy_module() -> None:
    use = "import kdmkit as kdm; kdm.KDM(torch.zeros(3, 2), None, kdm.RBF(1.0)).log_prob(torch.zeros(1, 2))"
    assert loaded(use, HEAVY) == []


def test_the_help_of_the_command_is_light() -> None:
    lighter = ("kdmkit.cli", "rich", "typer")
    use = (
        "from typer.testing import CliRunner; from kdmkit.cli.commands import app\n"
        "CliRunner().invoke(app, ['--help'])"
    )
    assert loaded(use, [name for name in HEAVY if name not in lighter]) == []


@pytest.mark.parametrize("name", kdmkit.__all__)
def test_every_public_name_can_be_used_at_once(name: str) -> None:
    assert getattr(kdmkit, name) is not None
    assert name in dir(kdmkit)


def test_lazy_names_are_those_of_their_modules() -> None:
    code = (
        "import kdmkit as kdm; model = kdm.KDMClassifier; training = kdm.training\n"
        "import kdmkit.estimators, kdmkit.training, kdmkit.serialize\n"
        "print(model is kdmkit.estimators.KDMClassifier, training is kdmkit.training,"
        " kdm.load is kdmkit.serialize.load)"
    )
    assert run(code) == "True True True"


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
