"""Downloads over https with limits on bytes and seconds, and the cache folder; files appear complete or not at all."""

from __future__ import annotations

import http.client
import io
import os
import secrets
import socket
import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from supsup.runtime import progress
from supsup.runtime.errors import SupSupError

_MEGABYTE = 10**6
_PIECE = 1 << 16
OFFLINE = "SUPSUP_OFFLINE"  # the variable that forbids downloads


def fetched(url: str, name: str, *, most: int, silence: float = 30.0, within: float = 1800.0) -> bytes:
    """Download a file; an error as soon as it exceeds `most` bytes or takes longer than `within` seconds.

    silence  the longest wait for the next byte, in seconds
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
        raise SupSupError(f"it has {announced:,} bytes; at most {most:,} are allowed")
    megabytes = (announced or 0) // _MEGABYTE
    received = io.BytesIO()
    with progress.bar(f"downloading {name}", megabytes, "MB", show=None if megabytes else False) as advance:
        while piece := response.read1(_PIECE):
            received.write(piece)
            advance(len(piece) / _MEGABYTE)
            if received.tell() > most:
                raise SupSupError(f"it has more than the {most:,} bytes that are allowed")
    if announced is not None and received.tell() != announced:
        raise SupSupError(f"it ended after {received.tell():,} of {announced:,} bytes")
    return received.getvalue()


def _length(header: str | None) -> int | None:
    """The length that a response announces, in bytes."""
    if header is None:
        return None
    if not header.strip().isascii() or not header.strip().isdigit():
        raise SupSupError(f"its Content-Length is {header[:40]!r}, which is not a number")
    return int(header.strip()[:20])


class _OnlySecure(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only, so that the request stays private."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith("https://"):
            raise SupSupError(f"it redirects to {newurl[:200]!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Patience(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Connections with one deadline for everything, headers included."""

    def __init__(self, within: float) -> None:
        super().__init__()
        self._end = time.monotonic() + within

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connect, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connect, http.client.HTTPSConnection), req)

    def _connect(self, kind: type[http.client.HTTPConnection], host: str, **options: Any) -> http.client.HTTPConnection:
        connection = kind(host, **options)
        connection.response_class = partial(_TimedResponse, self._end)  # type: ignore[assignment]
        return connection


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, end: float, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_TimedSocket(end, sock, self.fp.detach()))


class _TimedSocket(io.RawIOBase):
    """A socket's stream that waits for each piece no longer than until the deadline."""

    def __init__(self, end: float, sock: socket.socket, stream: io.RawIOBase) -> None:
        self._end, self._sock, self._stream, self._silence = end, sock, stream, sock.gettimeout()

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


_LEFT_BEHIND = 3600.0  # seconds after which a partial download counts as abandoned


def kept_in(folder: str) -> Path:
    """A folder of the cache."""
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "supsup" / folder
    except RuntimeError as error:
        raise SupSupError(
            f"there is no home folder for {folder} ({error}); set SUPSUP_DATA to a folder that has "
            f"the data, or XDG_CACHE_HOME to a folder for downloads"
        ) from error


def write_whole(stored: bytes, path: Path) -> None:
    """Write a file completely or not at all, and delete abandoned parts of earlier attempts."""
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
