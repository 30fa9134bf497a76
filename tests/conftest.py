"""Settings that all tests share."""

import importlib.util
from collections.abc import Iterator

import pytest
from hypothesis import settings

import typecheck

settings.register_profile("kdmkit", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("kdmkit")

# The oldest dependencies are tested without the linters.
collect_ignore = [] if importlib.util.find_spec("importlinter") else ["import_contracts.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test comes first: workers then end at about the same time."""
    items.sort(key=lambda item: item.path.name != "test_compiled.py")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """A test in which annotations are not checked, see `typecheck.off`."""
    with typecheck.off():
        yield
