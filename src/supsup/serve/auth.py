"""Access control: who may predict, who may change the model, how large a request may be, and headers for browsers.

A page on another site can make a visitor's browser send requests here. So a server that is reachable only from this
machine checks the Host header, because a foreign name may be made to resolve to 127.0.0.1. And requests that change
the model must come from our own page or from no page at all.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supsup.serve.errors import RequestError, error_response
from supsup.serve.metrics import Metrics
from supsup.serve.settings import LOOPBACK, ServerSettings

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DRAINED = 16 << 20  # bytes of a rejected body that are still read
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AccessControl:
    """Middleware: rejects what is not allowed, adds security headers, and counts requests."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics, self._local = app, settings, metrics, settings.local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                response = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    response.setdefault(name, value)
            await send(message)

        try:
            try:
                self._check(scope["method"], scope["path"], headers)
                limited = _limit_body(receive, headers, self._max_bytes(scope["path"]))
            except RequestError as error:
                if error.status == 413:
                    await _drain(receive)
                await error_response(error.status, error.reason)(scope, receive, send_with_headers)
                return
            await self._app(scope, limited, send_with_headers)
        finally:
            self._metrics.request(_route(scope), status, time.perf_counter() - begin)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._local and _host_name(host) not in LOOPBACK:
            raise RequestError(421, "this server is reachable only as localhost; use http://127.0.0.1 with its port")
        if method in _SAFE_METHODS:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and origin.rpartition("://")[2] != host) or site not in ("same-origin", "none"):
            raise RequestError(403, "requests from pages of other sites are rejected")
        if path == "/predict":
            return
        if self._settings.read_only:
            raise RequestError(403, "this server was started with --read-only; the model cannot be changed")
        self._check_token(headers.get("authorization", ""))

    def _check_token(self, authorization: str) -> None:
        if self._settings.token is None:
            return
        kind, _, token = authorization.partition(" ")
        matches = hmac.compare_digest(token.strip().encode(), self._settings.token.encode())
        if kind.lower() != "bearer" or not matches:
            raise RequestError(401, "changing the model needs the server's token: Authorization: Bearer TOKEN")

    def _max_bytes(self, path: str) -> int:
        limits = self._settings.limits
        return limits.learn_bytes if path.startswith("/tasks/") else limits.predict_bytes


def _limit_body(receive: Receive, headers: Headers, most: int) -> Receive:
    """`receive` that rejects a body of more than `most` bytes, before reading it if Content-Length says so."""
    too_large = f"the request has more than {most:,} bytes; send fewer or smaller images"
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:20]) > most:
        raise RequestError(413, too_large)
    received = 0

    async def limited() -> Message:
        nonlocal received
        message: MutableMapping[str, Any] = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise RequestError(413, too_large)
        return message

    return limited


async def _drain(receive: Receive) -> None:
    """Read some of a rejected body: a client that is cut off while sending may never see the response."""
    received, more = 0, True
    while more and received < _DRAINED:
        message = await receive()
        received += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


def _host_name(host: str) -> str:
    """The name or address in a Host header, without the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _route(scope: Scope) -> str:
    """The endpoint's name, as a label for metrics; never the path, which could be anything."""
    return str(getattr(scope.get("endpoint"), "__name__", "none"))
