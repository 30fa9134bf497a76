"""Settings that all tests share."""

import importlib.util
import random
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import settings

import typecheck

settings.register_profile("kdmkit", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("kdmkit")

# The oldest dependencies are tested without the linters.
collect_ignore = [] if importlib.util.find_spec("importlinter") else ["import_contracts.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, default=None, help="a seed: run the tests in a random order")
    parser.addoption("--check-all", action="store_true", help="check annotations in all cases of a test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests run in the order of the files, or with `--shuffle` in a random order."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)


@pytest.fixture(autouse=True)
def _sampled_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks of annotations take much time: they run in a third of the cases of a parametrized test."""
    is_case = hasattr(request.node, "callspec") and not request.config.getoption("--check-all")
    if is_case and zlib.crc32(request.node.nodeid.encode()) % 3:
        with typecheck.off():
            yield
    else:
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """A test in which annotations are not checked, see `typecheck.off`."""
    with typecheck.off():
        yield
