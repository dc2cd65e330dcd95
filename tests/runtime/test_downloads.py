"""A server may send anything, for ever, or nothing: a download ends, within its bounds, and says why."""

from __future__ import annotations

import io
import threading
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from supsup.runtime.downloads import _OnlySecure, fetched
from supsup.runtime.errors import SupSupError


class Hostile(BaseHTTPRequestHandler):
    """Answers by the path that is asked for."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        getattr(self, self.path.strip("/"))()

    def begin(self, **headers: str) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def good(self) -> None:
        self.begin(Content_Length="4")
        self.wfile.write(b"good")

    def unannounced(self) -> None:
        self.begin()
        self.wfile.write(b"good")

    def not_a_number(self) -> None:
        self.begin(Content_Length="many")
        self.wfile.write(b"good")

    def negative(self) -> None:
        self.begin(Content_Length="-1")

    def announces_too_much(self) -> None:
        self.begin(Content_Length=str(10**15))

    def endless(self) -> None:
        self.begin()
        for _ in range(10_000):
            self.wfile.write(bytes(1000))

    def cut_short(self) -> None:
        self.begin(Content_Length="100")
        self.wfile.write(b"only")

    def silent(self) -> None:
        self.begin(Content_Length="100")
        self.server.stop.wait(20)  # type: ignore[attr-defined]

    def drips(self) -> None:
        self.begin(Content_Length="4000")
        self.drip()

    def drip(self) -> None:
        """Never silent for long; for twenty seconds, which nobody should wait for."""
        for _ in range(400):
            if not self.server.stop.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b"x")

    def drips_headers(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        self.drip()

    def elsewhere(self) -> None:
        self.send_response(302)
        self.send_header("Location", "/good")
        self.end_headers()

    def a_file(self) -> None:
        self.send_response(302)
        self.send_header("Location", "file:///etc/hostname")
        self.end_headers()

    def nonsense(self) -> None:
        self.wfile.write(b"\0\xff nonsense\r\n\r\n")

    def bad_chunks(self) -> None:
        self.begin(Transfer_Encoding="chunked")
        self.wfile.write(b"zz\r\nnothing")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever asked has gone away
        stop = server.stop = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        stop.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def straight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("SUPSUP_OFFLINE")


def fetch(url: str) -> bytes:
    return fetched(url, "file", most=5000, silence=0.5, within=1.5)


@pytest.mark.parametrize("path", ["good", "unannounced"])
def test_a_good_answer_comes_whole(server: str, path: str) -> None:
    assert fetch(f"{server}/{path}") == b"good"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("not_a_number", "Content-Length is 'many'"),
        ("negative", "Content-Length is '-1'"),
        ("announces_too_much", "1,000,000,000,000,000 bytes; at most 5,000"),
        ("endless", "more than the 5,000 bytes"),
        ("cut_short", "ended after 4 of 100 bytes"),
        ("silent", "timed out"),
        ("drips", "too long|timed out"),
        ("drips_headers", "too long|timed out"),
        ("elsewhere", "redirects to .*which is not https"),
        ("a_file", "edirect.*file:///etc/hostname"),
        ("nonsense", "."),
        ("bad_chunks", "."),
        ("no_such_thing", "."),
    ],
)
def test_a_bad_answer_is_an_error_in_time(server: str, path: str, message: str) -> None:
    """Without a bound on time a server that drips would hold a program for ever."""
    with pytest.raises(SupSupError, match=message):
        fetch(f"{server}/{path}")


def test_nothing_is_fetched_where_nobody_wants_it(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPSUP_OFFLINE", "1")
    with pytest.raises(SupSupError, match="SUPSUP_OFFLINE is set"):
        fetch(f"{server}/good")


def test_nobody_is_there() -> None:
    with pytest.raises(SupSupError, match="refused"):
        fetch("http://127.0.0.1:9/file")


def test_a_redirection_to_https_is_followed() -> None:
    request = urllib.request.Request("https://one.example/file")
    followed = _OnlySecure().redirect_request(request, io.BytesIO(), 302, "", Message(), "https://two.example/file")
    assert followed is not None
    assert followed.full_url == "https://two.example/file"
