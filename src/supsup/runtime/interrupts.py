"""Short work that a signal may not cut in half: Ctrl-C waits until it is done, then comes."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as `signal` without its enums: ten times faster to look through
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_NEVER_HANDLED = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
_SIGNALS = sorted({int(number) for number in signal.valid_signals()} - _NEVER_HANDLED, key=lambda n: n == signal.SIGINT)
_deferral: _Deferral | None = None  # of the main thread, the only one that handles signals


class uninterrupted:
    """While it lasts, signals that Python code handles wait; at its end their handlers are called, as if sent then.

    Only the main thread handles signals, so in others it does nothing. Handlers are put back exactly as they were.
    """

    def __enter__(self) -> None:
        global _deferral
        self._outermost: _Deferral | None = None
        if _deferral is None and threading.get_ident() == threading.main_thread().ident:
            self._outermost = _Deferral()
            self._outermost.begin()
            _deferral = self._outermost

    def __exit__(self, *_: object) -> None:
        global _deferral
        if self._outermost is not None:
            _deferral = None
            self._outermost.end()


class _Deferral:
    """In place of all handlers: notes what came while `active`, and otherwise calls the handler it stands for."""

    def __init__(self) -> None:
        self.active = True
        self._replaced: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noted: dict[int, FrameType | None] = {}  # in order; as for the system, several of a kind are one

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.active:
            self._noted[number] = frame
        else:
            self._replaced[number](number, frame)

    def begin(self) -> None:
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._replaced[number] = handler
                    _signal.signal(number, self)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        waiting, raised = list(self._replaced), None
        while waiting:
            try:
                while waiting:
                    _signal.signal(waiting[0], self._replaced[waiting[0]])
                    del waiting[0]
            except BaseException as error:  # a handler that is back in place has been called: go on with the others
                raised = error
        self.active = False
        noted, self._noted = self._noted, {}
        try:
            self._deliver(list(noted.items()))
            if raised is not None:
                raise raised
        finally:
            del raised, noted  # what refers to frames would keep alive all they hold, such as a lock

    def _deliver(self, noted: Sequence[tuple[int, FrameType | None]]) -> None:
        if noted:
            (number, frame), *others = noted
            try:
                self._replaced[number](number, frame)
            finally:
                self._deliver(others)
