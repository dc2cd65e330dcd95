"""One file over https, within bounds: so many bytes and so many seconds at most, whatever the other side does."""

from __future__ import annotations

import http.client
import io
import os
import secrets
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from supsup.runtime import progress
from supsup.runtime.errors import SupSupError

_MEGABYTE = 10**6
_PIECE = 1 << 16
OFFLINE = "SUPSUP_OFFLINE"  # the variable that keeps anything from being fetched


def fetched(url: str, name: str, *, most: int, silence: float, within: float) -> bytes:
    """The whole answer; an error as soon as it is larger than `most` bytes or takes longer than `within` seconds.

    silence  seconds without a byte after which nobody waits any longer
    """
    if os.environ.get(OFFLINE):
        raise SupSupError(f"{OFFLINE} is set")
    opener = urllib.request.build_opener(_Patience(within), _OnlySecure)
    try:
        with opener.open(url, timeout=silence) as response:
            return _body(response, name, most)
    except SupSupError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SupSupError(str(error) or type(error).__name__) from error


def _body(response: http.client.HTTPResponse, name: str, most: int) -> bytes:
    announced = _length(response.headers.get("Content-Length"))
    if announced is not None and announced > most:
        raise SupSupError(f"it would be {announced:,} bytes, more than the {most:,} that it may have")
    megabytes = (announced or 0) // _MEGABYTE
    received = io.BytesIO()
    with progress.bar(f"downloading {name}", megabytes, "MB", show=None if megabytes else False) as advance:
        while piece := response.read1(_PIECE):
            received.write(piece)
            advance(len(piece) / _MEGABYTE)
            if received.tell() > most:
                raise SupSupError(f"it has more than the {most:,} bytes that it may have")
    if announced is not None and received.tell() != announced:
        raise SupSupError(f"it ended after {received.tell():,} of {announced:,} bytes")
    return received.getvalue()


def _length(header: str | None) -> int | None:
    """How many bytes an answer says it has."""
    if header is None:
        return None
    if not header.strip().isascii() or not header.strip().isdigit():
        raise SupSupError(f"its Content-Length is {header[:40]!r}, which is no number")
    return int(header.strip()[:20])


class _OnlySecure(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to https alone: what was asked for in private stays so."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith("https://"):
            raise SupSupError(f"it is redirected to {newurl[:200]!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Patience(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Connections on which everything, headers too, must have come after so many seconds."""

    def __init__(self, within: float) -> None:
        super().__init__()
        self._end = time.monotonic() + within

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection(http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection(http.client.HTTPSConnection), req)

    def _connection(self, kind: Callable[..., http.client.HTTPConnection]) -> Any:
        def connect(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = kind(host, **options)
            connection.response_class = partial(_TimedResponse, self._end)  # type: ignore[assignment]
            return connection

        return connect


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, end: float, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_TimedSocket(end, sock, self.fp.detach()))


class _TimedSocket(io.RawIOBase):
    """A socket's stream that waits for each piece no longer than is left until the end."""

    def __init__(self, end: float, sock: socket.socket, stream: io.RawIOBase) -> None:
        self._end, self._sock, self._stream = end, sock, stream
        self._silence = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it takes too long")
        self._sock.settimeout(left if self._silence is None else min(left, self._silence))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


# MERGED MODULE DOC: Where fetched files are kept; each appears there complete or not at all.
_LEFT_BEHIND = 3600.0  # seconds after which a part of a download is nobody's any more


def kept_in(folder: str) -> Path:
    """A folder of the cache."""
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "supsup" / folder
    except RuntimeError as error:
        raise SupSupError(
            f"there is no home folder to keep {folder} in ({error}); set SUPSUP_DATA to a folder that has "
            f"the data, or XDG_CACHE_HOME to one where downloads may be kept"
        ) from error


def write_whole(stored: bytes, path: Path) -> None:
    """Make the file appear complete or not at all; what a process that was killed has left of it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _LEFT_BEHIND:
                old.unlink()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(stored)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
