"""Packages of the extra `table`, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str) -> Any:
    """A module of the extra `table`; where it is not installed, the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        text = f"{package} is needed for tables of this kind: pip install 'kdmkit[table]'"
        raise ImportError(text, name=package) from error
