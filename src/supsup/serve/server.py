"""A server from its socket to its end: the port is taken first, the model is let go of last."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from supsup.runtime.errors import SupSupError
from supsup.serve.app import Server
from supsup.serve.service import Served
from supsup.serve.settings import Settings

_CONNECTIONS = 1000  # at the same time; others are turned away
_SHUTDOWN = 5  # seconds for answers under way when the server goes down


def bound(settings: Settings) -> socket.socket:
    """A socket on the host and port that were asked for, or an error that says what to do.

    It names its protocol: only then asyncio lets small packets go at once, which otherwise wait 40 ms for each other.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        found.close()
        where, number = f"{settings.host}:{settings.port}", getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            raise SupSupError(
                f"port {settings.port} of {settings.host} is taken by another program; use another: "
                f"--port {settings.port % 65535 + 1}, or --port 0 for any that is free"
            ) from error
        if number == errno.EACCES:
            raise SupSupError(f"only an administrator may use port {settings.port}; use one from 1024 on") from error
        raise SupSupError(f"{where} is no address of this machine ({error}); use 127.0.0.1 or 0.0.0.0") from error
    return found


def address(listening: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(served: Served, settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; then answers under way are given, jobs stop, and the model is let go of."""
    app = Server(served, settings).app()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN,
        ws="none",
    )
    server = _Announced(config, ready)
    with _ended_by_signals():
        server.run(sockets=[listening])


class _Announced(uvicorn.Server):
    """Says when it is ready for requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The server hands signals on once it is down; they have done their work by then."""

    def ignored(number: int, frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, ignored) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
