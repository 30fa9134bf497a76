"""Random frames with columns of all kinds, which depend on each other, and the values to ask about."""

from __future__ import annotations

import bisect
import datetime as dt
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

Kind = Literal["number", "level", "ordinal", "date", "time", "duration"]
_LEVELS = (
    "<=50K",
    ">50K",
    "and",
    "or",
    "a b",
    'say "hi"',
    "it's",
    "010",
    "10",
    "true",
    "x|y",
    "ä,ö",
    "not",
    "é",
)
_NAMES = ("price", "hours per week", "and", "P", "a|b", "größe", "`tick`", "x-1", "10", " lead", 'q"q', "In")
_DAY = pd.Timedelta(days=1)


@dataclass(frozen=True)
class Maker:
    """How a column is made: its kind, and values from random numbers and a latent variable.

    Args:
        source: the finer column whose values take the place of the latent variable.
    """

    kind: Kind
    make: Callable[[np.random.Generator, np.ndarray], Any]
    source: str = ""


def _steps(decimals: int) -> Callable[[np.random.Generator, np.ndarray], Any]:
    def make(rng: np.random.Generator, z: np.ndarray) -> Any:
        whole = np.round(20 * z + rng.normal(0, 5, len(z)))
        return np.round(whole / 10.0**decimals, decimals) if decimals > 0 else whole * 10.0**-decimals

    return make


def _dates(days: int, unit: str) -> Callable[[np.random.Generator, np.ndarray], Any]:
    def make(rng: np.random.Generator, z: np.ndarray) -> Any:
        share = 1 / (1 + np.exp(-z - rng.normal(0, 0.5, len(z))))
        dates = pd.Timestamp("2019-11-20") + pd.to_timedelta(np.round(share * days * 86400), unit="s")
        return dates.to_period(unit).to_timestamp() if unit in "MY" else dates.floor(unit)

    return make


def _times(clock: int) -> Callable[[np.random.Generator, np.ndarray], Any]:
    def make(rng: np.random.Generator, z: np.ndarray) -> Any:
        seconds = np.mod(43200 + 15000 * z + rng.normal(0, 5000, len(z)), 86400) // clock * clock
        return [(dt.datetime.min + dt.timedelta(seconds=int(s))).time() for s in seconds]

    return make


def _category(rng: np.random.Generator, z: np.ndarray) -> Any:
    levels = rng.choice(_LEVELS, int(rng.integers(2, 9)), replace=False)
    return levels[np.clip((z + rng.normal(0, 1, len(z)) + 2).astype(int), 0, len(levels) - 1)]


def _ordered(rng: np.random.Generator, z: np.ndarray) -> Any:
    return pd.Categorical(_category(rng, z), rng.permutation(_LEVELS), ordered=True)


def _missing(make: Callable[..., Any], share: float) -> Callable[..., Any]:
    """Cells are missing completely at random."""

    def some(rng: np.random.Generator, z: np.ndarray) -> Any:
        values = pd.Series(make(rng, z))
        return values.mask(rng.random(len(z)) < share)

    return some


def _censored(make: Callable[..., Any], share: float) -> Callable[..., Any]:
    """Cells are missing where the latent variable is large."""

    def some(rng: np.random.Generator, z: np.ndarray) -> Any:
        return pd.Series(make(rng, z)).mask(z > np.quantile(z, 1 - share))

    return some


MAKERS: dict[str, Maker] = {
    **{f"step 1e{-k}": Maker("number", _steps(k)) for k in (9, 6, 3, 2, 1, 0, -3, -6)},
    "density": Maker("number", lambda rng, z: np.exp(z + rng.normal(0, 0.3, len(z)))),
    "tiny": Maker("number", lambda rng, z: 1e-9 * (z + rng.normal(0, 0.3, len(z)))),
    "float32": Maker("number", lambda rng, z: (z + rng.normal(0, 0.3, len(z))).astype(np.float32)),
    "zeros": Maker(
        "number", lambda rng, z: np.where(rng.random(len(z)) < 0.6, 0.0, np.round(np.exp(4 + z), 9))
    ),
    "zeros and cap": Maker(
        "number", lambda rng, z: np.clip(np.where(rng.random(len(z)) < 0.3, 0.0, np.exp(4 + z)), 0, 100)
    ),
    "capped": Maker("number", lambda rng, z: np.minimum(np.round(80 + 15 * z, 1), 100)),
    "frequent": Maker(
        "number", lambda rng, z: np.where(rng.random(len(z)) < 0.4, 40.0, np.round(40 + 12 * z))
    ),
    "share": Maker("number", lambda rng, z: np.round(1 / (1 + np.exp(-z - rng.normal(0, 1, len(z)))), 2)),
    "codes": Maker("number", lambda rng, z: np.round(np.clip(z, -2, 2)) * 2.5),
    "integers": Maker("number", lambda rng, z: np.round(30 * z).astype(int) - 7),
    "count": Maker("number", lambda rng, z: rng.poisson(np.exp(1 + 0.5 * z))),
    "large count": Maker(
        "number", lambda rng, z: (np.exp(8 + z) + rng.integers(0, 1000, len(z))).astype(int)
    ),
    "seconds": Maker("number", lambda rng, z: 1_600_000_000 + (1e5 * z).astype(int)),
    "beyond 2^53": Maker("number", lambda rng, z: 2**53 + 1 + 2 * np.round(1000 * z + 5000).astype(np.int64)),
    "nullable": Maker("number", lambda rng, z: pd.array(_missing(_steps(0), 0.1)(rng, z), dtype="Int64")),
    "with missing": Maker("number", _missing(_steps(2), 0.2)),
    "boolean": Maker("ordinal", lambda rng, z: z + rng.normal(0, 1, len(z)) > 0.5),
    "0 and 1": Maker("number", lambda rng, z: (z + rng.normal(0, 1, len(z)) > 0.5).astype(int)),
    "category": Maker("level", _category),
    "category with missing": Maker("level", _missing(_category, 0.1)),
    "ordered": Maker("ordinal", _ordered),
    "days": Maker("date", _dates(90, "D")),
    "decades": Maker("date", _dates(9000, "D")),
    "months": Maker("date", _dates(4000, "M")),
    "years": Maker("date", _dates(15000, "Y")),
    "hours": Maker("date", _dates(200, "h")),
    "minutes": Maker("date", _dates(900, "min")),
    "instants": Maker("date", _dates(30, "s")),
    "clock": Maker("time", _times(60)),
    "clock in seconds": Maker("time", _times(1)),
    "quarters": Maker("time", _times(900)),
    "duration": Maker("duration", lambda rng, z: pd.to_timedelta(np.round(np.exp(5 + z)), unit="min")),
    "durations of days": Maker("duration", lambda rng, z: pd.to_timedelta(np.round(np.exp(3 + z)), unit="D")),
}


#: Columns with missing cells of every kind, and some on which they depend.
MISSING_MAKERS: dict[str, Maker] = {
    "density with missing": Maker("number", _censored(lambda rng, z: np.exp(z), 0.3)),
    "atoms with missing": Maker(
        "number", _censored(lambda rng, z: np.where(rng.random(len(z)) < 0.4, 0.0, np.exp(z)), 0.3)
    ),
    "days with missing": Maker("date", _missing(_dates(90, "D"), 0.15)),
    "minutes with missing": Maker("date", _censored(_dates(900, "min"), 0.2)),
    "clock with missing": Maker("time", _missing(_times(60), 0.2)),
    "ordered with missing": Maker("ordinal", _censored(_ordered, 0.25)),
    "durations with missing": Maker(
        "duration", _missing(lambda rng, z: pd.to_timedelta(np.round(np.exp(3 + z)), unit="D"), 0.2)
    ),
}


def _texts(form: str, scale: float = 1, swapped: bool = False) -> Callable[..., Any]:
    """Numbers as people write them."""

    def make(rng: np.random.Generator, z: np.ndarray) -> Any:
        texts = [form.format(x) for x in scale * np.exp(z + rng.normal(0, 0.3, len(z)))]
        return [t.translate({44: ".", 46: ","}) for t in texts] if swapped else texts

    return make


def _listed(n: int) -> Callable[..., Any]:
    """Numbers from a list that has no common step."""

    def make(rng: np.random.Generator, z: np.ndarray) -> Any:
        values = np.sort(np.round(rng.gamma(0.7, 1000, n), 3))
        return values[np.clip((n * (z + 2.5) / 5).astype(int), 0, n - 1)]

    return make


def _bands(labels: Sequence[str], *, ordered: bool = False) -> Callable[..., Any]:
    """Bands of a column of numbers; missing cells have none."""

    def make(_: np.random.Generator, finer: np.ndarray) -> Any:
        numbers = pd.Series(finer).astype(float)
        codes = np.searchsorted(numbers.quantile([0.3, 0.6, 0.8]), numbers)
        cells = pd.Series(np.array(labels)[codes]).mask(numbers.isna().to_numpy())
        return cells.astype(pd.CategoricalDtype(labels, ordered=True)) if ordered else cells.astype(object)

    return make


def _of_level(values: Sequence[Any]) -> Callable[..., Any]:
    """A function of a column of levels; missing cells have none."""
    return lambda _, finer: pd.Series(
        [None if x is None else values[int(x[1:]) % len(values)] for x in finer]
    )


#: Columns that are functions of another one or ordered with it, numbers from a list, and numbers in texts.
NEWER_MAKERS: dict[str, Maker] = {
    "list of 12": Maker("number", _listed(12)),
    "list of 60": Maker("number", _listed(60)),
    "list of 60 with missing": Maker("number", _missing(_listed(60), 0.15)),
    "dollars": Maker("number", _texts("${:,.2f}", 2000)),
    "kilograms": Maker("number", _texts("{:.1f} kg", 50)),
    "percents": Maker("number", _texts("{:.1f}%", 10)),
    "decimal commas": Maker("number", _texts("{:,.2f}", 2000, swapped=True)),
    "texts among numbers": Maker(
        "number", lambda rng, z: np.where(rng.random(len(z)) < 0.05, "absent", _texts("{:.1f}")(rng, z))
    ),
    "zip": Maker("level", lambda rng, z: [f"z{i}" for i in np.clip((4 * z + 9).astype(int), 0, 17)]),
    "city": Maker("level", _of_level(["Rome", "Oslo", "Lima", "Bonn"]), "zip"),
    "city with missing": Maker("level", _of_level(["Rome", None, "Lima", "Bonn"]), "zip"),
    "area": Maker("number", _of_level([1.5, 20.25, 3.0]), "zip"),
    "at least": Maker("number", lambda rng, low: low + rng.integers(0, 40, len(low)), "integers"),
    "band": Maker("level", _bands(["low", "mid", "high", "top"]), "integers"),
    "ordered band": Maker("ordinal", _bands(["low", "mid", "high", "top"], ordered=True), "integers"),
    "band with missing": Maker("level", _bands(["low", "mid", "high", "top"]), "with missing"),
    "number of band": Maker("number", lambda _, finer: np.where(np.asarray(finer) > 20, 2, 7), "integers"),
    "number of band with missing": Maker(
        "number",
        lambda _, finer: pd.Series(np.where(finer > 0.1, 2.5, 0.5)).mask(finer.isna().to_numpy()),
        "with missing",
    ),
}


def number_of(text: Any) -> float:
    """A number as people write it; NaN for other texts."""
    if not isinstance(text, str):
        return np.nan if text is None else float(text)
    digits = re.sub(r"[^0-9.,-]", "", text)
    if re.search(r",\d\d$", digits):
        digits = digits.translate({44: ".", 46: ","})
    digits = digits.replace(",", "")
    return float(digits) if digits else np.nan


def numbers_of(series: Any) -> Any:
    """A column of numbers with its texts read."""
    is_text = series.dtype == object or isinstance(series.dtype, pd.StringDtype)
    return series.map(number_of).astype(float) if is_text else series


@dataclass(frozen=True)
class Subject:
    """A column to ask about.

    Args:
        values: those of the frame, ascending or in the order of levels.
        has_missing: whether cells are missing.
    """

    name: str
    kind: Kind
    values: Sequence[Any]
    source: str = ""
    has_missing: bool = False

    @property
    def is_ordered(self) -> bool:
        return self.kind != "level"

    def some(self, rng: random.Random) -> Any:
        """A value to compare with: of the column, between two of them, an extreme one, one far outside."""
        value = rng.choice(self.values)
        pick = rng.random()
        if self.kind in ("level", "ordinal") or pick < 0.45:
            return value
        if pick < 0.6:
            return rng.choice([self.values[0], self.values[-1]])
        return getattr(self, f"_odd_{self.kind}")(rng, value)

    def _odd_number(self, rng: random.Random, value: Any) -> Any:
        place = rng.randrange(len(self.values) - 1)
        low, high = self.values[place], self.values[place + 1]
        between = low + (high - low) * rng.choice([0.5, 0.25, rng.random()])
        span = float(self.values[-1]) - float(self.values[0])
        outside = [self.values[-1] + span, self.values[0] - span, self.values[-1] + 10 * span, 0, -1]
        beside = [value + step for step in (high - low, low - high)]
        number = rng.choice([between, between, *beside, *outside])
        # 2.5500000000000003 is a rounded sum: the column has 2.55.
        place = bisect.bisect(self.values, number)
        near = [v for v in self.values[max(place - 1, 0) : place + 1] if abs(v - number) < 1e-13 * abs(v)]
        return near[0] if near else number

    def _odd_duration(self, rng: random.Random, value: Any) -> Any:
        return value + rng.choice([dt.timedelta(seconds=30), dt.timedelta(hours=-7), dt.timedelta(-20_000)])

    def _odd_date(self, rng: random.Random, value: pd.Timestamp) -> Any:
        far = [value + 10_000 * _DAY, value - 10_000 * _DAY]
        near = [value + pd.Timedelta(hours=11, seconds=30), value + _DAY, value - 3 * _DAY]
        texts = [value.strftime(form) for form in ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%d %H:%M")]
        return rng.choice([*near, *texts, *texts, value.date(), rng.choice(far)])

    def _odd_time(self, rng: random.Random, value: dt.time) -> Any:
        odd = [dt.time(0), dt.time(23, 59, 59), value.replace(second=30), value.replace(minute=7)]
        return rng.choice([*odd, value.strftime("%H:%M")])


@dataclass(frozen=True)
class LawFrame:
    """A frame and what to ask about it."""

    name: str
    frame: Any
    subjects: tuple[Subject, ...]
    pairs: tuple[tuple[str, str], ...] = ()


def subject_of(series: Any, kind: Kind, source: str = "") -> Subject:
    """A column of a frame as a subject."""
    series = numbers_of(series) if kind == "number" else series
    present = series.dropna()
    if isinstance(series.dtype, pd.CategoricalDtype):
        values = list(series.cat.categories)
    else:
        values = sorted(set(present.tolist()))
    return Subject(str(series.name), kind, values, source, bool(series.isna().any()))


def random_frame(seed: int, n: int = 240, sources: Sequence[str] | None = None) -> LawFrame:
    """A frame with some of the columns of the makers, and the pairs of comparable ones."""
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    makers = {**MAKERS, **MISSING_MAKERS, **NEWER_MAKERS}
    sources = choose.sample(sorted(makers), 7) if sources is None else list(sources)
    finer = [makers[source].source for source in sources if makers[source].source]
    sources = sorted(dict.fromkeys([*finer, *sources]), key=lambda source: bool(makers[source].source))
    names = choose.sample(_NAMES, min(3, len(sources)))
    z = rng.normal(size=n)
    columns, subjects, made = {}, [], {}
    for i, source in enumerate(sources):
        name = names[i] if i < len(names) else f"v{i} {source}" if choose.random() < 0.3 else f"v{i}"
        maker = makers[source]
        cells = maker.make(rng, made[maker.source] if maker.source else z)
        columns[name] = made[source] = pd.Series(cells, name=name).reset_index(drop=True)
        subjects.append(subject_of(columns[name], maker.kind, source))
    return LawFrame(f"generated {seed}", pd.DataFrame(columns), tuple(subjects), comparable(subjects))


def comparable(subjects: Sequence[Subject]) -> tuple[tuple[str, str], ...]:
    """Pairs of columns that can be compared."""
    kinds = {"number": "number", "date": "date", "time": "time", "duration": "number"}
    return tuple(
        (one.name, other.name)
        for one in subjects
        for other in subjects
        if one is not other and one.kind in kinds and kinds[one.kind] == kinds.get(other.kind)
    )
