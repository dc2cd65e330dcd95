"""Locks that survive interrupts and forks.

Take each by its own `with`: these are locks of the interpreter, and no signal can come between taking and holding one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, cast

from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted

_FORK_WAITS = 5.0  # seconds that a fork waits for changes in other threads


class Lock(AbstractContextManager[bool], Protocol):
    """The interpreter's own re-entrant lock."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def _is_owned(self) -> bool: ...

    def _at_fork_reinit(self) -> None: ...


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_readers_writers: weakref.WeakSet[ReadersWriter] = weakref.WeakSet()
_registry = threading.RLock()
_forking = threading.local()


def new_lock() -> Lock:
    """A re-entrant lock; in a forked process it is free if another thread held it."""
    lock = cast(Lock, threading.RLock())
    with _registry:
        _locks.add(lock)
    return lock


class ReadersWriter:
    """A readers–writer lock: many threads read at once, one writes alone; reading is re-entrant.

    Each reader has its own lock, so that readers never wait for each other; a writer takes them all. A waiting writer
    holds the gate that new readers pass, so that readers cannot starve it.
    """

    def __init__(self) -> None:
        self._gate = new_lock()
        self._own = threading.local()
        self._readers: weakref.WeakSet[Lock] = weakref.WeakSet()
        with _registry:
            _readers_writers.add(self)

    @property
    def held(self) -> bool:
        """Whether this thread reads or writes."""
        lock = getattr(self._own, "lock", None)
        return lock is not None and lock._is_owned()

    def reading(self) -> Lock:
        """For `with`: nothing is written while it is held."""
        lock: Lock | None = getattr(self._own, "lock", None)
        if lock is None:
            lock = new_lock()
            with self._gate:
                self._readers.add(lock)
            self._own.lock = lock
        elif lock._is_owned():
            return lock
        with self._gate:
            pass
        return lock

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For `with`: exclusive and uninterrupted; keep it short."""
        if self.held:
            raise SupSupError("a model cannot be changed from inside one of its own answers; do it after the answer")
        with uninterrupted(), self._gate, ExitStack() as taken:
            for lock in list(self._readers):
                taken.enter_context(lock)
            yield


def _before_fork() -> None:
    """Wait until no other thread is writing: a forked process must not start in the middle of a change."""
    _forking.gates = gates = []
    with _registry:
        every = [each for each in _readers_writers if not each.held]
    for each in every:
        if each._gate.acquire(timeout=_FORK_WAITS):
            gates.append(each._gate)


def _after_fork() -> None:
    for gate in getattr(_forking, "gates", ()):
        gate.release()
    _forking.gates = []


def _in_forked_process() -> None:
    """Free the locks of threads that do not exist in the forked process."""
    global _registry
    _registry = threading.RLock()
    _after_fork()
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_forked_process)
