"""Running the server: its settings, the socket that is bound before anything else is loaded, and its end."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import uvicorn
from starlette.types import ASGIApp

from supsup import SupSupError
from supsup.runtime.validation import CheckedFields, text, whole
from supsup.serve.requests import RequestLimits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHORTEST_TOKEN = 8  # characters
_CONNECTIONS = 1000  # at the same time; further ones are refused
_SHUTDOWN = 5  # seconds for requests in progress when the server stops


@dataclass(frozen=True)
class ServerSettings(CheckedFields):
    """How a model is served.

    token      required to learn or forget; None: not required, which is allowed on this machine only
    read_only  requests that would change the model are rejected
    max_batch  the most images to classify in one batch
    """

    host: Annotated[str, text] = "127.0.0.1"
    port: Annotated[int, whole(0, 65535)] = 8000
    token: Annotated[str, text] | None = None
    read_only: bool = False
    max_batch: Annotated[int, whole(1)] = 256
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None and (len(self.token) < _SHORTEST_TOKEN or not self.token.isascii()):
            raise SupSupError(
                f"the token must have at least {_SHORTEST_TOKEN} characters, ASCII only; "
                "python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one"
            )
        if self.token is None and not self.local and not self.read_only:
            raise SupSupError(
                f"without a token, anyone who can reach {self.host} could change the model: set --token or "
                "SUPSUP_TOKEN, or use --read-only, or serve on 127.0.0.1"
            )

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        return self.host in LOOPBACK


def listen(settings: ServerSettings) -> socket.socket:
    """Bind a socket to the host and port, or raise an error that says what to do.

    The socket names its protocol: only then does asyncio set TCP_NODELAY. Without it small packets wait 40 ms.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        listening.close()
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            raise SupSupError(
                f"port {settings.port} of {settings.host} is in use by another program; choose another with "
                f"--port {settings.port % 65535 + 1}, or --port 0 for any free port"
            ) from error
        if number == errno.EACCES:
            raise SupSupError(f"port {settings.port} needs administrator rights; use 1024 or higher") from error
        raise SupSupError(
            f"{settings.host}:{settings.port} is not an address of this machine ({error}); use 127.0.0.1 or 0.0.0.0"
        ) from error
    return listening


def url_of(listening: socket.socket) -> str:
    """The URL to open in a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: ASGIApp, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then finish requests in progress, stop jobs and close the model.

    ready  called once the server accepts requests
    """
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
    with _signals_ignored_after_shutdown():
        _AnnouncingServer(config, ready).run(sockets=[listening])


class _AnnouncingServer(uvicorn.Server):
    """Calls `ready` once it accepts requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


@contextmanager
def _signals_ignored_after_shutdown() -> Iterator[None]:
    """uvicorn raises the signals it has handled again once it is down; they have had their effect by then."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
