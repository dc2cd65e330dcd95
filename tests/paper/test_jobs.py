"""Jobs that take turns: rows are kept as they come, and what goes wrong with one stops no other."""

from pathlib import Path

import pytest
import torch

from supsup import SupSupError
from supsup.paper import jobs
from supsup.paper.jobs import Job, Run, Work
from supsup.paper.records import Finished, Wanted
from supsup.paper.workshop import Workshop

SHOP = Workshop(torch.device("cpu"))


def job(folder: Path, name: str, tasks: int = 3) -> Job:
    wanted = Wanted("entry", name, "", "full", {"own": {}}, folder)
    return Job(name, {"tasks": tasks}, (wanted,), (0,))


def runs(log: list[str]) -> dict[str, Run]:
    def good(job: Job, shop: Workshop) -> Work:
        for count in range(job.training["tasks"]):
            log.append(f"{job.run} {count}")
            yield 0
            yield 1
        yield Finished(job.wanted[0], 0, {"accuracy %": {"": 90.0}})

    def bad(job: Job, shop: Workshop) -> Work:
        yield 1
        raise SupSupError("no such data")

    def broken(job: Job, shop: Workshop) -> Work:
        yield 1
        raise ZeroDivisionError

    kinds = {"a": good, "b": good, "bad": bad, "broken": broken}
    return {name: Run(work, sequential=True) for name, work in kinds.items()}


def test_lanes_take_turns_and_a_failure_stops_only_itself(tmp_path: Path) -> None:
    log: list[str] = []
    said: list[str] = []
    tasks: list[float] = []
    group = [job(tmp_path, name) for name in ("a", "bad", "b", "broken")]
    failed = jobs._side_by_side(group, runs(log), SHOP, said.append, tasks.append)
    assert failed == 2
    assert log == ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]
    assert sum(tasks) == 3 + 3 + 1 + 1
    assert {path.name for path in (tmp_path / "entry").iterdir()} == {"a-seed0.json", "b-seed0.json"}
    assert any("no such data" in line for line in said)
    assert any("ZeroDivisionError" in line for line in said)


def test_a_busy_lane_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the device is at the work of one, the others go on."""
    log: list[str] = []
    looks = {"a": 0}

    def busy(lane: jobs.Lane) -> bool:
        if lane.job.run == "b":
            return False
        looks["a"] += 1
        return looks["a"] < 5

    monkeypatch.setattr(jobs.Lane, "busy", property(busy))
    jobs._side_by_side([job(tmp_path, "a"), job(tmp_path, "b")], runs(log), SHOP, lambda _: None, lambda _: None)
    assert log[:3] == ["b 0", "b 1", "a 0"]
    assert sorted(log) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]


def test_rivals_may_use_tensorfloat_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The precision of products is the whole process's, so each lane sets it for its own turns."""
    asked: list[tuple[str, str]] = []
    now = ["highest"]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: now[0])
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda value: now.__setitem__(0, value))

    def work(job: Job, shop: Workshop) -> Work:
        for _ in range(2):
            asked.append((job.run, now[0]))
            yield 1

    cuda = torch.device("cuda")
    lanes = [
        jobs.Lane(
            job(tmp_path, name), run := Run(work, rival=name == "rival"), run.work(job(tmp_path, name), SHOP), None
        )
        for name in ("rival", "supsup")
    ]
    for _ in range(2):
        for lane in lanes:
            lane.next(cuda)
    assert asked == [("rival", "high"), ("supsup", "highest")] * 2
    assert now == ["highest"]
