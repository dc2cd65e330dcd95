"""Changes to the model: jobs that run one after another in their own thread and report progress."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import Counter
from starlette.exceptions import HTTPException

from supsup import SupSupError

State = Literal["waiting", "running", "done", "failed", "stopped"]
Progress = Callable[[float], None]
_REMEMBERED = 1000  # finished jobs
_MAX_HELD = 2 << 30  # bytes of images in the queue


class ServerStopping(Exception):
    """Raised inside a job that reports progress while the server shuts down."""


@dataclass(eq=False)
class ServerJob:
    """One change to the model.

    work      does the change; None once it has finished, because it holds all images of a task
    bytes     of memory that `work` holds
    progress  the fraction that is done
    """

    kind: Literal["learn", "forget"]
    task: str
    work: Callable[[Progress], None] | None
    bytes: int = 0
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: State = "waiting"
    progress: float = 0.0
    error: str | None = None
    finished: Future[None] = field(default_factory=Future)
    _began: float | None = None
    _ended: float | None = None

    def info(self) -> dict[str, object]:
        """The job as JSON values; `seconds`: how long it has been running, or ran."""
        seconds = 0.0 if self._began is None else (self._ended or time.monotonic()) - self._began
        values = {name: getattr(self, name) for name in ("id", "kind", "task", "state")}
        return values | {"progress": round(self.progress, 4), "seconds": round(seconds, 2), "error": self.error}


class JobQueue:
    """Jobs in order, and the thread that runs them.

    ended       counts finished jobs, by kind and state
    max_queued  jobs that may wait
    """

    def __init__(self, ended: Counter, max_queued: int) -> None:
        self._ended, self._max_queued = ended, max_queued
        self._changed = threading.Condition()
        self._jobs: dict[str, ServerJob] = {}  # in order, with finished ones
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="supsup-jobs", daemon=True)
        self._thread.start()

    def add(self, job: ServerJob) -> ServerJob:
        """Append a job to the queue."""
        with self._changed:
            if self._stopping:
                raise HTTPException(503, "the server is shutting down")
            waiting = self._waiting()
            held = sum(each.bytes for each in waiting)
            if len(waiting) >= self._max_queued or (held and held + job.bytes > _MAX_HELD):
                raise HTTPException(429, f"{len(waiting)} jobs are already queued; try again later")
            self._jobs[job.id] = job
            for old in [each.id for each in self._jobs.values() if each.finished.done()][:-_REMEMBERED]:
                del self._jobs[old]
            self._changed.notify()
        return job

    def get(self, job: str) -> ServerJob:
        """A job by its id."""
        with self._changed:
            if job not in self._jobs:
                raise HTTPException(404, "no such job; the server drops old jobs, and all of them when it restarts")
            return self._jobs[job]

    def active(self) -> list[ServerJob]:
        """The jobs that are queued or running."""
        with self._changed:
            return [job for job in self._jobs.values() if not job.finished.done()]

    def stop(self, grace: float) -> bool:
        """Accept nothing more, drop queued jobs and stop the running one if it reports progress.

        Returns whether it ended within `grace` seconds. Jobs reported as done are in the file and stay there.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
            for job in self._waiting():
                self._finish(job, "stopped", "the server shut down before it started")
        self._thread.join(grace)
        return not self._thread.is_alive()

    def _waiting(self) -> list[ServerJob]:
        return [job for job in self._jobs.values() if job.state == "waiting"]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting())
                if self._stopping:
                    return
                job = self._waiting()[0]
                job.state, job._began = "running", time.monotonic()
            self._finish(job, *self._run_job(job))

    def _run_job(self, job: ServerJob) -> tuple[State, str | None]:
        def progress(fraction: float) -> None:
            job.progress = min(1.0, max(job.progress, fraction))
            if self._stopping:
                raise ServerStopping

        try:
            assert job.work is not None
            job.work(progress)
        except ServerStopping:
            return "stopped", "the server shut down before it finished"
        except SupSupError as error:
            return "failed", str(error)
        except MemoryError:
            return "failed", "not enough memory for this task; send fewer or smaller images"
        except Exception as error:  # the thread must survive for the next job
            return "failed", f"{type(error).__name__}: {error}"
        job.progress = 1.0
        return "done", None

    def _finish(self, job: ServerJob, state: State, error: str | None) -> None:
        job._ended, job.work, job.error, job.state = time.monotonic(), None, error, state
        self._ended.labels(job.kind, state).inc()
        job.finished.set_result(None)
