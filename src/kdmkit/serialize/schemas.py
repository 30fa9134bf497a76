"""The schema of a table in a model file: every value is checked before columns are made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.kinds import KINDS
from kdmkit.estimators.table.frames.storage import BASES
from kdmkit.estimators.table.rule_text import read_statement
from kdmkit.serialize.description import has_type

_LARGEST = 1 << 53


class FieldRule(NamedTuple):
    """What a value must be.

    Attributes:
        kind: its type, as an annotation.
        wanted: the condition in words, "" if there is none.
        holds: the condition.
    """

    kind: Any
    wanted: str = ""
    holds: Callable[[Any], bool] = lambda value: True


def _ascending(values: Any) -> bool:
    return len(values) > 1 and all(a < b for a, b in pairwise(values))


_TEXT = FieldRule(str)
_OBJECT = FieldRule(dict, "an object")
_FLAG = FieldRule(bool)
_NUMBER = FieldRule(float, "a finite number", math.isfinite)
_POSITIVE = FieldRule(float, "a number > 0", lambda x: 0 < x < math.inf)
_SHARE = FieldRule(float, "a number from 0 to 1", lambda x: 0 <= x <= 1)
_STEP = FieldRule(float, "a number ≥ 0", lambda x: 0 <= x < math.inf)
_COUNT = FieldRule(int, "a whole number ≥ 0", lambda n: 0 <= n <= _LARGEST)
_SIZE = FieldRule(int, "a whole number ≥ 1", lambda n: 1 <= n <= _LARGEST)
_KNOTS = FieldRule(list[float], "two or more numbers in ascending order", _ascending)
_NUMBERS = FieldRule(list[float], "finite numbers", lambda values: all(map(math.isfinite, values)))
_BASE = FieldRule(str, f"one of {', '.join(BASES)}", lambda text: text in BASES)

_PARTS: dict[str, dict[str, FieldRule]] = {
    "codes": {"numbers": FieldRule(list[float], "one or more numbers", bool), "smoothing": _SHARE},
    "numbers": {
        **{"knots": _KNOTS, "scores": _KNOTS, "step": _STEP, "origin": _NUMBER, "masses": _FLAG},
        **{"low": FieldRule(float | None), "high": FieldRule(float | None), "atoms": _NUMBERS},
        **{"shift": _NUMBER, "scale": _POSITIVE},
    },
    "circle": {"period": _SIZE},
    "ranks": {"numbers": _KNOTS, "places": _OBJECT},
}
_CALENDAR = {
    "digits": FieldRule(list[str], "one or more names", bool),
    "sizes": FieldRule(list[int], "whole numbers ≥ 0", lambda sizes: all(0 <= n <= _LARGEST for n in sizes)),
    "clock": _COUNT,
}
_KIND = FieldRule(str, "a kind of columns", lambda kind: kind in (*KINDS, "empty"))
_CODECS: dict[str, dict[str, FieldRule]] = {
    "numbers": {"name": _TEXT, "kind": _KIND, "base": _BASE, "share": _SHARE, "part": _OBJECT},
    "levels": {
        **{"name": _TEXT, "kind": _KIND, "base": _BASE, "share": _SHARE, "spread": _SHARE},
        **{"ordered": _FLAG, "levels": FieldRule(list[str | float], "one or more levels", bool)},
    },
    "dates": {
        **{"name": _TEXT, "share": _SHARE, "text": FieldRule(str | None)},
        **{
            "calendar": _OBJECT,
            "parts": FieldRule(list[dict[str, Any | dict[str, Any]]], "one or more parts", bool),
        },
    },
    "times": {"name": _TEXT, "share": _SHARE, "clock": _SIZE, "part": _OBJECT},
    "derived": {"inner": _OBJECT, "steps": _OBJECT, "exceptions": _SHARE},
    "left out": {"name": _TEXT, "kind": _KIND, "constant": FieldRule(str | float | None)},
}
_KEYS: dict[str, dict[str, FieldRule]] = {
    "numbered": {"prefix": _TEXT, "suffix": _TEXT}
    | {"width": FieldRule(int, "from 0 to 15", range(16).__contains__)}
    | {"last": FieldRule(int, "a whole number < 2^62", lambda n: abs(n) < 1 << 62)},
    "coded": {
        "places": FieldRule(list[str], "one or more texts that are not empty", lambda v: bool(v) and all(v))
    },
}
_STORAGE = {
    **{"native": _TEXT, "objects": _TEXT, "unit": _TEXT, "zone": _TEXT, "texts": _TEXT},
    **{
        "scale": FieldRule(int | None),
        "precision": FieldRule(int | None),
        "digits": _COUNT,
        "ordered": _FLAG,
    },
    **{"categories": FieldRule(list[str | float] | None), "markers": FieldRule(list[str])},
}
_COLUMN = {"codec": _OBJECT, "storage": _OBJECT} | {
    "kind": _KIND,
    "why": _TEXT,
    "variables": FieldRule(list[str]),
    "missing": _SHARE,
}
_POWERS = FieldRule(
    list[list[str | int]],
    "pairs of a text and a power of ten",
    lambda pairs: all(len(pair) == 2 and type(pair[0]) is str and type(pair[1]) is int for pair in pairs),
)
_STEPS = {
    "cuts": FieldRule(
        list[float], "numbers in ascending order", lambda cuts: all(a < b for a, b in pairwise(cuts))
    ),
    "codes": FieldRule(list[int], "one or more codes", bool),
    "missing": FieldRule(int),
}
_PRESENCE = {"name": _TEXT, "smoothing": _SHARE}
_RULE = {"text": _TEXT, "n_rows": _COUNT, "exceptions": _COUNT, "is_given": _FLAG}
_SCHEMA = {"backend": _TEXT, "labels": FieldRule(list[str | int])}
_MISSING = FieldRule(str, '"outcome" or "unknown"', lambda text: text in ("outcome", "unknown"))
_BROKEN = FieldRule(str, '"impossible" or "rare"', lambda text: text in ("impossible", "rare"))
_WRITINGS = {
    "times": {"seconds": _FLAG, "padded": _FLAG},
    "numbers": {
        **{
            "prefix": _TEXT,
            "suffix": _TEXT,
            "thousands": _TEXT,
            "point": _TEXT,
            "plus": _FLAG,
            "bare": _FLAG,
        },
        **{"least_decimals": _COUNT, "most_decimals": _COUNT, "negative": _TEXT, "powers": _POWERS},
    },
}


def check_schema(config: Any) -> None:
    """Raises unless a schema's description has values of the right types that a column may have."""
    _check_object(
        "schema",
        config,
        _SCHEMA,
        {"missing": _MISSING, "broken_rules": _BROKEN, "rules": FieldRule(list[dict[str, Any]])},
    )
    for i, rule in enumerate(config.get("rules", ())):
        _check_object(f"schema.rules[{i}]", rule, _RULE)
        read_statement(rule["text"], None)
    columns = config.get("columns")
    if not isinstance(columns, list) or not columns:
        raise TypeError(bad_argument("schema.columns", "a list of columns", repr(columns)))
    for i, column in enumerate(columns):
        _check_column(f"schema.columns[{i}]", column)
    if len(columns) != len(config["labels"]):
        wanted = f"{len(columns)} names, one for each column"
        raise ValueError(bad_argument("schema.labels", wanted, len(config["labels"])))


_CLOCK = {
    "unit": FieldRule(str, "a unit of times", lambda u: u in ("rows", "numbers", "microseconds", "months")),
    "step": _POSITIVE,
    "origin": _NUMBER,
}
_TIMELINE = {
    "key": FieldRule(str | None),
    "time": FieldRule(str | None),
    "storages": _OBJECT,
    "clock": _OBJECT,
}


def check_timeline(config: Any, key: Any, time: Any) -> None:
    """Raises unless a description of keys and times has values of the right types, and these names."""
    _check_object("timeline", config, _TIMELINE)
    _check_object("timeline.clock", config["clock"], _CLOCK)
    if (config["key"], config["time"]) != (key, time):
        raise ValueError(bad_argument("timeline", f"key {key!r} and time {time!r}", "other names"))
    names = {name for name in (key, time) if name is not None}
    if set(config["storages"]) != names:
        raise ValueError(bad_argument("timeline.storages", f"those of {sorted(names)}", "others"))
    for name, storage in config["storages"].items():
        _check_storage(f"timeline.storages.{name}", storage)


def _check_column(place: str, column: Any) -> None:
    _check_object(place, column, _COLUMN)
    codec, storage = column["codec"], column["storage"]
    _check_object(f"{place}.codec", codec, _rules(f"{place}.codec", codec, "codec", _CODECS))
    if codec["codec"] == "derived":
        _check_derived(f"{place}.codec", codec)
        codec = codec["inner"]
    for name, part in [("part", codec.get("part")), *(("parts", part) for part in codec.get("parts", ()))]:
        if name in codec:
            _check_part(f"{place}.codec.{name}", part)
    if codec.get("keys") is not None:
        _check_object(
            f"{place}.codec.keys", codec["keys"], _rules(f"{place}.codec.keys", codec["keys"], "form", _KEYS)
        )
    if "calendar" in codec:
        _check_object(f"{place}.codec.calendar", codec["calendar"], _CALENDAR)
    if column.get("presence") is not None:
        _check_object(f"{place}.presence", column["presence"], _PRESENCE, {"texts": FieldRule(list)})
    _check_storage(f"{place}.storage", storage)


def _check_storage(place: str, storage: Any) -> None:
    _check_object(place, storage, {"base": _BASE}, _STORAGE)
    if storage.get("writing") is not None:
        here = f"{place}.writing"
        _check_object(
            here, storage["writing"], {"writes": _TEXT}, _rules(here, storage["writing"], "writes", _WRITINGS)
        )


def _check_part(place: str, part: Any) -> None:
    _check_object(place, part, _rules(place, part, "part", _PARTS))
    if "places" in part:
        _check_object(f"{place}.places", part["places"], _PARTS["numbers"])


def _check_derived(place: str, codec: Any) -> None:
    """A function: its steps, and codes of the column's own codec."""
    inner, steps = codec["inner"], codec["steps"]
    rules = {name: _CODECS[name] for name in ("numbers", "levels")}
    _check_object(f"{place}.inner", inner, _rules(f"{place}.inner", inner, "codec", rules))
    _check_object(f"{place}.steps", steps, _STEPS)
    if len(steps["codes"]) != len(steps["cuts"]) + 1:
        wanted = f"{len(steps['cuts']) + 1} codes, one more than there are cuts"
        raise ValueError(bad_argument(f"{place}.steps", wanted, len(steps["codes"])))
    n = len(inner["levels"] if "levels" in inner else inner["part"].get("numbers", ()))
    if not all(-1 <= code < n for code in [*steps["codes"], steps["missing"]]):
        raise ValueError(bad_argument(f"{place}.steps", f"codes from −1 to {n - 1}", "others"))


def _rules(
    place: str, value: Any, key: str, every: Mapping[str, dict[str, FieldRule]]
) -> dict[str, FieldRule]:
    """The rules for an object by the entry that names its class."""
    name = value.get(key) if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in every:
        raise ValueError(bad_argument(f"{place}.{key}", f"one of {', '.join(every)}", repr(name)))
    return every[name]


def _check_object(
    place: str, value: Any, needed: Mapping[str, FieldRule], optional: Mapping[str, FieldRule] | None = None
) -> None:
    if not isinstance(value, dict):
        raise TypeError(bad_argument(place, "an object", repr(value)))
    for name, rule in {**needed, **(optional or {})}.items():
        if name not in value:
            if name in needed:
                raise ValueError(bad_argument(place, f"an entry {name!r}", ", ".join(value)))
            continue
        entry = value[name]
        if not has_type(entry, rule.kind):
            wanted = rule.wanted or getattr(rule.kind, "__name__", str(rule.kind))
            raise TypeError(bad_argument(f"{place}.{name}", wanted, repr(entry)))
        if entry is not None and not rule.holds(entry):
            raise ValueError(bad_argument(f"{place}.{name}", rule.wanted, repr(entry)))
