"""Rejected requests: every one is answered with JSON that says why."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from supsup.runtime.errors import printable

_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # the rest of the body is not read
    429: {"Retry-After": "5"},
    503: {"Retry-After": "1"},
}


class RequestError(Exception):
    """A request that cannot be answered; `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def error_response(status: int, reason: object) -> Response:
    """The JSON response to a rejected request."""
    return JSONResponse({"error": printable(reason, 2000)}, status, _HEADERS.get(status))
