"""Server settings, and the limits on each request."""

from __future__ import annotations

from dataclasses import dataclass, field

from supsup import SupSupError
from supsup.runtime.validation import check_fields, flag, optional, text, whole

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHORTEST_TOKEN = 8  # characters


@dataclass(frozen=True)
class RequestLimits:
    """The most that one request may send, and how much may be queued.

    predict_bytes, predict_images  to classify
    learn_bytes, learn_images      to learn a task from
    pixels                         of one decoded image
    queued_images                  waiting for a prediction; further requests get 503
    queued_jobs                    changes waiting for their turn; further ones get 429
    """

    predict_bytes: int = 32 << 20
    predict_images: int = 256
    learn_bytes: int = 512 << 20
    learn_images: int = 20_000
    pixels: int = 40_000_000
    queued_images: int = 4096
    queued_jobs: int = 64

    def __post_init__(self) -> None:
        check_fields(self, **{name: whole(1) for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class ServerSettings:
    """How a model is served.

    token      required to learn or forget; None: not required, which is allowed on this machine only
    read_only  requests that would change the model are rejected
    max_batch  the most images to classify in one batch
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    read_only: bool = False
    max_batch: int = 256
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        check_fields(self, host=text, port=whole(0, 65535), token=optional(text), read_only=flag, max_batch=whole(1))
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
