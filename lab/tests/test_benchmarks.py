"""Scripts in `benchmarks/` use internals of kdmkit: here they are imported, and small parts of them run."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module of a script."""
    name = f"benchmarks_{request.param}"
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("script", ["gpu_check"], indirect=True)
def test_the_gpu_check_is_imported(script: Any) -> None:
    assert script.__doc__


STEPS = [
    "the short path of labels",
    "written-out derivatives",
    "one set of exponentials for p(x) and p(x, y)",
    "float32 products where they are exact enough",
    "buffers that stay in the caches",
    "exponentials by powers of two",
]


@pytest.mark.filterwarnings("ignore:PyKeOps is left out")
@pytest.mark.parametrize("script", ["cpu_steps"], indirect=True)
@pytest.mark.parametrize("kind", ["training step", "density"])
def test_results_are_the_same_without_an_optimisation(script: Any, kind: str) -> None:
    case = script.Case(kind, 16, 32, 4, 3 if kind == "training step" else 1, torch.device("cpu"))
    wanted = case.peers()["kdmkit"](case.inputs())()
    for step in STEPS:
        with script.taken_back(step):
            torch.testing.assert_close(case.peers()["kdmkit"](case.inputs())(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("script", ["tree"], indirect=True)
def test_both_ways_to_build_a_tree_agree(script: Any) -> None:
    torch.manual_seed(0)
    model = script.Model(script.Case(8, 5, 4), torch.device("cpu"))
    wanted = model.built(checked=True).log_prob(**model.values)
    torch.testing.assert_close(model.made().log_prob(**model.values), wanted)
