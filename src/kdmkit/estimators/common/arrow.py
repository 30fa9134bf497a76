"""Arrow tables: frames as tables, columns as features, answers as columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.estimators.common.arrays import Array, CheckedRows

#: Makes named columns, or an Arrow table, of the rows of a batch; its keyword-only arguments are options.
BatchAnswer = Callable[..., Any]


def need(module: str, extra: str = "table") -> Any:
    """A module of an extra; if it is not installed, the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        text = f"{package} is needed for tables of this kind: pip install 'kdmkit[{extra}]'"
        raise ImportError(text, name=package) from error


# ---- tables


def as_arrow(frame: Any) -> Any:
    """A frame of any kind, or a mapping of arrays, as an Arrow table."""
    arrow = need("pyarrow")
    if isinstance(frame, arrow.Table):
        return frame
    if isinstance(frame, arrow.RecordBatch):
        return arrow.Table.from_batches([frame])
    if isinstance(frame, dict):
        columns = {str(name): np.asarray(values) for name, values in frame.items()}
        lists = {name: v.tolist() if v.dtype == object else v for name, v in columns.items()}
        return arrow.table({name: arrow.array(values) for name, values in lists.items()})
    frame = frame.reset_index(drop=True) if hasattr(frame, "reset_index") else frame
    return need("narwhals.stable.v2").from_native(frame, eager_only=True).to_arrow()


def select_columns(argument: str, table: Any, names: Sequence[str]) -> Any:
    """Some columns of a table; a name that it lacks, or has twice, raises."""
    for name in names:
        count = table.column_names.count(name)
        if count != 1:
            similar = f"{table.column_names}{did_you_mean(name, table.column_names)}"
            got = f"{count} of them" if count else similar
            raise ValueError(bad_argument(argument, f"one column {name!r}", got))
    return table.select(list(names))


# ---- features


def feature_matrix(table: Any, names: Sequence[str] | None, count: int) -> Array:
    """The features of every row, float32 if all columns are; cells must be finite numbers.

    One column of lists, each with all features of a row, serves as well (embeddings).

    Args:
        table: an Arrow table.
        names: the columns, in the order of the model's features; None takes all columns.
        count: the number of features.

    >>> import pyarrow
    >>> feature_matrix(pyarrow.table({"a": [1, 2], "b": [3.5, 4.0], "c": ["x", "y"]}), ["b", "a"], 2)
    array([[3.5, 1. ],
           [4. , 2. ]])
    """
    columns = table if names is None else select_columns("batch", table, names)
    names = table.column_names if names is None else names
    if len(names) == 1 and _is_list(columns.column(0).type):
        return _matrix_of_lists(names[0], columns.column(0), count)
    if len(names) != count:
        wanted = f"{count} columns, the features of the model (`columns` chooses)"
        raise ValueError(bad_argument("batch", wanted, f"{len(names)}: {list(names)}"))
    return np.stack([_numbers(name, column) for name, column in zip(names, columns.columns, strict=True)], 1)


def _matrix_of_lists(name: str, column: Any, count: int) -> Array:
    _check_present(name, column)
    cells = column.combine_chunks()
    lengths = np.asarray(need("pyarrow.compute").list_value_length(cells))
    if (lengths != count).any():
        got = f"one of {lengths[lengths != count][0]}"
        raise ValueError(bad_argument(f"batch[{name!r}]", f"lists of {count} numbers", got))
    return _numbers(name, cells.flatten()).reshape(-1, count)


def _is_list(kind: Any) -> bool:
    types = need("pyarrow").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _numbers(name: str, column: Any) -> Array:
    """A column as finite floating-point numbers."""
    arrow = need("pyarrow")
    types, kind = arrow.types, column.type
    if types.is_boolean(kind):
        column = column.cast(arrow.uint8())
    elif not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
    ):
        raise ValueError(bad_argument(f"batch[{name!r}]", "numbers", f"cells of the type {kind}"))
    _check_present(name, column)
    values = np.asarray(
        column.cast(arrow.float32() if types.is_float32(kind) else arrow.float64(), safe=False)
    )
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ValueError(bad_argument(f"batch[{name!r}]", "finite numbers", f"{values[row]} in row {row}"))
    return values


def _check_present(name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        got = f"{column.null_count} missing, the first in row {row}"
        raise ValueError(bad_argument(f"batch[{name!r}]", "no missing cells", got))


# ---- answers


def answer_batch(
    read: Callable[[Any], Any], answer: Callable[[Any], Any], keep: Sequence[str], table: Any
) -> Any:
    """The answers to one batch of rows as an Arrow table.

    Args:
        read: takes the rows out of an Arrow table.
        answer: makes named columns of rows.
        keep: columns of the batch that stand in front of the answers.
    """
    kept = select_columns("keep", table, keep)
    made = as_arrow(answer(read(table)))
    for name in kept.column_names:
        if name in made.column_names:
            wanted = f"columns with other names than those of the answer, {made.column_names}"
            raise ValueError(bad_argument("keep", wanted, repr(name)))
    names = [*kept.column_names, *made.column_names]
    return need("pyarrow").table([*kept.columns, *made.columns], names=names) if keep else made


def answer_rows(answer: Callable[[CheckedRows], dict[str, Array]], rows: CheckedRows) -> Any:
    """`answer` as an Arrow table; without rows, columns of the same types without cells."""
    if len(rows.array):
        return as_arrow(answer(rows))
    stand_in = CheckedRows(np.zeros((1, rows.array.shape[1]), dtype=rows.array.dtype))
    return as_arrow(answer(stand_in)).slice(0, 0)


def check_answer_options(what: str, answer: BatchAnswer, options: Mapping[str, Any]) -> None:
    """Options that an answer lacks, or does not know, raise before the first batch."""
    kinds = [k for k in inspect.signature(answer).parameters.values() if k.kind is k.KEYWORD_ONLY]
    names = [k.name for k in kinds]
    wrong = [name for name in options if name not in names]
    if wrong:
        raise TypeError(bad_argument(f"options of {what!r}", f"some of {names}", repr(wrong[0])))
    absent = [k.name for k in kinds if k.default is k.empty and k.name not in options]
    if absent:
        raise TypeError(bad_argument(f"options of {what!r}", f"{absent[0]}=…", list(options) or "none"))
