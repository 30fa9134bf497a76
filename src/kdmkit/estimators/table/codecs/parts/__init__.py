"""Parts of a column: each is one variable of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kdmkit.estimators.table.codecs.parts.base import Events, Known, Part, listed
from kdmkit.estimators.table.codecs.parts.circle import CirclePart
from kdmkit.estimators.table.codecs.parts.codes import CodePart
from kdmkit.estimators.table.codecs.parts.numbers import NumberPart

__all__ = [
    "CirclePart",
    "CodePart",
    "Events",
    "Known",
    "NumberPart",
    "Part",
    "listed",
    "part_from_config",
]

_PARTS: dict[str, Any] = {part.kind: part for part in (CodePart, NumberPart, CirclePart)}


def part_from_config(config: Mapping[str, Any]) -> Part:
    """The part that `config` describes."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items() if name != "part"}
    for end, infinity in (("low", -math.inf), ("high", math.inf)):
        if end in fields and fields[end] is None:
            fields[end] = infinity
    part: Part = _PARTS[config["part"]](**fields)
    return part
