"""The door: who may ask, who may change the model, how much a request may bring, and what browsers may do with it.

A page on another site can make a visitor's browser send requests here. So the Host must be one of ours where only this
machine is served (a foreign name may be made to point here), and what changes anything must come from our own page or
from no page at all.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supsup.serve.errors import Refused, refusal
from supsup.serve.metrics import Metrics
from supsup.serve.settings import LOOPBACK, Settings

_READING = ("GET", "HEAD", "OPTIONS")
_DRAINED = 16 << 20  # bytes of a refused body
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Around an application: refuses what may not pass, adds headers for browsers, and counts."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500
        headers = Headers(scope=scope)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    given.setdefault(name, value)
            await send(message)

        try:
            try:
                self._check(scope["method"], scope["path"], headers)
                limited = _limited(receive, headers, self._most_bytes(scope["path"]))
            except Refused as error:
                if error.status == 413:
                    await _drain(receive)
                await refusal(error.status, error.reason)(scope, receive, sending)
                return
            await self._app(scope, limited, sending)
        finally:
            self._metrics.request(_route(scope), status, time.perf_counter() - begin)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._settings.local and _name(host) not in LOOPBACK:
            raise Refused(421, "this server answers to localhost alone; use http://127.0.0.1 and its port")
        if method in _READING:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and origin.rpartition("://")[2] != host) or site not in ("same-origin", "none"):
            raise Refused(403, "requests from pages of other sites are refused")
        if path == "/predict":
            return
        if self._settings.read_only:
            raise Refused(403, "this server was started with --read-only: the model is not changed")
        self._check_token(headers.get("authorization", ""))

    def _check_token(self, shown: str) -> None:
        if self._settings.token is None:
            return
        kind, _, token = shown.partition(" ")
        known = hmac.compare_digest(token.strip().encode(), self._settings.token.encode())
        if kind.lower() != "bearer" or not known:
            raise Refused(401, "changing the model needs the server's token: Authorization: Bearer TOKEN")

    def _most_bytes(self, path: str) -> int:
        limits = self._settings.limits
        return limits.learned_bytes if path.startswith("/tasks/") else limits.asked_bytes


def _limited(receive: Receive, headers: Headers, most: int) -> Receive:
    """`receive` that refuses a body of more than so many bytes, before it is read where its length is said."""
    too_large = Refused(413, f"the request has more than {most:,} bytes; send fewer or smaller images at a time")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:20]) > most:
        raise too_large
    received = 0

    async def limited() -> Message:
        nonlocal received
        message: MutableMapping[str, Any] = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise too_large
        return message

    return limited


async def _drain(receive: Receive) -> None:
    """Read some of a body that was refused: who is cut off while sending may never see the answer."""
    received, more = 0, True
    while more and received < _DRAINED:
        message = await receive()
        received += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


def _name(host: str) -> str:
    """The name or address in a Host header, without the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _route(scope: Scope) -> str:
    """A name for counting, of a route of ours: what was asked for may be anything."""
    return str(getattr(scope.get("endpoint"), "__name__", "none"))
