"""Fitted tables in SQL: functions and draws of a `KDMTable` in a DuckDB connection (extra `sql`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.table import KDMTable

_NAME = re.compile(r"[^\W\d]\w*")
_ROW = "a row: the alias of a table, or a struct such as {'carat': carat}"

# What DuckDB writes before the text of an error in a function.
_IN_PYTHON = re.compile(r"^.*?executing the UDF: \w+: ")
# Texts that SQL reads as false and as true.
_WORDS = (("false", "f", "no", "n"), ("true", "t", "yes", "y"))
# A function of SQL: a table of rows, and one value for all of them.
_Answer = Callable[..., Any]


def register(connection: Any, table: KDMTable, name: str, *, random_state: Any = None) -> None:
    """Makes a fitted table available in a connection of DuckDB, under a name such as `loans`.

    A *row* is the alias of a table (`FROM applications a`, then `a`) or a struct (`{'income': income}`).
    Columns that the model does not know are ignored, columns that the row lacks are unknown, and NULL is a
    missing cell.

    | in SQL | is |
    |:--|:--|
    | `loans_logp(row)` | log p of the row, as `KDMTable.score_samples` |
    | `loans_predict(row, 'price')` | the mean of a column of numbers given the other cells |
    | `loans_level(row, 'cut')` | the most probable value, or the median of a date, as text |
    | `loans_probability(row, 'price > 1000')` | P(event) given the cells of other columns |
    | `loans_quantile(row, 'price', 0.9)` | a quantile of a column of numbers given the other cells |
    | `loans_draw(row)` | a struct: the row with all columns, those that it lacks drawn given the others |
    | `loans_sample(1000, given := 'cut = Ideal')` | new rows, in `FROM` |

    An answer is NULL if the given cells have probability 0 under the model.

    Args:
        connection: of DuckDB.
        table: a fitted table.
        name: the start of the names of all functions; a model that was registered under it is replaced.
        random_state: of draws.

    >>> import duckdb, numpy as np
    >>> from kdmkit import KDMTable
    >>> size = np.array(["small", "large"] * 100)
    >>> weight = np.where(size == "large", 5.0, 1.0) + np.random.default_rng(0).normal(0, 0.3, 200)
    >>> model = KDMTable(n_components=8, max_epochs=10, random_state=0).fit({"size": size, "weight": weight})
    >>> connection = duckdb.connect()
    >>> register(connection, model, "parcels")
    >>> question = "SELECT parcels_level({'weight': w}, 'size') FROM (VALUES (0.9), (5.2)) AS given(w)"
    >>> connection.execute(question).fetchall()
    [('small',), ('large',)]
    >>> connection.execute("SELECT count(*) FROM parcels_sample(10, given := 'weight > 3')").fetchone()
    (10,)
    """
    check_instance("table", table, KDMTable, "a fitted KDMTable")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(bad_argument("name", "a name such as 'loans'", name))
    duckdb, functions = need("duckdb", "sql"), _Functions(table, random_state)
    types = {
        "logp": (functions.log_prob, "DOUBLE"),
        "predict": (functions.predict, "DOUBLE"),
        "level": (functions.level, "VARCHAR"),
        "probability": (functions.probability, "DOUBLE"),
        "quantile": (functions.quantile, "DOUBLE"),
        "draw": (functions.draw, functions.row_type(connection)),
        "rows": (functions.rows, duckdb.list_type(functions.row_type(connection))),
    }
    for what, (function, kind) in types.items():
        full = f"{name}_{what}"
        with suppress(duckdb.Error):  # there is none
            connection.remove_function(full)
        draws = what in ("draw", "rows")
        connection.create_function(
            full, function, None, kind, type="arrow", null_handling="special", side_effects=draws
        )
    connection.execute(
        f"CREATE OR REPLACE TEMP MACRO {name}_sample(n, given := '') AS TABLE "
        f"SELECT unnest({name}_rows(n, given), recursive := true)"
    )


def answer(query: str, table: KDMTable, name: str, *, random_state: Any = None) -> Any:
    """The answer to a query as a table of Arrow, in a connection of its own that can read files.

    Args:
        query, table, name, random_state: see `register`.
    """
    duckdb = need("duckdb", "sql")
    connection = duckdb.connect()
    try:
        register(connection, table, name, random_state=random_state)
        relation = connection.sql(query)
        if relation is None:
            raise ValueError(bad_argument("query", "a query that has rows", query))
        return relation.to_arrow_table()
    except duckdb.Error as error:
        raise ValueError(_IN_PYTHON.sub("", str(error)).partition("\n\nAt:")[0]) from error
    finally:
        connection.close()


def as_name(text: str) -> str:
    """A name for functions of SQL.

    >>> as_name("loans 2024"), as_name("3 loans")
    ('loans_2024', '_3_loans')
    """
    name = re.sub(r"\W+", "_", text)
    return name if _NAME.fullmatch(name) else f"_{name}"


class _Functions:
    """What DuckDB calls: columns of Arrow in, a column of Arrow out.

    Args:
        table: a fitted table.
        random_state: of draws.
    """

    def __init__(self, table: KDMTable, random_state: Any) -> None:
        self._arrow = need("pyarrow")
        self._table, self._columns = table, list(table.schema_.columns)
        self._random = np.random.default_rng(random_state)
        self._like = _plain(table.sample(1, random_state=0, frame="arrow")).schema

    def row_type(self, connection: Any) -> Any:
        """The type of a row in SQL."""
        relation = connection.from_arrow(self._like.empty_table())
        return connection.struct_type(dict(zip(relation.columns, relation.types, strict=True)))

    def log_prob(self, *arguments: Any) -> Any:
        return self._answered(arguments, 0, "logp(row)", lambda rows: self._ask("score", rows)[0])

    def predict(self, *arguments: Any) -> Any:
        def answer(rows: Any, target: str) -> Any:
            self._check_number(target)
            return self._ask("predict", rows, target=target)[0]

        return self._answered(arguments, 1, "predict(row, 'price')", answer)

    def level(self, *arguments: Any) -> Any:
        def answer(rows: Any, target: str) -> Any:
            return self._as_text(self._ask("predict", rows, target=target)[0])

        return self._answered(arguments, 1, "level(row, 'cut')", answer)

    def probability(self, *arguments: Any) -> Any:
        def answer(rows: Any, event: str) -> Any:
            return self._ask("probability", rows, event=event)[0]

        return self._answered(arguments, 1, "probability(row, 'price > 1000')", answer)

    def quantile(self, *arguments: Any) -> Any:
        def answer(rows: Any, target: str, level: Any) -> Any:
            self._check_number(target)
            return self._ask("predict", rows, target=target, quantiles=[float(level)])[1]

        return self._answered(arguments, 2, "quantile(row, 'price', 0.9)", answer)

    def draw(self, *arguments: Any) -> Any:
        def answer(rows: Any) -> Any:
            drawn = self._table.sample(given=rows, random_state=self._seed(), frame="arrow")
            return self._as_rows(drawn)

        return self._answered(arguments, 0, "draw(row)", answer)

    def rows(self, number: Any, given: Any) -> Any:
        lists = [
            self._as_rows(self._table.sample(int(n), event or None, self._seed(), frame="arrow")).to_pylist()
            for n, event in zip(number.to_pylist(), given.to_pylist(), strict=True)
        ]
        return self._arrow.array(lists, self._arrow.list_(self._arrow.struct(self._like)))

    # ---- columns of Arrow

    def _answered(self, arguments: tuple[Any, ...], n_values: int, form: str, answer: _Answer) -> Any:
        """The answers to rows; rows with other values are answered apart."""
        if len(arguments) != 1 + n_values or not self._arrow.types.is_struct(arguments[0].type):
            got = ", ".join(str(argument.type) for argument in arguments)
            raise ValueError(bad_argument("arguments", f"…_{form} with {_ROW}", got))
        rows = self._read(arguments[0])
        values = list(zip(*(argument.to_pylist() for argument in arguments[1:]), strict=True))
        distinct = list(dict.fromkeys(values)) or [()]
        if any(value is None for each in distinct for value in each):
            raise ValueError(bad_argument("arguments", f"…_{form} without NULL as a value", "NULL"))
        if len(distinct) == 1 or not len(rows):
            return _one_array(answer(rows, *distinct[0]))
        place = {each: i for i, each in enumerate(distinct)}
        groups = np.array([place[each] for each in values])
        order = np.argsort(groups, kind="stable")
        parts = [
            _one_array(answer(rows.take(order[groups[order] == i]), *each)) for i, each in enumerate(distinct)
        ]
        return self._arrow.concat_arrays(parts).take(self._arrow.array(np.argsort(order, kind="stable")))

    def _read(self, rows: Any) -> Any:
        """Structs as a frame of those columns that the model knows."""
        struct = _one_array(rows)
        names = [field.name for field in struct.type if field.name in self._columns]
        if not names:
            got = ", ".join(field.name for field in struct.type)
            raise ValueError(bad_argument("row", f"columns of the model: {', '.join(self._columns)}", got))
        # `flatten` makes the cells of a NULL row NULL.
        cells = dict(zip([field.name for field in struct.type], struct.flatten(), strict=True))
        return _plain(self._arrow.table({name: self._as_levels(name, cells[name]) for name in names}))

    def _as_levels(self, name: str, cells: Any) -> Any:
        """Booleans that SQL made of texts such as yes and no are these texts again."""
        codec = self._table.schema_.columns[name].codec
        levels = getattr(codec, "levels", None)
        if not self._arrow.types.is_boolean(cells.type) or not levels or not isinstance(levels[0], str):
            return cells
        places = [[level for level in levels if level.lower() in words] for words in _WORDS]
        if any(len(place) != 1 for place in places):
            return cells
        (no,), (yes,) = places
        texts = [None if cell is None else yes if cell else no for cell in cells.to_pylist()]
        return self._arrow.array(texts, "string")

    def _ask(self, what: str, rows: Any, **options: Any) -> Any:
        """The columns of the answer; NaN is NULL."""
        (answers,) = self._table.stream(what, [rows], **options)
        floating = self._arrow.types.is_floating
        return [
            self._arrow.array(column.to_numpy(), from_pandas=True) if floating(column.type) else column
            for column in answers.columns
        ]

    def _check_number(self, target: str) -> None:
        column = self._table.schema_.modelled_column("target", target)
        if not column.codec.numeric:
            wanted = f"a column of numbers ({column.name!r} is a {column.kind}: ask …_level or …_probability)"
            raise ValueError(bad_argument("target", wanted, target))

    def _as_text(self, column: Any) -> Any:
        """Values as text: times without digits that are all 0."""
        if self._arrow.types.is_temporal(column.type) and not self._arrow.types.is_duration(column.type):
            values = column.to_numpy()
            if values.dtype.kind == "M":
                return self._arrow.array(np.datetime_as_string(values, unit="auto"), "string")
        return column.cast("string")

    def _seed(self) -> int:
        return int(self._random.integers(2**32))

    def _as_rows(self, frame: Any) -> Any:
        columns = _plain(frame).select(self._like.names).cast(self._like).columns
        return self._arrow.StructArray.from_arrays(map(_one_array, columns), fields=list(self._like))


def _one_array(column: Any) -> Any:
    combined = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return combined.chunk(0) if getattr(combined, "num_chunks", 0) == 1 else combined


def _plain(rows: Any) -> Any:
    """A table of Arrow without dictionaries and decimals, which SQL makes of levels and of literals."""
    arrow = need("pyarrow")
    for i, field in enumerate(rows.schema):
        if arrow.types.is_dictionary(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(field.type.value_type))
        elif arrow.types.is_decimal(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(arrow.float64()))
    return rows
