"""Changes happen one after the other; each says how it ended, and none of them stops the next."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from supsup.runtime.errors import SupSupError
from supsup.serve.app import Metrics
from supsup.serve.service import JobQueue, Progress, ServerJob


def failing(error: Exception) -> ServerJob:
    def work(progress: Progress) -> None:
        raise error

    return ServerJob("learn", "it", work)


def test_jobs_are_done_in_order_and_say_how_they_ended() -> None:
    jobs, done, metrics = None, [], Metrics()
    jobs = JobQueue(metrics.jobs, max_queued=10)
    added = [jobs.add(ServerJob("learn", name, lambda progress, name=name: done.append(name))) for name in "abc"]  # type: ignore[misc]
    wrong = [SupSupError("two classes are needed"), MemoryError(), KeyError("inside")]
    failed = [jobs.add(failing(error)) for error in wrong]
    after = jobs.add(ServerJob("forget", "a", lambda progress: done.append("forgotten")))
    after.finished.result(10)
    assert done == ["a", "b", "c", "forgotten"]
    assert [job.info()["state"] for job in (*added, *failed, after)] == ["done"] * 3 + ["failed"] * 3 + ["done"]
    assert failed[0].error == "two classes are needed"
    assert "not enough memory" in str(failed[1].error)
    assert jobs.get(added[0].id).progress == 1.0
    assert jobs.get(added[0].id).work is None
    with pytest.raises(HTTPException, match="no such job"):
        jobs.get("nobody")
    assert b'supsup_jobs_total{kind="learn",state="failed"} 3' in generate_latest(metrics.registry)
    assert jobs.stop(10)


def test_a_server_that_goes_down_stops_what_can_be_stopped_and_drops_what_waits() -> None:
    jobs, running = JobQueue(Metrics().jobs, max_queued=2), threading.Event()

    def endless(progress: Progress) -> None:
        running.set()
        while True:
            progress(0.5)

    first = jobs.add(ServerJob("learn", "first", endless))
    running.wait(10)
    second = jobs.add(ServerJob("learn", "second", endless))
    jobs.add(ServerJob("learn", "third", endless))
    assert [job.task for job in jobs.active()] == ["first", "second", "third"]
    with pytest.raises(HTTPException, match="already queued") as full:
        jobs.add(ServerJob("learn", "fourth", endless))
    assert full.value.status_code == 429
    assert jobs.stop(10)
    assert (first.state, first.progress, second.state) == ("stopped", 0.5, "stopped")
    with pytest.raises(HTTPException, match="shutting down"):
        jobs.add(ServerJob("learn", "fifth", endless))


def test_images_that_wait_are_held_to_a_limit() -> None:
    jobs, go = JobQueue(Metrics().jobs, max_queued=100), threading.Event()
    first = jobs.add(ServerJob("learn", "first", lambda progress: (go.wait(10), None)[1]))
    while first.state == "waiting":
        pass
    jobs.add(ServerJob("learn", "second", lambda progress: None, bytes=2 << 30))
    with pytest.raises(HTTPException, match="already queued"):
        jobs.add(ServerJob("learn", "third", lambda progress: None, bytes=1))
    go.set()
    assert jobs.stop(10)
