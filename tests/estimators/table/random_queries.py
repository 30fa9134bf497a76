"""Random queries as people write them: every form of the language, odd names and odd levels."""

import random
from collections.abc import Sequence
from typing import Any

from kdmkit.estimators.table.language import ColumnSyntax
from kdmkit.estimators.table.literals import read_people_date

_ODD = (
    *(
        "price",
        "Price",
        " leading",
        "a, b",
        'with "quotes"',
        "it's",
        "back`tick",
        "``",
        "and",
        "NOT",
        "in",
        "is",
    ),
    *(
        "between",
        "true",
        "false",
        "month",
        "P",
        "größe",
        "中文",
        "e\u0301",
        "a|b",
        "x-1",
        "1.5",
        "inf",
        "nan",
    ),
    *("hours per week", "\\", "tab\tnew\nline", "", ">50K", "low", "missing", "year(day)", "%", "None"),
)
_LEVELS = (
    *_ODD,
    "<=50K",
    '"',
    "'",
    "10",
    "010",
    "-1",
    "1e-9",
    "or",
    "OR",
    "Very Good",
    "a.b",
    "x/y",
    "True",
    "🙂",
)
_NUMBERS = (
    *("0", "-1", "+3", "20,000", "20_000", "20k", "3M", "2.5e3", "$20", "€20", "-$5", "5%", "20 %", "20 €"),
    *(
        "1e-9",
        ".5",
        "7.",
        "-0.0",
        "9007199254740993",
        "1e300",
        "123456789012345678901234567890",
        "0.1k",
        "−4",
    ),
)
_DATES = ("2024", "2024-05", "2024-05-31", "31.05.2024", "5/31/2024", "4 July 2015", "Jul 2015", "2015/07/04")
_TIMES = ("09:15:00", "9:15", "23:59")
_SIGNS = ("<", "<=", ">", ">=", "=", "==", "!=", "≤", "≥", "≠", "<>")
_PARTS = {
    "year": ("2015", "-3"),
    "month": ("July", "jul", "7"),
    "weekday": ("Sat", "monday", "0"),
    "day": ("31",),
    "hour": ("0",),
}


def _time(text: str) -> str:
    hour, minute, *second = text.split(":")
    if not (hour.isdecimal() and minute.isdecimal() and len(text) < 9):
        raise ValueError("a time such as 09:15")
    return ":".join([hour.zfill(2), minute, *second])


def random_columns(rng: random.Random) -> dict[str, ColumnSyntax]:
    """Columns of all kinds, of which some have the same levels."""
    names = rng.sample(_ODD, 12)
    levels = rng.sample(_LEVELS, rng.randint(1, 12))
    kinds = [
        *(ColumnSyntax(), ColumnSyntax()),
        *(ColumnSyntax("levels", levels, ordered) for ordered in (True, True, False)),
        ColumnSyntax("levels", [False, True]),
        ColumnSyntax("levels", rng.choice([[-1, 0, 5, 10**20], [0.5, 1.0, 1e-9]]), True),
        *(ColumnSyntax("date", read=read_people_date), ColumnSyntax("date", read=read_people_date)),
        *(ColumnSyntax("time", read=_time), ColumnSyntax("time", read=_time)),
        ColumnSyntax("left out", reason="text"),
    ]
    return dict(zip(names, kinds, strict=True))


class QueryWriter:
    """Writes random events about columns."""

    def __init__(self, rng: random.Random, columns: dict[str, ColumnSyntax]) -> None:
        self.rng, self.columns = rng, columns
        self.names = [name for name, syntax in columns.items() if syntax.kind != "left out"]

    def event(self, depth: int = 3) -> str:
        """A random event; `depth` limits the levels of parentheses."""
        pick = self.rng.random()
        if depth == 0 or pick < 0.4:
            return self.condition()
        if pick < 0.5:
            return f"not ({self.event(depth - 1)})"
        if pick < 0.53:
            return self.rng.choice(["(true)", "(false)"])
        word = self.rng.choice([", ", " and ", " or ", " & ", " AND "])
        parts = [self.event(depth - 1) for _ in range(self.rng.randint(2, 3))]
        return word.join(f"({part})" if self.rng.random() < 0.5 else part for part in parts)

    def condition(self) -> str:
        name = self.rng.choice(self.names)
        syntax = self.columns[name]
        subject, values = self.name(name), self.values(name)
        part = self.rng.choice(list(_PARTS))
        if self.rng.random() < 0.4 and (syntax.kind == "date" or (syntax.kind == "time" and part == "hour")):
            subject, values = f"{part}({subject})", _PARTS[part]
        is_ordered = syntax.kind != "levels" or syntax.ordered
        return self.rng.choice(["", "", "not "]) + self._about(name, subject, values, is_ordered)

    def _about(self, name: str, subject: str, values: Sequence[str], is_ordered: bool) -> str:
        rng = self.rng
        one, other = rng.choice(values), rng.choice(values)
        some = ", ".join(rng.choice(values) for _ in range(rng.randint(1, 4)))
        sets = f"{subject} {rng.choice(['in', 'not in', '∈'])} {{{some}}}"
        plain = f"{subject} {rng.choice(['=', '!='])} {one}"
        empty = f"{subject} is {rng.choice(['', 'not '])}{rng.choice(['missing', 'null', 'NA'])}"
        if not is_ordered:
            return rng.choice([sets, plain, empty])
        more, less = rng.choice([("<", "<="), ("<=", "<"), ("≤", "<"), (">", ">=")])
        opening, closing = rng.choice("[("), rng.choice("])")
        pair = f"{subject} {rng.choice(_SIGNS)} `{self.partner(name).replace('`', '``')}`"
        return rng.choice(
            [
                *(sets, plain, empty, pair, f"{subject} {rng.choice(_SIGNS)} {one}"),
                *(f"{one} {more} {subject} {less} {other}", f"{subject} between {one} and {other}"),
                f"{subject} in {opening}{one}, {other}{closing}",
                f"{subject} in {rng.choice(['(-inf', '[-inf'])}, {other}{closing}",
            ]
        )

    def partner(self, name: str) -> str:
        kind = self.columns[name].kind
        return self.rng.choice([other for other in self.names if self.columns[other].kind == kind])

    def name(self, name: str) -> str:
        if self.rng.random() < 0.5:
            return "`" + name.replace("`", "``") + "`"
        return _quoted(name, self.rng.choice("\"'"))

    def values(self, name: str) -> list[str]:
        syntax = self.columns[name]
        if syntax.levels is not None:
            return [_quoted(str(level), self.rng.choice("\"'")) for level in syntax.levels]
        return list({"number": _NUMBERS, "date": _DATES, "time": _TIMES}[syntax.kind])


def _quoted(text: Any, mark: str) -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


_PIECES = (
    *(
        "",
        "(",
        ")",
        "[",
        "{",
        "}",
        ",",
        "|",
        "not ",
        " and ",
        " or ",
        "in",
        "\0",
        "\ud800",
        "`",
        '"',
        "'",
        "\\",
    ),
    *(
        "1e308",
        "1e400",
        "9" * 400,
        "nan",
        "-inf",
        "month(",
        "<",
        "=",
        "!=",
        " between ",
        "%",
        "\x1b",
        "²",
        "is",
    ),
    *(
        " ",
        "0",
        "7",
        "-",
        ".",
        "_",
        "a",
        "e",
        "unknown column",
        "\u202e",
        "𝟙",
        "\n",
        "P(",
        "07/04/2015",
        "25:99",
        "--",
        "''",
    ),
)


def mutated(rng: random.Random, text: str) -> str:
    """The text with signs left out, doubled, moved or replaced by odd ones, and words that change places."""
    signs = list(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.randrange(len(signs) + 1)
        signs[place : place + rng.choice([0, 0, 1, 5])] = [rng.choice(_PIECES)] * rng.choice([1] * 9 + [70])
    words = "".join(signs).split(" ")
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        one, other = rng.randrange(len(words)), rng.randrange(len(words))
        change = rng.choice(["swap", "drop", "double"])
        if change == "swap":
            words[one], words[other] = words[other], words[one]
        words[one : one + 1] = {"swap": words[one : one + 1], "drop": [], "double": [words[one]] * 2}[change]
        words = words or [""]
    return " ".join(words)


def enormous(rng: random.Random, name: str, value: str) -> str:
    """A query of thousands of parts about one column, which is legal but for its size."""
    n = rng.randint(500, 12_000)
    condition = f"{name} = {value}"
    return rng.choice(
        [
            "(" * n + condition + ")" * n,
            "not " * n + condition,
            " and ".join([condition] * n),
            " or ".join([condition] * n),
            ", ".join([f"not ({condition})"] * n),
            f"{name} in {{{', '.join([value] * n)}}}",
            f"{name} = {'9' * n}",
            f"{name} = {'x' * n}",
            f"P({condition} | {' and '.join([condition] * (n // 2))}",
            "`" * n,
            f"{name} " * n,
        ]
    )
