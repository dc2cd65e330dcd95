"""The model that is served: answers to many questions from one state of it, and the changes that a server makes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from supsup import data
from supsup.data import Inputs, Task
from supsup.file.modelfile import stored_bytes
from supsup.file.task_record import EXAMPLES, LearnedTask
from supsup.inference.methods import Method
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.runtime.errors import SupSupError, printable
from supsup.serve.examples import chosen, data_url
from supsup.serve.scoring import scores
from supsup.serve.uploads import Array

Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """Inputs [n, …], uint8 for images; the task if it is known, else the tasks that come into question (None: all)."""

    images: Array
    task: str | None = None
    among: tuple[str, ...] | None = None
    scores: bool = False

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Lesson:
    """A task to learn: inputs [n, …] and a class for each."""

    task: str
    images: Array
    labels: list[str] | list[int]


class Served:
    """A model in its file, and what a server asks of it; any thread may.

    method  how tasks are found here; the model and its file keep their own way
    """

    def __init__(self, model: SupSup, path: Path, method: Method | None = None) -> None:
        self.model, self.path = model, path
        self._how = None if method is None else model.inference.replaced(method=method)
        self._normalisation: tuple[object, Inputs | None] = (
            None,
            None,
        )  # a version of the tasks, and theirs of pictures

    @classmethod
    def open(
        cls,
        path: Path,
        net: nn.Module | None = None,
        *,
        read_only: bool = False,
        masks: Literal["memory", "disk"] = "memory",
        device: str = "auto",
        method: Method | None = None,
    ) -> Self:
        """The model in a file, to be changed there unless `read_only`; `net` where it is the user's own."""
        served = cls(SupSup.load(path, net, in_place=not read_only, masks=masks, device=device), path, method)
        served._warm_up()
        return served

    def _warm_up(self) -> None:
        """Answer once, so that the first visitor does not wait for kernels to be loaded or compiled."""
        shape = self.model.image_shape
        if shape is not None and len(state_of(self.model).tasks):
            for together in (1, 3):  # one image and several go different ways
                self.answers([Question(np.zeros((1, *shape), np.float32), scores=True)] * together)

    def info(self) -> Json:
        """What a visitor should know."""
        shape = self.model.image_shape
        return {
            "model": self.path.name,
            "tasks": len(state_of(self.model).tasks),
            "image_shape": None if shape is None else list(shape),
            "device": str(self.model.device),
        }

    def answers(self, questions: Sequence[Question]) -> list[Json | Exception]:
        """An answer to each question, all from one state of the model; what is alike is asked in one go."""
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, question in enumerate(questions):
            kind = (question.task, question.among, question.images.dtype.kind, question.images.shape[1:])
            alike[kind].append(number)
        found: list[Json | Exception] = [AssertionError("every question is answered")] * len(questions)
        with state_of(self.model).lock.reading():
            for numbers in alike.values():
                for number, answer in zip(numbers, self._answers([questions[number] for number in numbers])):
                    found[number] = answer
        return found

    def _answers(self, questions: Sequence[Question]) -> list[Json | Exception]:
        """Answers to questions that are alike; if one of them cannot be answered the others are."""
        try:
            return self._together(questions)
        except SupSupError as error:
            if len(questions) == 1:
                return [error]
            return [self._answers([question])[0] for question in questions]

    def _together(self, questions: Sequence[Question]) -> list[Json | Exception]:
        first, tasks = questions[0], state_of(self.model).tasks
        named = [first.task] if first.task is not None else first.among
        inputs = self._inputs(np.concatenate([question.images for question in questions]), named)
        prediction = self.model.predict(inputs, task=first.task, among=first.among, inference=self._how)
        candidates = list(first.among) if first.among is not None else tasks.names
        every = [
            {
                "task": task,
                "label": label,
                "name": _plain(name),
                "confidence": _number(confidence),
                "task_confidence": _number(task_confidence),
            }
            for task, label, name, confidence, task_confidence in zip(
                prediction.tasks,
                prediction.labels.tolist(),
                prediction.names,
                prediction.confidence.tolist(),
                prediction.task_confidence.tolist(),
                strict=True,
            )
        ]
        answers: list[Json | Exception] = []
        start = 0
        for question in questions:
            mine = every[start : start + len(question)]
            if question.scores and first.task is None:
                scored = scores(self.model, inputs[start : start + len(question)], candidates, self._how)
                mine = [answer | {"scores": asdict(each)} for answer, each in zip(mine, scored, strict=True)]
            answers.append({"answers": mine, "among": 1 if first.task is not None else len(candidates)})
            start += len(question)
        return answers

    def learn(self, lesson: Lesson, progress: Callable[[float], None]) -> None:
        """Learn a task and keep a few examples; then it is in the file. What `progress` raises stops it."""
        task = self._task(lesson)
        self.model.learn(task, callback=lambda step: progress(step.step / step.steps), show_progress=False)
        if lesson.images.dtype == np.uint8 and lesson.images.ndim == 4:
            examples = chosen(lesson.images, lesson.labels)
            self.model.extras[lesson.task] = self.model.extras.get(lesson.task, {}) | {EXAMPLES: examples}
            self.model.save()

    def forget(self, task: str) -> None:
        """Remove a task for good, from the file too."""
        self.model.forget(task)

    def tasks(self, search: str, offset: int, limit: int) -> Json:
        """Some of the tasks whose names hold a text, in order."""
        rows = list(state_of(self.model).tasks)
        wanted = search.casefold()
        matching = [row for row in rows if wanted in row.name.casefold()] if wanted else rows
        listed = [
            {"name": row.name, "classes": row.classes, "learned_at": row.learned_at}
            for row in matching[offset : offset + limit]
        ]
        return {"total": len(rows), "matching": len(matching), "tasks": listed}

    def details(self, task: str) -> Json:
        """What is known of one task."""
        row = state_of(self.model).tasks[task]
        return {
            "name": row.name,
            "classes": row.classes,
            "class_names": [_plain(row.info.called(number)) for number in range(row.classes)],
            "learned_at": row.learned_at,
            "bytes": stored_bytes(self.path, task),
            "examples": [data_url(image) for image in row.extras.get(EXAMPLES, [])],
        }

    def close(self) -> None:
        """Let go of the file."""
        self.model.close()

    def _task(self, lesson: Lesson) -> Task:
        """A task to learn; where the model's tasks take normalised inputs, pictures are normalised as in the first one."""
        layout = "NCHW" if lesson.images.ndim == 4 else None
        infos = [task.info for task in state_of(self.model).tasks]
        strict = bool(infos) and all(info.inputs is None for info in infos)
        images = torch.from_numpy(lesson.images)
        if not strict or images.dtype != torch.uint8:
            images = images.float() if strict else images
            return data.task((images, lesson.labels), lesson.task, layout=layout, normalise=not strict)
        scale = infos[0].normalisation
        if scale is None:
            raise _unknown_normalisation(self.model.tasks[0])
        task = data.task((images, lesson.labels), lesson.task, layout=layout, normalise=False)
        part = replace(task.train, gain=scale.gain, offset=scale.offset)
        return replace(task, train=part, test=part, inputs=None)

    def _inputs(self, images: Array, candidates: Sequence[str] | None) -> Tensor:
        """Pictures (uint8) and arrays as `predict` takes them for these tasks; None: all."""
        found, tasks = torch.from_numpy(images), state_of(self.model).tasks
        if images.dtype != np.uint8:
            kinds = tasks.views(None if candidates is None else tasks.indices(candidates))
            return found.float() if all(inputs is None for inputs, _ in kinds) else found
        if candidates is not None:
            scale = _common_normalisation([tasks[name] for name in candidates])
        else:
            version, scale = self._normalisation
            if version is not tasks.version:
                scale = _common_normalisation(tasks)
                self._normalisation = tasks.version, scale
        return found if scale is None else scale.seen(found)


def _common_normalisation(tasks: Iterable[LearnedTask]) -> Inputs | None:
    """How pictures are normalised for all these tasks; None where the model does it. An error if they do not agree."""
    found: dict[object, tuple[str, Inputs | None]] = {}  # a task of each kind
    for task in tasks:
        scale = task.info.normalisation
        if task.info.inputs is None and scale is None:
            raise _unknown_normalisation(task.name)
        found.setdefault(None if scale is None else scale.key, (task.name, scale))
    if len(found) > 1:
        (one, _), (other, _), *_ = found.values()
        raise SupSupError(
            f"tasks {printable(repr(one))} and {printable(repr(other))} normalise pictures differently; name the task, "
            "or send arrays that are normalised already"
        )
    return next((scale for _, scale in found.values()), None)


def _unknown_normalisation(task: str) -> SupSupError:
    return SupSupError(
        f"the model does not say how pictures of task {printable(repr(task))} were normalised: it was learned from "
        "normalised numbers, or by an earlier version; send normalised arrays, or learn it again from pictures"
    )


def _plain(name: object) -> str | int | float:
    """A class as JSON has it."""
    return name if isinstance(name, str | int) or (isinstance(name, float) and math.isfinite(name)) else str(name)


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
