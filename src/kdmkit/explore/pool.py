"""Questions to models are answered by processes that are ended if they take too long.

    server ──(starts)──► template process: loads the model, then waits
       │                        │ copies itself (fork) for every worker: no time, shared memory
       └──(asks, one question at a time)──► worker process

A worker that is ended is replaced by a new copy of its template at once.

Questions start in the short lane, those with many rows in the long lane. A question that takes longer than
people notice moves to the long lane with its worker, which gets a lower priority, and waits there for its
turn. So the workers of the short lane are there for short questions, whatever others ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from kdmkit.explore.guard import RequestError
from kdmkit.explore.lanes import Lane, Limits
from kdmkit.explore.page_models import Models, PageModel, answer_or_refuse

# Questions after which a worker is replaced: its memory starts anew.
_QUESTIONS = 2000
_SIZE = struct.Struct("!Q")


# Seconds and bytes of short questions. What workers of long ones add to their priority.
_SHORT_SECONDS, _SHORT_BYTES, _NICE = 0.5, 1 << 16, 5
# What questions with rows import: once, and not in each copy.
_MODULES = ("pyarrow", "pyarrow.csv", "narwhals.stable.v2")
_TOO_LARGE = 413


class ModelPool:
    """The processes of one model. `start` it before the process has threads.

    Args:
        entry: the model, or what makes it. It is made in the template process, never in this one.
        limits: of questions.
    """

    def __init__(self, entry: PageModel, limits: Limits) -> None:
        self.entry, self._limits = entry, limits
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._short = Lane(limits.workers, limits.waiting)
        self._long = Lane(limits.workers, max(2, limits.waiting // 8))
        self.restarts = 0

    def start(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Starts the template process, and a thread that waits for its model."""
        self._control, theirs = socket.socketpair()
        self._process = os.fork()
        if not self._process:
            self._control.close()
            _run_template(theirs, self.entry, self._limits.megabytes)
        theirs.close()
        threading.Thread(target=self._wait_for_model, args=(on_failure,), daemon=True).start()

    def _wait_for_model(self, on_failure: Callable[[Exception], None] | None) -> None:
        entry = self.entry
        with contextlib.suppress(OSError):
            reply = self._control.makefile("rb").readline()
            if not reply:
                reply = json.dumps(["table", "failed", "the process of the model ended"]).encode()
            entry.kind, state, entry.message = json.loads(reply)
            entry.state = state
            if state == "failed":
                entry.error = ValueError(entry.message)
                if on_failure is not None:
                    on_failure(entry.error)

    async def ask(self, client: str, method_name: str, *arguments: Any) -> Any:
        """The answer of the model's method, from the first worker that is free.

        Args:
            client: who asks.
        """
        question = pickle.dumps((method_name, arguments))
        is_long = len(question) > _SHORT_BYTES
        end = asyncio.get_running_loop().time() + self._limits.seconds
        lane = self._long if is_long else self._short
        await lane.enter(client, self._limits.seconds / 2)
        place = _Place(client, lane)
        try:
            return await self._ask_worker(place, question, end)
        finally:
            if place.lane is not None:
                place.lane.leave()

    async def _ask_worker(self, place: _Place, question: bytes, end: float) -> Any:
        worker = self._idle.pop() if self._idle else await self._new_worker()
        status, reply = 0, ""
        try:
            async with asyncio.timeout_at(end):
                if place.lane is self._long:
                    worker.lower_priority()
                status, reply = await self._answer(place, worker, question)
        except TimeoutError:
            wanted = f"the question took more than {self._limits.seconds:g} seconds: ask for less at once"
            raise RequestError(504, wanted) from None
        except (EOFError, OSError) as error:
            raise RequestError(500, "the process of the question ended, maybe for lack of memory") from error
        finally:
            if worker.is_fresh and status not in (0, _TOO_LARGE):
                self._idle.append(worker)
            else:
                self._workers.remove(worker)
                worker.end()
                self.restarts += status == 0
        if status != 200:
            raise RequestError(status, reply)
        return reply

    async def _answer(self, place: _Place, worker: _Worker, question: bytes) -> Any:
        """The answer of a worker. If it takes long, the question goes on in the long lane."""
        answer = asyncio.ensure_future(worker.ask(question))
        try:
            if place.lane is self._short and not await _is_short(answer, worker):
                await self._move(place, worker)
            return await answer
        finally:
            answer.cancel()

    async def _move(self, place: _Place, worker: _Worker) -> None:
        """Moves a question with its worker to the long lane. The worker pauses until it is its turn."""
        worker.lower_priority()
        worker.send_signal(signal.SIGSTOP)
        place.lane = None
        self._short.leave()
        await self._long.enter(place.client, self._limits.seconds)
        place.lane = self._long
        worker.send_signal(signal.SIGCONT)

    async def _new_worker(self) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise RequestError(503, "the process of the model ended: start the server again") from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = _Worker(reader, writer, await _receive(reader))
        self._workers.add(worker)
        return worker

    @property
    def n_waiting(self) -> int:
        """Questions that wait for a worker."""
        return self._short.n_waiting + self._long.n_waiting

    def stop(self) -> None:
        """Ends all processes of the model."""
        for worker in self._workers:
            worker.end()
        self._control.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._process, signal.SIGTERM)
            os.waitpid(self._process, 0)


async def _is_short(answer: asyncio.Future[Any], worker: _Worker) -> bool:
    """Waits for an answer as long as a short one takes; time without a processor does not count."""
    now = asyncio.get_running_loop().time
    start, waited = now(), worker.waited
    while not answer.done():
        left = _SHORT_SECONDS - (now() - start) + (worker.waited - waited)
        if left <= 0:
            return False
        await asyncio.wait({answer}, timeout=max(left, 0.01))
    return True


@dataclass(eq=False)
class _Place:
    """Where a question is: the lane whose turn it has, if it has one."""

    client: str
    lane: Lane | None


class _Worker:
    """A worker process, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: int) -> None:
        self._reader, self._writer, self._process = reader, writer, process
        self._n_questions, self._is_low = 0, False

    @property
    def is_fresh(self) -> bool:
        """Whether it can answer another question: a priority that was lowered stays low."""
        return not self._is_low and self._n_questions < _QUESTIONS

    async def ask(self, question: bytes) -> Any:
        self._n_questions += 1
        self._writer.write(_SIZE.pack(len(question)))
        self._writer.write(question)
        await self._writer.drain()
        return await _receive(self._reader)

    @property
    def waited(self) -> float:
        """Seconds that the process has waited for a processor; 0 if the system does not say."""
        with contextlib.suppress(OSError, IndexError):
            return int(Path(f"/proc/{self._process}/schedstat").read_text().split()[1]) / 1e9
        return 0.0

    def lower_priority(self) -> None:
        """Lets short questions go first."""
        self._is_low = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process, _NICE)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, number)

    def end(self) -> None:
        self._writer.close()
        self.send_signal(signal.SIGKILL)


async def _receive(reader: asyncio.StreamReader) -> Any:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return pickle.loads(await reader.readexactly(size))


# ---- in the processes of a model


def _run_template(control: socket.socket, entry: PageModel, megabytes: int) -> NoReturn:
    """Makes the model and copies this process for every worker, until the server ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    torch.set_num_threads(1)  # and no threads, which a copy would not have
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            import_module(name)
    torch.broadcast_shapes((1, 1), (2, 1))  # imports modules that take seconds
    try:
        entry.prepare()
        control.sendall(json.dumps([entry.kind, entry.state, entry.message]).encode() + b"\n")
        while entry.state == "ready":
            message, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            if not os.fork():
                control.close()
                _limit_memory(megabytes)
                _run_worker(socket.socket(fileno=descriptors[0]), entry.model)
            os.close(descriptors[0])
    except (OSError, ValueError):  # the server ended
        pass
    finally:
        os._exit(0)


def _run_worker(connection: socket.socket, model: Any) -> NoReturn:
    """Answers one question after the other, until the server ends."""
    try:
        _send(connection, os.getpid())
        with connection.makefile("rb") as questions:
            while header := questions.read(_SIZE.size):
                method_name, arguments = pickle.loads(questions.read(*_SIZE.unpack(header)))
                _send(connection, _answer(model, method_name, arguments))
    except OSError:
        pass
    finally:
        os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Limits what this process takes beyond what it has."""
    with contextlib.suppress(OSError, ImportError, ValueError):
        resource = import_module("resource")
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (megabytes << 20),) * 2)


def _answer(model: Any, method_name: str, arguments: Any) -> tuple[int, Any]:
    """The status of HTTP, and the answer or the text of an error."""
    try:
        return 200, answer_or_refuse(getattr(model, method_name), *arguments)
    except RequestError as error:
        return error.status, str(error)
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return _TOO_LARGE, "the question needs more memory than one may take: ask for less at once"
        return 500, f"the server failed: {type(error).__name__}"


def _send(connection: socket.socket, message: Any) -> None:
    content = pickle.dumps(message)
    connection.sendall(_SIZE.pack(len(content)) + content)


# ---- all models of a server


class PooledModels(Models):
    """The models of a page, each in processes of its own.

    Args:
        entries: models, or functions that make them.
        limits: of questions to each.
        on_failure: called with the error of a model that could not be made.
    """

    def __init__(
        self, entries: Any, limits: Limits, on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        super().__init__(entries, on_failure)
        self.pools = {name: ModelPool(entry, limits) for name, entry in self.entries.items()}

    def start(self) -> None:
        for pool in self.pools.values():
            pool.start(self.on_failure)

    def stop(self) -> None:
        for pool in self.pools.values():
            pool.stop()

    def counts(self) -> dict[str, dict[str, int]]:
        return {
            name: {"questions_waiting": pool.n_waiting, "processes_replaced_total": pool.restarts}
            for name, pool in self.pools.items()
        }

    async def ask(self, client: str, name: str, kind: Any, method_name: str, *arguments: Any) -> Any:
        self.check(name, kind)
        return await self.pools[name].ask(client, method_name, *arguments)
