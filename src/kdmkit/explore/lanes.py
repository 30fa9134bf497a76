"""Turns of questions: how many are answered at the same time, and who waits."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from kdmkit.explore.guard import RequestError

# The share of the places of a queue that one client may take.
_SHARE = 0.5
_BUSY = "too many questions are waiting; try again"


@dataclass(frozen=True)
class Limits:
    """Limits of questions to one model.

    Args:
        workers: processes that answer short questions; as many answer long ones.
        seconds: the time of one question. It may wait for half of it.
        waiting: short questions that may wait for a worker; an eighth as many long ones.
        megabytes: memory that one question may take beyond that of the model; Linux only.
    """

    workers: int = 2
    seconds: float = 30.0
    waiting: int = 128
    megabytes: int = 2048


class Lane:
    """Turns of questions: clients take turns, and each has a share of the places to wait in.

    Args:
        turns: questions at the same time.
        places: questions that may wait.
    """

    def __init__(self, turns: int, places: int) -> None:
        self._free, self._places = turns, places
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def n_waiting(self) -> int:
        """Questions that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    async def enter(self, client: str, seconds: float) -> None:
        """Waits for a turn, which `leave` ends."""
        if self._free:
            self._free -= 1
            return
        queue = self._waiting.get(client, deque())
        if self.n_waiting >= self._places or len(queue) >= self._places * _SHARE:
            raise RequestError(503, _BUSY)
        self._waiting[client] = queue
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait({turn})
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done():
                self.leave()
            else:
                self._forget(client, turn)
            if isinstance(error, TimeoutError):
                raise RequestError(503, "all processes are busy; try again") from None
            raise

    def leave(self) -> None:
        """Ends a turn: the next one is that of the client that waits longest for one."""
        if not self._waiting:
            self._free += 1
            return
        client, queue = self._waiting.popitem(last=False)
        queue.popleft().set_result(None)
        if queue:
            self._waiting[client] = queue

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting[client]
        queue.remove(turn)
        if not queue:
            del self._waiting[client]
