"""Eight threads that ask a model while a ninth learns and forgets: each answer must be that of one state of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import supsup
from supsup import Recipe, SupSup, data, nets
from supsup.data import Stream

ALWAYS, COMING_AND_GOING = 4, 3  # tasks that stay, and tasks of which one at a time is there
ASKERS = 8


class Convolutional(nn.Module):
    """Statistics, dropout and a forward pass of its own: nothing about it is known beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=4, bias=False), nn.BatchNorm2d(4)
        self.drop, self.linear = nn.Dropout(0.3), nn.Linear(196, 20)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.drop(self.norm(self.conv(x.view(-1, 1, 28, 28))).relu().flatten(1)))
        return out


class Attentive(nn.Module):
    """Attention, whose kernel is a setting of the whole process."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.linear = nn.MultiheadAttention(28, 4, batch_first=True), nn.Linear(28, 20)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, 28, 28)
        out: Tensor = self.linear(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "fully connected": lambda: nets.FullyConnected((784, 40, 20)),
    "convolutional": Convolutional,
    "attentive": Attentive,
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.Tanh(), nn.Linear(30, 20)),
}


@dataclass
class Asked:
    """What was done in a time; each thread counts in a place of its own."""

    known: list[int] = field(default_factory=lambda: [0] * ASKERS)
    unknown: list[int] = field(default_factory=lambda: [0] * ASKERS)
    longest: list[float] = field(default_factory=lambda: [0.0] * (ASKERS + 1))  # seconds of one call; learning last
    changes: int = 0


def permutations() -> Stream:
    return data.permuted(data.digits(), ALWAYS + COMING_AND_GOING, seed=3)


def images(stream: Stream) -> Tensor:
    return torch.cat([task.test.batch(torch.arange(3))[0] for task in stream])


def at_once(workers: Sequence[Callable[[threading.Event], Any]], seconds: float) -> None:
    """Run these side by side for a while, then raise the first error of any of them."""
    end, errors = threading.Event(), list[BaseException]()

    def guarded(worker: Callable[[threading.Event], Any]) -> None:
        try:
            worker(end)
        except BaseException as error:
            errors.append(error)
            end.set()

    threads = [threading.Thread(target=guarded, args=[worker], daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        end.wait(seconds)
    finally:
        end.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    if errors:
        raise errors[0]


def ask_while_another_learns(kind: str, stream: Stream, seconds: float, asked: Asked, path: Path | None = None) -> None:
    """Raises for the first answer that is none of any state; with a path the model lives in a file there."""
    x, stay, others = images(stream), stream[:ALWAYS], stream[ALWAYS:]
    module = NETWORKS[kind]()
    model = SupSup(module, seed=2, recipe=Recipe(steps=2, batch_size=16), device="cpu")
    model.learn_many(stream, show_progress=False)
    known = {task.name: model.predict(x, task.name) for task in stream}
    for task in others:
        model.forget(task.name)
    inferred = []
    for come in [[], *([task] for task in others)]:
        for task in come:
            model.learn(task)
        inferred.append(model.predict(x).tasks)
        for task in come:
            model.forget(task.name)
    possible = [set(choices) for choices in zip(*inferred)]
    if path is not None:
        model.save(path)
        model = supsup.load(path, None if kind == "fully connected" else module, in_place=True, device="cpu")

    def timed(number: int, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        result = call(*arguments)
        asked.longest[number] = max(asked.longest[number], time.perf_counter() - begin)
        return result

    def check(prediction: Any, rows: range) -> None:
        for position, row in enumerate(rows):
            name = prediction.tasks[position]
            assert prediction.labels[position] == known[name].labels[row], "a label of another mask"
            assert abs(float(prediction.confidence[position] - known[name].confidence[row])) < 1e-4

    def asker(number: int, end: threading.Event) -> None:
        turn = 0
        while not end.is_set():
            name = stay[(number + turn) % ALWAYS].name
            check(timed(number, model.predict, x, name), range(len(x)))
            asked.known[number] += 1
            row = (number + turn) % len(x)
            for rows in (range(row, row + 1), range(len(x))):
                found = timed(number, model.predict, x[rows.start : rows.stop])
                assert all(found.tasks[i] in possible[row] for i, row in enumerate(rows)), "a task of no state"
                check(found, rows)
                asked.unknown[number] += 1
            assert model.tasks[:ALWAYS] == [task.name for task in stay]
            turn += 1

    def changer(end: threading.Event) -> None:
        masks: dict[str, Tensor] = {}
        while not end.is_set():
            for task in others:
                timed(ASKERS, model.learn, task)
                found = torch.cat([bits.flatten() for bits in model.mask(task.name).values()])
                assert torch.equal(masks.setdefault(task.name, found), found), "another mask than last time"
                timed(ASKERS, model.forget, task.name)
                asked.changes += 2

    try:
        at_once([changer, *(partial(asker, number) for number in range(ASKERS))], seconds)
    finally:
        model.close()
