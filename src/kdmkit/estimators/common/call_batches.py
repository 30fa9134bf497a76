"""Calls of one function by several threads, answered in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kdmkit.estimators.common.arrow import need

# Seconds that a batch waits for other threads.
_PATIENCE = 0.005
# A function of a table of rows, and of one value for all of them.
Answer = Callable[..., Any]


@dataclass(eq=False)
class _Call:
    """One call of a function: its rows, and the answer once there is one."""

    key: Any
    rows: Any
    answer: Any = None


class CallBatches:
    """Answers the calls of several threads of DuckDB together.

    DuckDB calls a function with 2,048 rows at a time, in each of its threads. One batch is answered at a
    time; the calls that wait meanwhile are the next one. It waits a moment for the threads that have just
    been answered.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[_Call] = []
        self._is_busy, self._n_threads = False, 1

    def of(self, what: str, answer: Answer) -> Answer:
        """The function that answers rows together with those of other calls of the same kind."""

        def batched(rows: Any, *values: Any) -> Any:
            call = _Call((what, values, rows.schema.names, rows.schema.types), rows)
            calls = self._turn(call)
            if calls:
                try:
                    self._answer(calls, answer, values)
                finally:
                    self._end_turn(calls)
            return call.answer

        return batched

    def _turn(self, call: _Call) -> list[_Call]:
        """Waits until a call is answered, or can be: the calls to answer with it, itself first."""
        with self._changed:
            self._waiting.append(call)
            self._changed.notify_all()
            self._changed.wait_for(lambda: call.answer is not None or not self._is_busy)
            if call.answer is not None:
                return []
            self._is_busy = True
            self._changed.wait_for(lambda: len(self._waiting) >= self._n_threads, _PATIENCE)
            others = [other for other in self._waiting if other is not call and other.key == call.key]
            self._waiting = [other for other in self._waiting if other is not call and other not in others]
            return [call, *others]

    def _answer(self, calls: list[_Call], answer: Answer, values: tuple[Any, ...]) -> None:
        rows = need("pyarrow").concat_tables([call.rows for call in calls])
        try:
            answers = one_array(answer(rows, *values))
        except Exception:
            if len(calls) == 1:
                raise
            return self._answer(calls[:1], answer, values)
        start = 0
        for call in calls:
            call.answer = answers.slice(start, len(call.rows))
            start += len(call.rows)

    def _end_turn(self, calls: list[_Call]) -> None:
        """Calls without an answer wait again: that of another one may be the mistake."""
        with self._changed:
            self._n_threads = len(calls) + len(self._waiting)
            self._waiting += [call for call in calls[1:] if call.answer is None]
            self._is_busy = False
            self._changed.notify_all()


def one_array(column: Any) -> Any:
    """A column of Arrow in one piece."""
    combined = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return combined.chunk(0) if getattr(combined, "num_chunks", 0) == 1 else combined
