"""Runs the server: in the foreground, or in a thread beside a notebook."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
import webbrowser
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import uvicorn

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.explore.app import create_app
from kdmkit.explore.page_models import Models

# Connections at the same time, and seconds that one may wait without a request.
_CONNECTIONS, _IDLE = 200, 30
_STARTED_WITHIN = 10.0


class Server:
    """A server of some models.

    Args:
        models: models by name, see `create_app`.
        host: the address to listen on.
        port: 0 is any free one.
        allowed_hosts: other names by which it may be called.
        stop_on_failure: whether the server ends if a model cannot be made; `error` has the reason.
        workers: processes that answer, each with the models in its memory (only `run`, with `os.fork`).

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
        workers: int = 1,
    ) -> None:
        self._workers = check_count("workers", workers)
        if self._workers > 1 and not hasattr(os, "fork"):
            raise ValueError(bad_argument("workers", "1 on this system", workers))
        self.token = secrets.token_urlsafe(16)
        self.error: Exception | None = None
        self._stop_on_failure = stop_on_failure
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._models = Models(models, self._fail)
        app = create_app(self._models, host=host, token=self.token, allowed_hosts=allowed_hosts, start=False)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE,
            server_header=False,
            lifespan="off",
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page, with its token. The part after # is not sent to any server."""
        wildcard = self.host in ("0.0.0.0", "::", "")
        name = socket.gethostname() if wildcard else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/#token={self.token}"

    def run(self) -> None:
        """Answers until it is interrupted."""
        children = []
        for _ in range(self._workers - 1):
            # Nothing has been computed yet, and there are no threads: the copy is a whole process.
            parent, child = os.getpid(), os.fork()
            if not child:
                self._run_beside(parent)
            children.append(child)
        try:
            self._serve()
        finally:
            for child in children:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(child, signal.SIGTERM)
                    os.waitpid(child, 0)

    def _run_beside(self, parent: int) -> NoReturn:
        """Answers in a second process, as long as the first one lives."""

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            self._server.should_exit = True

        threading.Thread(target=watch, daemon=True).start()
        try:
            self._serve()
        finally:
            os._exit(0)

    def _serve(self) -> None:
        self._models.start()
        with contextlib.suppress(KeyboardInterrupt):
            self._server.run([self._socket])

    def start(self) -> Server:
        """Answers in a thread."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        end = time.monotonic() + _STARTED_WITHIN
        while not self._server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """Ends the server."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STARTED_WITHIN)
        self._socket.close()

    def _fail(self, error: Exception) -> None:
        self.error = error
        if self._stop_on_failure:
            self._server.should_exit = True

    def open_browser(self) -> None:
        """Opens the page in the browser of this machine, once the server answers."""
        threading.Timer(0.2, webbrowser.open, [self.url]).start()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio then sends the body of an answer at once (TCP_NODELAY), instead of some
    # 40 ms after the header.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_CONNECTIONS)  # the page may be opened before the server answers
    except (OSError, OverflowError) as error:
        listening.close()
        raise ValueError(
            bad_argument("host, port", "an address that is free", f"{host}:{port}, {error}")
        ) from error
    return listening


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
    if open_browser:
        server.open_browser()
    if block:
        server.run()
        return server
    return server.start()
