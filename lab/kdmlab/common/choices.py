"""Choices of a command's options: devices, and some of several names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from kdmkit.training import Device
from kdmlab.common.checks import bad_argument, check_choice

_Name = TypeVar("_Name", bound=str)
_DEVICES: tuple[Device, ...] = ("auto", "cpu", "cuda")


def some_of(argument: str, wanted: Sequence[str], allowed: Sequence[_Name]) -> Sequence[_Name]:
    """The names asked for, in the order of `known`; all of them where none was.

    >>> some_of("dataset", ["jester", "audio"], ["audio", "dna", "jester"])
    ['audio', 'jester']
    """
    unknown = [name for name in wanted if name not in allowed]
    if unknown:
        raise ValueError(bad_argument(argument, f"some of {', '.join(allowed)}", ", ".join(unknown)))
    return [name for name in allowed if name in wanted] or allowed


def chosen_device(device: str) -> Device:
    """Replaces "auto" by a device: results depend on it, so it is part of what is kept."""
    choice = check_choice("device", device, _DEVICES)
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return choice
