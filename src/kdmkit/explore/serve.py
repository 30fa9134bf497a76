"""Runs the server: in the foreground with processes for questions, or in a thread beside a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
import webbrowser
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kdmkit._core.checks import bad_argument, check_count, check_number
from kdmkit.explore.app import create_app
from kdmkit.explore.lanes import Limits
from kdmkit.explore.page_models import Models, ThreadModels
from kdmkit.explore.pool import PooledModels

# Seconds that a connection may wait without another request, and that a server may take to start or to end.
_IDLE, _STARTED_WITHIN = 30, 10.0
# Connections at the same time.
_MOST_CONNECTIONS = 500
# Seconds until a whole header has to arrive, and connections that may wait for one.
_HEADER_SECONDS, _MOST_SILENT = 5.0, 100


class Server:
    """A server of some models.

    Args:
        models: models by name, see `create_app`.
        host: the address to listen on.
        port: 0 is any free one.
        allowed_hosts: other names by which it may be called.
        stop_on_failure: whether the server ends if a model cannot be made; `error` has the reason.
        workers: processes that answer short questions to each model; as many answer long ones (only `run`,
            with `os.fork`).
        time_limit: seconds of one question (only `run`, with `os.fork`): its process is then replaced.
        memory_limit: megabytes that one question may take (only `run`, on Linux).
        token: what requests to the API need; None is a random one.
        page: whether it has the page, beside the API.

    >>> from kdmkit.explore import example_models
    >>> server = Server(example_models())  # doctest: +SKIP
    >>> server.start()  # doctest: +SKIP
    >>> server.stop()  # doctest: +SKIP
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Collection[str] = (),
        stop_on_failure: bool = False,
        workers: int = 2,
        time_limit: float = 30.0,
        memory_limit: int = 2048,
        token: str | None = None,
        page: bool = True,
    ) -> None:
        time_limit = check_number("time_limit", time_limit, "> 0", positive=True)
        memory_limit = check_count("memory_limit", memory_limit)
        self._limits = Limits(check_count("workers", workers), time_limit, megabytes=memory_limit)
        if token is not None and (not isinstance(token, str) or not token.isascii() or len(token) < 8):
            raise ValueError(bad_argument("token", "at least 8 ASCII characters", "another text"))
        self.token = token or secrets.token_urlsafe(16)
        self.error: Exception | None = None
        self._stop_on_failure, self._page, self._allowed_hosts = stop_on_failure, page, allowed_hosts
        self._entries = dict(models)
        ThreadModels(self._entries)  # checks them
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page, with its token. The part after # is not sent to any server."""
        return f"{self.address}/#token={self.token}"

    @property
    def address(self) -> str:
        """The address without the token."""
        return f"http://{_in_url(_reachable_name(self.host), self.port)}"

    def run(self, *, open_browser: bool = False) -> None:
        """Answers until it is interrupted.

        Questions are answered by processes of their own, where processes can be copied (`os.fork`) and this
        one has no threads. Else they are answered here, one after the other and without a time limit.
        """
        pooled = hasattr(os, "fork") and threading.active_count() == 1
        models: Models = (
            PooledModels(self._entries, self._limits, self._fail)
            if pooled
            else ThreadModels(self._entries, self._fail)
        )
        self._serve(models, open_browser)

    def _serve(self, models: Models, open_browser: bool = False) -> None:
        app = create_app(
            models,
            host=self.host,
            token=self.token,
            allowed_hosts=self._allowed_hosts,
            start=False,
            page=self._page,
        )
        config = uvicorn.Config(
            app,
            http=_TimedProtocol,
            log_level="warning",
            access_log=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=int(self._limits.seconds) + 1,
            server_header=False,
            lifespan="off",
            ws="none",
        )
        self._server = uvicorn.Server(config)
        models.start()  # copies of this process come before its threads
        if open_browser:
            self.open_browser()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self._server.run([self._socket])
        finally:
            models.stop()

    def start(self) -> Server:
        """Answers in a thread."""
        models = ThreadModels(self._entries, self._fail)
        self._thread = threading.Thread(target=self._serve, args=(models,), daemon=True)
        self._thread.start()
        end = time.monotonic() + _STARTED_WITHIN
        while not self._is_started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        return self

    @property
    def _is_started(self) -> bool:
        return self._server is not None and self._server.started

    def stop(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STARTED_WITHIN)
        self._socket.close()

    def _fail(self, error: Exception) -> None:
        self.error = error
        if self._stop_on_failure and self._server is not None:
            self._server.should_exit = True

    def open_browser(self) -> None:
        """Opens the page in the browser of this machine, once the server answers."""
        threading.Timer(0.2, webbrowser.open, [self.url]).start()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


def show(
    models: Mapping[str, Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    open_browser: bool = True,
    block: bool = False,
    allowed_hosts: Collection[str] = (),
) -> Server:
    """Starts a server and opens its page.

    Args:
        models: models by name, see `create_app`.
        host, port: where the server listens; port 0 is any free one.
        open_browser: whether to open the page in the browser of this machine.
        block: whether to wait until the server is interrupted.
        allowed_hosts: other names by which the server may be called.

    Returns:
        The server; `server.url` is its address, and `server.stop()` ends it.

    >>> from kdmkit.explore import example_models
    >>> server = show(example_models())  # doctest: +SKIP
    """
    server = Server(models, host=host, port=port, allowed_hosts=allowed_hosts)
    if block:
        server.run(open_browser=open_browser)
        return server
    if open_browser:
        server.open_browser()
    return server.start()


# ---- connections


class _TimedProtocol(H11Protocol):
    """Closes connections that send no whole header in time, the oldest ones first if there are many."""

    _silent: ClassVar[OrderedDict[_TimedProtocol, asyncio.TimerHandle]] = OrderedDict()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif not self.transport.is_closing() and self not in self._silent:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        self._silent[self] = self.loop.call_later(_HEADER_SECONDS, self._drop)
        if len(self._silent) > _MOST_SILENT:
            next(iter(self._silent))._drop()

    def _forget(self) -> None:
        timer = self._silent.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _drop(self) -> None:
        self._forget()
        self.transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio then sends the body of an answer at once (TCP_NODELAY), instead of some
    # 40 ms after the header.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_MOST_CONNECTIONS)  # the page may be opened before the server answers
    except (OSError, OverflowError) as error:
        listening.close()
        raise ValueError(
            bad_argument("host, port", "an address that is free", f"{host}:{port}, {error}")
        ) from error
    return listening


def _reachable_name(host: str) -> str:
    """How a browser reaches the server: a numeric address, also where it listens on all of them."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    # Asks the system which address packets to another network would have; nothing is sent.
    family, other = (socket.AF_INET6, "2001:db8::1") if host == "::" else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "localhost"


def _in_url(name: str, port: Any) -> str:
    """A name and a port as a URL has them.

    >>> _in_url("127.0.0.1", 80), _in_url("::1", 80)
    ('127.0.0.1:80', '[::1]:80')
    """
    return f"{f'[{name}]' if ':' in name else name}:{port}"
