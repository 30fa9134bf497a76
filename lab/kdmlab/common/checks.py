"""Checks of arguments: errors name the argument, what was expected and what came."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

_Choice = TypeVar("_Choice")


def bad_argument(argument: str, wanted: str, got: object) -> str:
    """The text of every error about an argument.

    >>> bad_argument("sigma", "> 0", -1.0)
    'sigma: expected > 0, got -1.0'
    """
    return f"{argument}: expected {wanted}, got {got}"


def check_choice(argument: str, value: object, choices: Iterable[_Choice]) -> _Choice:
    """Returns the choice that equals a value, or raises."""
    options = list(choices)
    if value not in options:
        raise ValueError(bad_argument(argument, "one of " + ", ".join(map(repr, options)), repr(value)))
    return next(option for option in options if option == value)


def check_path(argument: str, path: object) -> None:
    """Raises if an argument is no path."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(bad_argument(argument, "text or a pathlib.Path", type(path).__name__))
