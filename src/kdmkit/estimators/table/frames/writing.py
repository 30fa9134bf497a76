"""Numbers and times as people write them in a column: signs of money, separators, units, brackets."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

_CURRENCY = "$€£¥₹₩₽₺₪฿"
_NUMBER = re.compile(
    rf"""(?P<open>\()?\s* (?P<before>[+\-−]?)\s*
    (?P<prefix>(?:[A-Z]{{0,3}}[{_CURRENCY}]|[A-Z]{{3}}\ )?\s*) (?P<after>[+\-−]?)
    (?P<body>\d+(?:[.,'’ \u00a0\u202f_]\d+)*|[.,]\d+) (?P<exponent>[eE][+-]?\d{{1,3}})?
    (?P<suffix>\s*(?:[%‰°{_CURRENCY}][^\W\d_]*|[^\W\d_][^\d+\-:;,<>=?*#()\[\]]*)?)
    (?P<behind>-?)\s* (?P<close>\))?""",
    re.VERBOSE,
)
_TIME = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?", re.ASCII)
_LONGEST = 64
#: Separators of thousands and decimal points, in the order in which they are tried.
_CONVENTIONS = (
    *((",", "."), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("’", "."), ("_", ".")),
    *(("\u00a0", ","), ("\u00a0", "."), ("\u202f", ","), ("\u202f", ".")),
)
#: Powers of ten that end a number. Those of the second kind are units, unless money comes before them or
#: another power is in the column.
_POWERS = {"k": 3, "K": 3, "thousand": 3, "M": 6, "mn": 6, "mio": 6, "million": 6, "bn": 9, "billion": 9}
_POWERS_OF_MONEY = {"m": 6, "B": 9, "b": 9, "T": 12, "tn": 12, "trillion": 12}
_EVERY_POWER = {**_POWERS, **_POWERS_OF_MONEY}
_EXACT, _MOST_DECIMALS = 1 << 53, 15
# Numbers between .001 and 1 have at most this many digits behind the point where programs write them in full.
_EVERY_DECIMAL = 20

Negative = Literal["before", "after", "behind", "brackets"]


class _Text(NamedTuple):
    """The parts of one number."""

    prefix: str
    body: str
    exponent: str
    suffix: str
    negative: Negative | None
    plus: bool


@dataclass(frozen=True)
class NumberWriting:
    """How the numbers of a column are written, for example `$1,234.50`, `(12 %)`, `1.234,56 €`, `2.5k`.

    Attributes:
        prefix, suffix: signs of money and units, with their spaces.
        thousands: the separator of thousands, "" if there is none.
        point: the decimal point.
        least_decimals, most_decimals: how many digits are behind the point.
        negative: where the sign of negative numbers is: before or after the prefix, behind the number, or
            brackets in place of a sign.
        plus: whether positive numbers have a sign.
        bare: whether numbers below 1 begin with the point.
        powers: ends such as k and M, each with its power of ten.

    >>> writing = NumberWriting.of(["$1,200.00", "($35.50)", "$9.25"])
    >>> writing.read("($1,000)"), writing.write(12345.6), writing.write(-0.5)
    (-1000.0, '$12,345.60', '($0.50)')
    """

    prefix: str = ""
    suffix: str = ""
    thousands: str = ""
    point: str = "."
    least_decimals: int = 0
    most_decimals: int = _MOST_DECIMALS
    negative: Negative = "before"
    plus: bool = False
    bare: bool = False
    powers: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> NumberWriting | None:
        """The writing of most of some texts; None if none of them is a number."""
        parts = [part for part in map(_parts, texts) if part is not None]
        if not parts:
            return None
        prefixes = Counter(part.prefix for part in parts)
        prefix = max(prefixes, key=lambda text: (bool(text.strip()), prefixes[text]))
        powers = _powers([part.suffix.strip() for part in parts], is_money=bool(prefix.strip()))
        suffix = "" if powers else Counter(part.suffix for part in parts).most_common(1)[0][0]
        alike = [part for part in parts if powers or part.suffix.strip() == suffix.strip()]
        thousands, point = _convention([part.body for part in alike], prefix + suffix)
        alike = [part for part in alike if _is_number(part.body, thousands, point)]
        bodies = [part.body for part in alike]
        if not bodies:
            return None
        decimals = [_decimals(part, point) for part in alike]
        signs = Counter(part.negative for part in alike if part.negative)
        return cls(
            prefix=prefix,
            suffix=suffix,
            thousands=thousands if any(thousands in body for body in bodies) else "",
            point=point,
            least_decimals=min(decimals),
            most_decimals=max(decimals),
            negative=signs.most_common(1)[0][0] if signs else "before",
            plus=any(part.plus for part in alike),
            bare=any(body.startswith(point) for body in bodies),
            powers=_written_powers(alike, powers),
        )

    @property
    def is_plain(self) -> bool:
        """Whether numbers are written as programs write them."""
        return not (self.prefix or self.suffix or self.thousands or self.powers) and self.point == "."

    @property
    def base(self) -> str:
        """What the cells are, see `Storage`."""
        return "float"

    # ---- reading

    def read(self, text: str) -> float | None:
        """The number of a text; None if it has none in this writing, or in that of programs."""
        part = _parts(text)
        if part is None or part.prefix.strip() not in ("", self.prefix.strip()):
            return None
        power = _EVERY_POWER.get(part.suffix.strip(), 0) if self.powers else 0
        if not power and part.suffix.strip() not in ("", self.suffix.strip()):
            return None
        if _is_number(part.body, self.thousands, self.point):
            body = part.body.replace(self.thousands, "") if self.thousands else part.body
            body = body.replace(self.point, ".")
        elif _is_number(part.body, "", "."):
            body = part.body
        else:
            return None
        exponent = int(part.exponent[1:]) if part.exponent else 0
        number = float(f"{body}e{exponent + power}")
        return None if math.isinf(number) else -number if part.negative else number

    # ---- writing

    def write(self, number: float) -> str:
        """A number in this writing."""
        size, end = abs(number), self.suffix
        for text, power in self.powers:
            if size >= 10.0**power:
                size, end = size / 10.0**power, text
                break
        digits = np.format_float_positional(
            size, precision=self.most_decimals, min_digits=self.least_decimals, trim="k"
        )
        whole, _, fraction = digits.rstrip(".").partition(".")
        is_negative = number < 0 and float(digits) != 0
        whole = f"{int(whole):,}".replace(",", self.thousands) if self.thousands else whole
        whole = "" if self.bare and whole == "0" and fraction else whole
        return self._signed(f"{whole}{self.point}{fraction}" if fraction else whole, end, is_negative, number)

    def _signed(self, digits: str, end: str, is_negative: bool, number: float) -> str:
        if not is_negative:
            sign = "+" if self.plus and number > 0 else ""
            return f"{sign}{self.prefix}{digits}{end}"
        match self.negative:
            case "brackets":
                return f"({self.prefix}{digits}{end})"
            case "after":
                return f"{self.prefix}-{digits}{end}"
            case "behind":
                return f"{self.prefix}{digits}{end}-"
        return f"-{self.prefix}{digits}{end}"

    # ---- description

    def config(self) -> dict[str, Any]:
        """The fields that differ from their defaults, JSON-ready."""
        fields = {name: value for name, value in asdict(self).items() if value != getattr(_PLAIN, name)}
        powers = {"powers": [list(pair) for pair in self.powers]} if self.powers else {}
        return {"writes": "numbers", **fields, **powers}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> NumberWriting:
        fields = {name: value for name, value in config.items() if name != "writes"}
        fields["powers"] = tuple((str(text), int(power)) for text, power in fields.get("powers", ()))
        return cls(**fields)


_PLAIN = NumberWriting()


@dataclass(frozen=True)
class TimeWriting:
    """How the times of day of a column are written: `9:05`, `09:05`, `09:05:30`.

    Attributes:
        seconds: whether they have seconds.
        padded: whether hours have two digits.
    """

    seconds: bool = False
    padded: bool = True

    @classmethod
    def of(cls, texts: Iterable[str]) -> TimeWriting | None:
        """The writing of texts; None if none of them is a time."""
        times = [match for match in (_TIME.fullmatch(text.strip()) for text in texts) if match]
        padded = all(len(match["hour"]) == 2 for match in times)
        return cls(any(match["second"] for match in times), padded) if times else None

    @property
    def base(self) -> str:
        """What the cells are, see `Storage`."""
        return "time"

    def read(self, text: str) -> int | None:
        """Microseconds since midnight; None if a text is no time of day."""
        match = _TIME.fullmatch(text.strip())
        if match is None:
            return None
        hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
        is_time = hour < 24 and minute < 60 and second < 60
        return ((hour * 60 + minute) * 60 + second) * 1_000_000 if is_time else None

    def write(self, microseconds: float) -> str:
        """A time of day in this writing."""
        minutes, second = divmod(round(microseconds / 1_000_000), 60)
        hour, minute = divmod(minutes, 60)
        end = f":{second:02}" if self.seconds else ""
        return f"{hour:02}:{minute:02}{end}" if self.padded else f"{hour}:{minute:02}{end}"

    def config(self) -> dict[str, Any]:
        return {"writes": "times", "seconds": self.seconds, "padded": self.padded}


#: How the cells of a column of texts are written.
Writing = NumberWriting | TimeWriting


def writing_from_config(config: Mapping[str, Any]) -> Writing:
    """The writing that `config` describes."""
    if config["writes"] == "times":
        return TimeWriting(config["seconds"], config["padded"])
    return NumberWriting.from_config(config)


def _parts(text: str) -> _Text | None:
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None
    signs = {"before": match["before"], "after": match["after"], "behind": match["behind"]}
    written = [place for place, sign in signs.items() if sign]
    if len(written) + bool(match["open"]) > 1:
        return None
    place: Any = "brackets" if match["open"] else written[0] if written else None
    plus = place not in (None, "brackets") and signs[place] == "+"
    suffix = match["suffix"].rstrip() if match["suffix"].strip() else ""
    return _Text(
        match["prefix"], match["body"], match["exponent"] or "", suffix, None if plus else place, plus
    )


def _decimals(part: _Text, point: str) -> int:
    """How many digits are behind the point, without an exponent."""
    written = len(part.body.partition(point)[2]) - int(part.exponent[1:] or 0)
    return max(0, min(_EVERY_DECIMAL, written))


def _is_number(body: str, thousands: str, point: str) -> bool:
    """Whether digits are a number in a convention; codes with leading zeros are none."""
    whole, mark, fraction = body.partition(point)
    if mark and not fraction.isdigit():
        return False
    if thousands and thousands in whole:
        first, *groups = whole.split(thousands)
        return 0 < len(first) <= 3 and first[0] != "0" and all(len(group) == 3 for group in groups)
    is_code = len(whole) > 1 and whole[0] == "0"
    return (whole.isdigit() or (not whole and bool(mark))) and not is_code and int(whole or 0) <= _EXACT


def _convention(bodies: Sequence[str], signs: str) -> tuple[str, str]:
    """The separator of thousands and the point with which most bodies are numbers, the usual one first.

    Points before three digits are decimal points, unless the numbers are euros.
    """
    conventions = _CONVENTIONS
    if "€" in signs and any("." in body for body in bodies):
        conventions = (conventions[1], conventions[0], *conventions[2:])
    return max(conventions, key=lambda pair: sum(_is_number(body, *pair) for body in bodies))


def _powers(suffixes: Sequence[str], *, is_money: bool) -> dict[str, int]:
    """Powers of ten by suffix; none if the suffixes are units."""
    distinct = set(suffixes) - {""}
    if not distinct <= set(_EVERY_POWER) or not (distinct & set(_POWERS) or is_money):
        return {}
    return {text: _EVERY_POWER[text] for text in distinct}


def _written_powers(parts: Sequence[_Text], powers: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The powers as they are written, with their spaces; the largest first, one of each."""
    counts = Counter(part.suffix for part in parts if part.suffix.strip() in powers)
    by_power: dict[int, str] = {}
    for suffix, _ in counts.most_common():
        by_power.setdefault(powers[suffix.strip()], suffix)
    return tuple((by_power[power], power) for power in sorted(by_power, reverse=True))
