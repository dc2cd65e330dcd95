"""Short work that no signal interrupts: Ctrl-C is delivered when the work is done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums: ten times faster
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_NEVER_HANDLED = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
_SIGNALS = sorted({int(number) for number in signal.valid_signals()} - _NEVER_HANDLED, key=lambda n: n == signal.SIGINT)
_outermost: uninterrupted | None = None  # in the main thread, the only one that handles signals


class uninterrupted:
    """A context in which signals with Python handlers are deferred; at its end the handlers are called.

    Only the main thread handles signals, so in others it does nothing, and neither inside another such context. It
    takes the place of all handlers: it records signals, and once it has ended calls the handler that it replaced.
    """

    def __enter__(self) -> None:
        global _outermost
        if _outermost is None and threading.get_ident() == threading.main_thread().ident:
            self._active = True
            self._replaced: dict[int, Callable[[int, FrameType | None], Any]] = {}
            self._noted: dict[int, FrameType | None] = {}  # in order; as in the system, repeated signals count once
            self._replace_handlers()
            _outermost = self

    def __exit__(self, *_: object) -> None:
        global _outermost
        if _outermost is self:
            _outermost = None
            self._restore_handlers()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._active:
            self._noted[number] = frame
        else:
            self._replaced[number](number, frame)

    def _replace_handlers(self) -> None:
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._replaced[number] = handler
                    _signal.signal(number, self)
        except BaseException:
            self._restore_handlers()
            raise

    def _restore_handlers(self) -> None:
        waiting, raised = list(self._replaced), None
        while waiting:
            try:
                while waiting:
                    _signal.signal(waiting[0], self._replaced[waiting[0]])
                    del waiting[0]
            except BaseException as error:  # from a handler that was just restored: restore the others, too
                raised = error
        self._active = False
        noted, self._noted = self._noted, {}
        try:
            self._deliver(list(noted.items()))
            if raised is not None:
                raise raised
        finally:
            del raised, noted  # frames would keep alive everything they refer to, such as a lock

    def _deliver(self, noted: Sequence[tuple[int, FrameType | None]]) -> None:
        if noted:
            (number, frame), *others = noted
            try:
                self._replaced[number](number, frame)
            finally:
                self._deliver(others)
