"""These tests need the extra `lightning`; `make test-lightning` runs them."""

import importlib.util
from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if importlib.util.find_spec("lightning") is None else None
