"""A request that is not answered, and why: every refusal is JSON with a reason."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from supsup.runtime.errors import printable

_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # who goes on sending is not listened to
    429: {"Retry-After": "5"},
    503: {"Retry-After": "1"},
}


class Refused(Exception):
    """A request that cannot be answered as it is; `status` is HTTP's word for the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def refusal(status: int, reason: object) -> Response:
    """The answer to such a request."""
    return JSONResponse({"error": printable(reason, 2000)}, status, _HEADERS.get(status))


async def answer_refused(request: Request, error: Exception) -> Response:
    """For starlette: a `Refused` that an endpoint raised."""
    assert isinstance(error, Refused)
    return refusal(error.status, error.reason)
