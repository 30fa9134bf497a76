"""Fitted tables in SQL: functions and draws of a `KDMTable` in a DuckDB connection (extra `sql`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from kdmkit._core.checks import bad_argument, check_choice, check_instance
from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.common.call_batches import CallBatches, one_array
from kdmkit.estimators.table import KDMTable
from kdmkit.estimators.table.codecs.categories import LevelsCodec
from kdmkit.estimators.table.codecs.functions import DerivedCodec

_NAME = re.compile(r"[^\W\d]\w*")
_ROW = "a row: the alias of a table, or a struct such as {'carat': carat}"

# What DuckDB writes before the text of an error in a function.
_IN_PYTHON = re.compile(r"^.*?executing the UDF: \w+: ")
# Texts that SQL reads as false and as true.
_WORDS = (("false", "f", "no", "n"), ("true", "t", "yes", "y"))
# A function of SQL: a table of rows, and one value for all of them.
_Answer = Callable[..., Any]
# Rows of one draw; threads of a connection that this module opens.
_MOST_DRAWS, _THREADS = 1_000_000, 16
# Unseen levels that an error shows.
_SHOWN = 3


def register(
    connection: Any,
    table: KDMTable,
    name: str,
    *,
    random_state: Any = None,
    unseen: Literal["error", "missing"] = "error",
) -> None:
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

    An answer is NULL if the given cells have probability 0 under the model. DuckDB passes 2,048 rows at a
    time, in each of its threads; those of several threads are answered together. So large scans are faster
    with more threads than processors: `SET threads = 16`.

    Args:
        connection: of DuckDB.
        table: a fitted table.
        name: the start of the names of all functions; a model that was registered under it is replaced.
        random_state: of draws.
        unseen: what a level is that the fitted rows lack: an error, or a missing cell.

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
    check_choice("unseen", unseen, ("error", "missing"))
    duckdb, functions = need("duckdb", "sql"), _Functions(table, random_state, unseen == "error")
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


def answer(query: str, table: KDMTable, name: str, **options: Any) -> Any:
    """The answer to a query as a table of Arrow, in a connection of its own that can read files.

    Args:
        query, table, name, options: see `register`.
    """
    duckdb = need("duckdb", "sql")
    connection = duckdb.connect()
    try:
        connection.execute(f"SET threads = greatest({_THREADS}, current_setting('threads'))")
        register(connection, table, name, **options)
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
        refuses_unseen: whether levels that the fitted rows lack are an error.
    """

    def __init__(self, table: KDMTable, random_state: Any, refuses_unseen: bool) -> None:
        self._arrow = need("pyarrow")
        self._table, self._columns = table, list(table.schema_.columns)
        self._random = np.random.default_rng(random_state)
        self._batches = CallBatches()
        # By column of levels, the values that were checked.
        self._checked: dict[str, set[Any]] = {
            name: set() for name in self._columns if refuses_unseen and self._has_levels(name)
        }
        self._like = _plain(table.sample(1, random_state=0, frame="arrow")).schema

    def row_type(self, connection: Any) -> Any:
        """The type of a row in SQL."""
        relation = connection.from_arrow(self._like.empty_table())
        return connection.struct_type(dict(zip(relation.columns, relation.types, strict=True)))

    def log_prob(self, *arguments: Any) -> Any:
        def answer(rows: Any) -> Any:
            return self._ask("score", rows)[0]

        return self._answered(arguments, 0, "logp(row)", self._batches.of("logp", answer))

    def predict(self, *arguments: Any) -> Any:
        def answer(rows: Any, target: str) -> Any:
            self._check_number(target)
            return self._ask("predict", rows, target=target)[0]

        return self._answered(arguments, 1, "predict(row, 'price')", self._batches.of("predict", answer))

    def level(self, *arguments: Any) -> Any:
        def answer(rows: Any, target: str) -> Any:
            return self._as_text(self._ask("predict", rows, target=target)[0])

        return self._answered(arguments, 1, "level(row, 'cut')", self._batches.of("level", answer))

    def probability(self, *arguments: Any) -> Any:
        def answer(rows: Any, event: str) -> Any:
            return self._ask("probability", rows, event=event)[0]

        return self._answered(
            arguments, 1, "probability(row, 'price > 1000')", self._batches.of("probability", answer)
        )

    def quantile(self, *arguments: Any) -> Any:
        def answer(rows: Any, target: str, level: Any) -> Any:
            self._check_number(target)
            if isinstance(level, bool) or not isinstance(level, int | float | Decimal):
                raise ValueError(bad_argument("q", "a number 0 < q < 1", repr(level)))
            return self._ask("predict", rows, target=target, quantiles=[float(level)])[1]

        return self._answered(
            arguments, 2, "quantile(row, 'price', 0.9)", self._batches.of("quantile", answer)
        )

    def draw(self, *arguments: Any) -> Any:
        def answer(rows: Any) -> Any:
            drawn = self._table.sample(given=rows, random_state=self._seed(), frame="arrow")
            return self._as_rows(drawn)

        return self._answered(arguments, 0, "draw(row)", answer)

    def rows(self, number: Any, given: Any) -> Any:
        draws = [
            self._new_rows(n, event) for n, event in zip(number.to_pylist(), given.to_pylist(), strict=True)
        ]
        ends = np.cumsum([0, *map(len, draws)], dtype=np.int32)
        every = self._arrow.concat_arrays(draws or [self._as_rows(self._like.empty_table())])
        return self._arrow.ListArray.from_arrays(ends, every)

    def _new_rows(self, n: Any, event: Any) -> Any:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _MOST_DRAWS:
            got = "NULL" if n is None else repr(n)
            raise ValueError(bad_argument("n", f"a whole number from 1 to {_MOST_DRAWS:,}", got))
        if not isinstance(event, str | None):
            raise ValueError(bad_argument("given", "a condition as text, such as 'price > 700'", repr(event)))
        return self._as_rows(self._table.sample(n, event or None, self._seed(), frame="arrow"))

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
            return one_array(answer(rows, *distinct[0]))
        place = {each: i for i, each in enumerate(distinct)}
        groups = np.array([place[each] for each in values])
        order = np.argsort(groups, kind="stable")
        parts = [
            one_array(answer(rows.take(order[groups[order] == i]), *each)) for i, each in enumerate(distinct)
        ]
        return self._arrow.concat_arrays(parts).take(self._arrow.array(np.argsort(order, kind="stable")))

    def _read(self, rows: Any) -> Any:
        """Structs as a frame of those columns that the model knows."""
        struct = one_array(rows)
        names = [field.name for field in struct.type if field.name in self._columns]
        if not names:
            got = ", ".join(field.name for field in struct.type)
            raise ValueError(bad_argument("row", f"columns of the model: {', '.join(self._columns)}", got))
        # `flatten` makes the cells of a NULL row NULL.
        cells = dict(zip([field.name for field in struct.type], struct.flatten(), strict=True))
        table = _plain(self._arrow.table({name: self._as_levels(name, cells[name]) for name in names}))
        for name in names:
            if name in self._checked:
                self._check_levels(name, table.column(name))
        return table

    def _has_levels(self, name: str) -> bool:
        codec = self._table.schema_.columns[name].codec
        return isinstance(codec.inner if isinstance(codec, DerivedCodec) else codec, LevelsCodec)

    def _check_levels(self, name: str, cells: Any) -> None:
        """Raises if a cell is a level that the fitted rows lack."""
        new = [value for value in cells.unique().to_pylist() if value not in self._checked[name]]
        if not new:
            return
        read = self._table.schema_.read(self._arrow.table({name: self._arrow.array(new, cells.type)}))
        column = read.columns[name]
        is_unseen = ~self._table.schema_.columns[name].codec.encode(column).observed.numpy() & ~column.missing
        if is_unseen.any():
            listed = ", ".join(map(repr, column.values[is_unseen][:_SHOWN].tolist()))
            wanted = "levels of the fitted rows (register(…, unseen='missing') takes others for NULL)"
            raise ValueError(bad_argument(name, wanted, listed))
        self._checked[name].update(new)

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
        return self._arrow.StructArray.from_arrays(map(one_array, columns), fields=list(self._like))


def _plain(rows: Any) -> Any:
    """A table of Arrow without dictionaries and decimals, which SQL makes of levels and of literals."""
    arrow = need("pyarrow")
    for i, field in enumerate(rows.schema):
        if arrow.types.is_dictionary(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(field.type.value_type))
        elif arrow.types.is_decimal(field.type):
            rows = rows.set_column(i, field.name, rows.column(i).cast(arrow.float64()))
    return rows
