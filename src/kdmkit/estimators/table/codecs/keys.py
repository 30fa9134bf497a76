"""New keys in the form of the identifiers of a table, for rows that are drawn."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kdmkit.estimators.table.frames.storage import BASES, RawColumn

_NUMBERED = re.compile(r"(.*?)(\d{1,15})(\D*)", re.S)
# Keys with letters in many places: the fewest possible keys for each key of the data.
_POSSIBLE = 1_000_000
# The keys of all rows go on beyond the greatest one of a sample, by this many mean distances.
_BEYOND = 20
_GOLDEN = (math.sqrt(5) - 1) / 2


class Keys(ABC):
    """The form of the keys of a column: what new ones look like."""

    #: Names the class in `config`.
    form: ClassVar[str]

    @abstractmethod
    def new(self, first: int, n: int, base: str) -> np.ndarray:
        """New keys number `first` to `first` + n − 1, as an array of a storage's base."""

    @abstractmethod
    def joined(self, other: Keys | None) -> Keys | None:
        """The form of the keys of more rows; None if they have no form in common."""

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `keys_from_config` makes an equal form."""
        return {"form": self.form, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class NumberedKeys(Keys):
    """A number between texts that all keys share: new keys count on.

    Args:
        prefix, suffix: the texts.
        width: the number of digits, with zeros in front; 0 for as many as there are.
        last: the greatest number.

    >>> NumberedKeys("ID-", "", 4, 98).new(0, 3, "string").tolist()
    ['ID-0099', 'ID-0100', 'ID-0101']
    """

    form = "numbered"
    prefix: str
    suffix: str
    width: int
    last: int

    def new(self, first: int, n: int, base: str) -> np.ndarray:
        numbers = range(self.last + 1 + first, self.last + 1 + first + n)
        if base != "string":
            return np.array(numbers, dtype=BASES[base])
        return _texts([f"{self.prefix}{number:0{self.width}}{self.suffix}" for number in numbers])

    def joined(self, other: Keys | None) -> Keys | None:
        if not isinstance(other, NumberedKeys):
            return None
        last = max(self.last, other.last)
        return replace(self, last=last) if replace(other, last=self.last) == self else None


@dataclass(frozen=True)
class CodedKeys(Keys):
    """Keys of one length, such as `7f3a-09bc`: new ones have characters that were seen in the same place.

    All new keys differ. One of them is a key of the data with a probability of at most 10⁻⁶.

    Args:
        places: the characters of every place.

    >>> CodedKeys(("ab", "-", "0123456789")).new(0, 3, "string").tolist()
    ['a-0', 'b-3', 'a-6']
    """

    form = "coded"
    places: tuple[str, ...]

    @property
    def possible(self) -> int:
        """The number of possible keys."""
        return math.prod(map(len, self.places))

    def new(self, first: int, n: int, base: str) -> np.ndarray:
        total = self.possible
        step = max(1, int(_GOLDEN * total))
        while math.gcd(step, total) > 1:
            step += 1
        return _texts([self._code(k * step % total) for k in range(first, first + n)])

    def _code(self, number: int) -> str:
        code = []
        for characters in reversed(self.places):
            number, place = divmod(number, len(characters))
            code.append(characters[place])
        return "".join(reversed(code))

    def joined(self, other: Keys | None) -> Keys | None:
        if not isinstance(other, CodedKeys) or len(other.places) != len(self.places):
            return None
        pairs = zip(self.places, other.places, strict=True)
        return CodedKeys(tuple("".join(sorted({*a, *b})) for a, b in pairs))


def _texts(texts: list[str]) -> np.ndarray:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def keys_of(column: RawColumn, *, is_sample: bool) -> Keys | None:
    """The form of the keys of a column; None if they have none, such as names.

    Args:
        is_sample: whether the rows are a sample of a larger table.
    """
    present = column.present
    if not len(present):
        return None
    if column.storage.base in ("integer", "float"):
        return _numbered("", "", 0, (present.min(), present.max(), len(present)), is_sample)
    if column.storage.base != "string":
        return None
    texts = list(map(str, present))
    parts = [_NUMBERED.fullmatch(text) for text in texts]
    around = {(part[1], part[3]) for part in parts if part}
    if len(around) == 1 and all(parts):
        digits = [part[2] for part in parts if part]
        padded = any(text[0] == "0" and len(text) > 1 for text in digits)
        if not padded or len(set(map(len, digits))) == 1:
            numbers = list(map(int, digits))
            width = len(digits[0]) if padded else 0
            return _numbered(*around.pop(), width, (min(numbers), max(numbers), len(numbers)), is_sample)
    if len(set(map(len, texts))) > 1:
        return None
    keys = CodedKeys(tuple("".join(sorted(set(place))) for place in zip(*texts, strict=True)))
    return keys if keys.possible >= _POSSIBLE * len(texts) else None


def _numbered(
    prefix: str, suffix: str, width: int, range_and_rows: tuple[Any, Any, int], is_sample: bool
) -> Keys | None:
    least, last, n_rows = map(int, range_and_rows)
    if is_sample:
        last += math.ceil(_BEYOND * (last - least) / n_rows)
    # Beyond 2^62, numbers of many rows would not fit into 64 bits.
    return NumberedKeys(prefix, suffix, width, last) if last < 1 << 62 else None


_FORMS: dict[str, Any] = {form.form: form for form in (NumberedKeys, CodedKeys)}


def keys_from_config(config: Mapping[str, Any] | None) -> Keys | None:
    """The form that `config` describes; None for none."""
    if config is None:
        return None
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items() if name != "form"}
    keys: Keys = _FORMS[config["form"]](**fields)
    return keys
