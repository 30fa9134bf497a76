"""What tests need from the start: Triton's interpreter, and names for examples in docstrings."""

import doctest
import importlib.util
import os
from functools import cache
from importlib.metadata import version
from typing import Any

import pytest

# Triton's kernels run in its interpreter, on the CPU. This has to be set before anything imports Triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Triton comes with CUDA builds of torch and, for development, on Linux. Without it these cannot be imported.
# The interpreter of older releases (3.2 and 3.4 were tried) does not find constants of a module.
_OLDEST_INTERPRETER = (3, 7)
# An import of this module is an error that says what replaced it.
collect_ignore_glob = ["src/kdmkit/datasets.py"]
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob += ["tests/ops_triton/*", "src/kdmkit/ops/triton/*"]
elif tuple(map(int, version("triton").split(".")[:2])) < _OLDEST_INTERPRETER:
    collect_ignore_glob += ["tests/ops_triton/*", "tests/compiled/test_triton.py"]

# The page is an extra.
if importlib.util.find_spec("starlette") is None:
    collect_ignore_glob += ["src/kdmkit/explore", "tests/browser", "tests/explore"]


@cache
def example_table() -> Any:
    """`table` of the example of `KDMTable`: the fit of that docstring, once in a process."""
    import kdmkit

    names: dict[str, Any] = {"KDMTable": kdmkit.KDMTable}
    for example in doctest.DocTestParser().get_examples(kdmkit.KDMTable.__doc__ or ""):
        exec(example.source, names)
        if "table" in names:
            return names["table"]
    raise AssertionError("the example of KDMTable fits no `table`")


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Examples that say "with `table` as in the example of `KDMTable`" find it."""
    test = getattr(request.node, "dtest", None)
    if isinstance(test, doctest.DocTest) and "With `table` as in the example of" in (test.docstring or ""):
        doctest_namespace["table"] = example_table()
