"""Changes of the model, one after the other in a thread of their own, each a job that can be asked how far it is."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from supsup.runtime.errors import SupSupError
from supsup.serve.errors import Refused
from supsup.serve.metrics import Metrics

State = Literal["waiting", "running", "done", "failed", "stopped"]
Progress = Callable[[float], None]
_REMEMBERED = 1000  # jobs that have ended
_HELD = 2 << 30  # bytes of images in the queue


class Stopped(Exception):
    """The server is going down; raised inside a job that says how far it is."""


@dataclass(eq=False)
class Job:
    """One change: what it is, how far, and how it ended.

    progress  the share that is done
    seconds   it has been running, or ran
    """

    kind: Literal["learn", "forget"]
    task: str
    work: Callable[[Progress], None] | None  # None once it has ended: it holds all images of a task
    bytes: int = 0  # of memory that it holds until then
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "waiting"
    progress: float = 0.0
    error: str | None = None
    ended: Future[None] = field(default_factory=Future)
    _began: float | None = None
    _seconds: float | None = None

    @property
    def seconds(self) -> float:
        if self._seconds is not None:
            return self._seconds
        return 0.0 if self._began is None else time.monotonic() - self._began

    def info(self) -> dict[str, object]:
        """What a visitor may know."""
        return {
            "id": self.id,
            "kind": self.kind,
            "task": self.task,
            "state": self.state,
            "progress": round(self.progress, 4),
            "seconds": round(self.seconds, 2),
            "error": self.error,
        }


class Jobs:
    """A queue of changes and the thread that makes them, in order."""

    def __init__(self, metrics: Metrics, most: int) -> None:
        self._metrics, self._most = metrics, most
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}  # in order
        self._current: Job | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="supsup-changes", daemon=True)
        self._thread.start()

    def add(self, job: Job) -> Job:
        """One more change, at the end of the queue."""
        with self._changed:
            if self._stopping:
                raise Refused(503, "the server is going down")
            held = sum(each.bytes for each in self._queue)
            if len(self._queue) >= self._most or (held and held + job.bytes > _HELD):
                raise Refused(429, f"{len(self._queue)} changes wait already; try again later")
            self._queue.append(job)
            self._jobs[job.id] = job
            for old in [each.id for each in self._jobs.values() if each.ended.done()][:-_REMEMBERED]:
                del self._jobs[old]
            self._changed.notify()
        return job

    def get(self, job: str) -> Job:
        """A job by its id."""
        with self._changed:
            if job not in self._jobs:
                raise Refused(
                    404, "there is no such job; the server forgets old ones, and all when it is started again"
                )
            return self._jobs[job]

    def under_way(self) -> list[Job]:
        """The jobs that have not ended."""
        with self._changed:
            return [*([self._current] if self._current else []), *self._queue]

    def stop(self, grace: float) -> bool:
        """Take nothing more, drop what waits, stop what runs where it can be; whether it ended within `grace` seconds.

        What has been reported as done is in the file, and stays there.
        """
        with self._changed:
            self._stopping = True
            waiting, self._queue = list(self._queue), deque()
            self._changed.notify()
        for job in waiting:
            self._end(job, "stopped", "the server went down before it began")
        self._thread.join(grace)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                job = self._current = self._queue.popleft()
            self._do(job)

    def _do(self, job: Job) -> None:
        assert job.work is not None
        job.state, job._began = "running", time.monotonic()

        def progress(share: float) -> None:
            job.progress = min(1.0, max(job.progress, share))
            if self._stopping:
                raise Stopped

        try:
            job.work(progress)
        except Stopped:
            self._end(job, "stopped", "the server went down before it was finished")
        except SupSupError as error:
            self._end(job, "failed", str(error))
        except MemoryError:
            self._end(job, "failed", "the machine has too little memory for this task; send fewer or smaller images")
        except Exception as error:  # the thread must live on for the next one
            self._end(job, "failed", f"{type(error).__name__}: {error}")
        else:
            job.progress = 1.0
            self._end(job, "done", None)
        with self._changed:
            self._current = None

    def _end(self, job: Job, state: State, error: str | None) -> None:
        job._seconds, job.work, job.error, job.state = job.seconds, None, error, state
        self._metrics.job(job.kind, state)
        job.ended.set_result(None)
