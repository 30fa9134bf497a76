"""Who may ask, and how requests are refused: hosts, a token, limits of bodies, safe headers."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import secrets
from collections.abc import Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Bytes of one request; of one with rows.
MOST_BYTES, MOST_BYTES_OF_ROWS = 1 << 20, 1 << 25
# Bytes of all bodies at the same time.
_MOST_AT_ONCE = 1 << 28
#: The type of rows in the form of Arrow.
ARROW = "application/vnd.apache.arrow.stream"
# Seconds in which a body has to arrive.
_SECONDS = 20.0

_HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<address>[0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: of HTTP.
        text: for the person in front of the page.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    def response(self) -> Response:
        return json_response({"error": str(self)}, self.status)


def json_response(content: Any, status: int = 200) -> Response:
    """JSON; a number that JSON cannot express is an error of the server."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, {"cache-control": "no-store"}, "application/json")


def response_of(answer: Any) -> Response:
    """An answer of a model: bytes are a stream of Arrow, texts are CSV, others JSON."""
    uncached = {"cache-control": "no-store"}
    if isinstance(answer, bytes):
        return Response(answer, 200, uncached, ARROW)
    if isinstance(answer, str):
        headers = {**uncached, "content-disposition": 'attachment; filename="draws.csv"'}
        return Response(answer.encode(), 200, headers, "text/csv; charset=utf-8")
    return json_response(answer)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_be_host(header: str, bound: str, allowed: Collection[str] = ()) -> bool:
    """Whether a Host header can be that of this server.

    This is a check against DNS rebinding: a page of another site, whose name was made to point here, sends
    that name. A numeric address is the one that the connection was made to.

    >>> may_be_host("localhost:8000", "127.0.0.1"), may_be_host("evil.example", "127.0.0.1")
    (True, False)
    >>> may_be_host("192.0.2.7:80", "0.0.0.0"), may_be_host("192.0.2.7:80", "127.0.0.1")
    (True, False)
    """
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    name = (match["name"] or match["address"]).lower()
    if is_loopback(name) or name == bound.lower() or name in {host.lower() for host in allowed}:
        return True
    return not is_loopback(bound) and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Refuses foreign hosts, requests without the token, and bodies that are too large or no JSON.

    Args:
        app: the application behind.
        host: the address that the server listens on.
        token: the header `X-Kdmkit-Token` that every request to `/api` needs.
        allowed_hosts: other names of this machine.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str, allowed_hosts: Collection[str] = ()) -> None:
        self.app, self.host, self.token, self.allowed_hosts = app, host, token, allowed_hosts
        self._n_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        n_bytes = 0

        async def receive_counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n = len(message.get("body", b""))
            n_bytes, self._n_bytes = n_bytes + n, self._n_bytes + n
            if self._n_bytes > _MOST_AT_ONCE:
                raise RequestError(503, "too many large requests at the same time; try again")
            return message

        request = Request(scope)
        try:
            self._check(request)
            body = await _timely_body(request, receive_counted)
            await self.app(scope, _once(body), send_guarded)
        except RequestError as error:
            await error.response()(scope, receive, send_guarded)
        finally:
            self._n_bytes -= n_bytes

    def _check(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not may_be_host(hosts[0], self.host, self.allowed_hosts):
            raise RequestError(403, "this server does not answer to this host name")
        if not request.url.path.startswith(("/api/", "/metrics")):
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        token = request.headers.get("x-kdmkit-token", bearer if scheme.lower() == "bearer" else "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            raise RequestError(
                401, "open the page by the address that the command printed: its token is missing"
            )
        content_type = request.headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        arrow = _has_rows(request) and is_arrow(content_type)
        if request.method == "POST" and kind != "application/json" and not arrow:
            raise RequestError(
                415, "content-type: expected application/json" + f" or {ARROW}" * _has_rows(request)
            )


def is_arrow(content_type: str) -> bool:
    """Whether a body is a stream of Arrow.

    >>> is_arrow("application/vnd.apache.arrow.stream"), is_arrow("application/json")
    (True, False)
    """
    return content_type.partition(";")[0].strip().lower() == ARROW


def _has_rows(request: Request) -> bool:
    return "/rows/" in request.url.path


async def _timely_body(request: Request, receive: Receive) -> bytes:
    """The body, unless it is too large or too slow."""
    try:
        return await asyncio.wait_for(_limited_body(request, receive), _SECONDS)
    except TimeoutError:
        raise RequestError(408, f"body: expected within {_SECONDS:g} seconds") from None


async def _limited_body(request: Request, receive: Receive) -> bytes:
    most = MOST_BYTES_OF_ROWS if _has_rows(request) else MOST_BYTES
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise RequestError(413, f"body: expected at most {most:,} bytes")
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        if len(body) > most:
            raise RequestError(413, f"body: expected at most {most:,} bytes")
        more = message.get("more_body", False)
    return bytes(body)


def _once(body: bytes) -> Receive:
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        return next(messages, {"type": "http.disconnect"})

    return receive
