"""Questions to models are answered by processes that are ended if they take too long.

    server ──(starts)──► template process: loads the model, then waits
       │                        │ copies itself (fork) for every worker: no time, shared memory
       └──(asks, one question at a time)──► worker process

A worker that is ended is replaced by a new copy of its template at once.
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
from typing import Any, NoReturn

import torch

from kdmkit.explore.guard import RequestError
from kdmkit.explore.page_models import Models, PageModel, answer_or_refuse

# Questions after which a worker is replaced: its memory starts anew.
_QUESTIONS = 2000
_SIZE = struct.Struct("!Q")


@dataclass(frozen=True)
class Limits:
    """Limits of questions to one model.

    Args:
        workers: processes that answer.
        seconds: the time of one question.
        waiting: questions that may wait for a worker.
    """

    workers: int = 2
    seconds: float = 30.0
    waiting: int = 64


class ModelPool:
    """The processes of one model. `start` it before the process has threads.

    Args:
        entry: the model, or what makes it. It is made in the template process, never in this one.
        limits: of questions.
    """

    def __init__(self, entry: PageModel, limits: Limits) -> None:
        self.entry, self._limits = entry, limits
        self._idle: list[_Worker] = []
        self._free: asyncio.Semaphore | None = None
        self._waiting = 0
        self.restarts = 0

    def start(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Starts the template process, and a thread that waits for its model."""
        self._control, theirs = socket.socketpair()
        self._process = os.fork()
        if not self._process:
            self._control.close()
            _run_template(theirs, self.entry)
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

    async def ask(self, method_name: str, *arguments: Any) -> Any:
        """The answer of the model's method, from the first worker that is free."""
        if self._free is None:  # belongs to the event loop
            self._free = asyncio.Semaphore(self._limits.workers)
        if self._waiting >= self._limits.waiting:
            raise RequestError(503, "too many questions are waiting; try again")
        self._waiting += 1
        try:
            await asyncio.wait_for(self._free.acquire(), self._limits.seconds)
        except TimeoutError:
            raise RequestError(503, "all processes are busy; try again") from None
        finally:
            self._waiting -= 1
        try:
            return await self._ask_worker(method_name, arguments)
        finally:
            self._free.release()

    async def _ask_worker(self, method_name: str, arguments: tuple[Any, ...]) -> Any:
        worker = self._idle.pop() if self._idle else await self._new_worker()
        is_whole = False
        try:
            async with asyncio.timeout(self._limits.seconds):
                status, reply = await worker.ask((method_name, arguments))
            is_whole = True
        except TimeoutError:
            wanted = f"the question took more than {self._limits.seconds:g} seconds: ask for less at once"
            raise RequestError(504, wanted) from None
        except (EOFError, OSError) as error:
            raise RequestError(500, "the process of the question ended, maybe for lack of memory") from error
        finally:
            if is_whole and worker.n_questions < _QUESTIONS:
                self._idle.append(worker)
            else:
                worker.end()
                self.restarts += not is_whole
        if status != 200:
            raise RequestError(status, reply)
        return reply

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
        return _Worker(reader, writer, await _receive(reader))

    @property
    def n_waiting(self) -> int:
        """Questions that wait for a worker."""
        return self._waiting

    def stop(self) -> None:
        """Ends all processes of the model."""
        for worker in self._idle:
            worker.end()
        self._idle.clear()
        self._control.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._process, signal.SIGTERM)
            os.waitpid(self._process, 0)


class _Worker:
    """A worker process, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: int) -> None:
        self._reader, self._writer, self._process = reader, writer, process
        self.n_questions = 0

    async def ask(self, question: Any) -> Any:
        self.n_questions += 1
        content = pickle.dumps(question)
        self._writer.write(_SIZE.pack(len(content)) + content)
        await self._writer.drain()
        return await _receive(self._reader)

    def end(self) -> None:
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)


async def _receive(reader: asyncio.StreamReader) -> Any:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return pickle.loads(await reader.readexactly(size))


# ---- in the processes of a model


def _run_template(control: socket.socket, entry: PageModel) -> NoReturn:
    """Makes the model and copies this process for every worker, until the server ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    torch.set_num_threads(1)  # and no threads, which a copy would not have
    try:
        entry.prepare()
        control.sendall(json.dumps([entry.kind, entry.state, entry.message]).encode() + b"\n")
        while entry.state == "ready":
            message, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            if not os.fork():
                control.close()
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


def _answer(model: Any, method_name: str, arguments: Any) -> tuple[int, Any]:
    """The status of HTTP, and the answer or the text of an error."""
    try:
        return 200, answer_or_refuse(getattr(model, method_name), *arguments)
    except RequestError as error:
        return error.status, str(error)
    except Exception as error:
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

    async def ask(self, name: str, kind: Any, method_name: str, *arguments: Any) -> Any:
        self.check(name, kind)
        return await self.pools[name].ask(method_name, *arguments)
