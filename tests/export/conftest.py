"""These tests need the extra `export`; `make test-export` runs them."""

import importlib.util
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`torch.export` cannot trace the checks of annotations, which know no symbolic sizes."""
    missing = any(importlib.util.find_spec(name) is None for name in ("onnxruntime", "onnxscript"))
    return True if missing or config.getoption("--jaxtyping-packages") else None
