"""What a server may be told, and what it takes from strangers."""

from __future__ import annotations

from dataclasses import dataclass, field

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import check_fields, flag, optional, text, whole

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LEAST_TOKEN = 8  # characters


@dataclass(frozen=True)
class Limits:
    """The most that one request may bring.

    asked_bytes, asked_images      to be answered
    learned_bytes, learned_images  to learn a task from
    pixels                         of one image, once decoded
    waiting                        images in the queue for an answer, and
    jobs                           changes in the queue, before others are turned away
    """

    asked_bytes: int = 32 << 20
    asked_images: int = 256
    learned_bytes: int = 512 << 20
    learned_images: int = 20_000
    pixels: int = 40_000_000
    waiting: int = 4096
    jobs: int = 64

    def __post_init__(self) -> None:
        check_fields(self, **{name: whole(1) for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Settings:
    """How a model is served.

    token      what a request that changes the model has to show; None: nobody is asked, on this machine only
    read_only  the model is not changed at all
    together   the most images that are answered in one go
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    read_only: bool = False
    together: int = 256
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_fields(
            self,
            host=text,
            port=whole(0, 65535),
            token=optional(text),
            read_only=flag,
            together=whole(1),
        )
        if self.token is not None and (len(self.token) < _LEAST_TOKEN or not self.token.isascii()):
            raise SupSupError(
                f"a token has at least {_LEAST_TOKEN} characters, ASCII only; "
                "python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one"
            )
        if self.token is None and not self.local and not self.read_only:
            raise SupSupError(
                f"without a token anybody who reaches {self.host} could change the model: give one by --token or "
                "SUPSUP_TOKEN, or serve with --read-only, or on 127.0.0.1"
            )

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        return self.host in LOOPBACK
