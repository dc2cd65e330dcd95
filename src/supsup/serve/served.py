"""The model that is served: answers to many questions from one state of it, and the changes that a server makes."""

from __future__ import annotations

import base64
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import supsup
from supsup.errors import SupSupError
from supsup.file.sizes import stored_bytes
from supsup.learner import SupSup
from supsup.serve.scoring import scores
from supsup.serve.uploads import Array

EXAMPLES = "examples"  # among the extras of a task: a few small images it was learned from
_NAMES = "class-names"
_KEPT, _SIDE = 6, 64  # examples, and their longest side in pixels
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
    labels: list[str]


class Served:
    """A model in its file, and what a server asks of it; any thread may."""

    def __init__(self, model: SupSup, path: Path) -> None:
        self.model, self.path = model, path

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False, device: str = "auto") -> Self:
        """The model in a file, to be changed there unless `read_only`."""
        served = cls(supsup.load(path, in_place=not read_only, device=device), path)
        served._warm_up()
        return served

    def _warm_up(self) -> None:
        """Answer once, so that the first visitor does not wait for kernels to be loaded or compiled."""
        shape = self.model.image_shape
        if shape is not None and len(self.model.state.tasks):
            self.answers([Question(np.zeros((1, *shape), np.float32))])

    def facts(self) -> Json:
        """What a visitor should know."""
        shape = self.model.image_shape
        return {
            "model": self.path.name,
            "tasks": len(self.model.state.tasks),
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
        with self.model.state.lock.reading():
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
        first, tasks = questions[0], self.model.state.tasks
        images = _inputs(np.concatenate([question.images for question in questions]))
        prediction = self.model.predict(images, task=first.task, among=first.among)
        labels, confidence = prediction.labels.tolist(), prediction.confidence.tolist()
        candidates = list(first.among) if first.among is not None else tasks.names
        answers: list[Json | Exception] = []
        start = 0
        for question in questions:
            each = []
            for row in range(start, start + len(question)):
                name = prediction.tasks[row]
                answer = {
                    "task": name,
                    "label": labels[row],
                    "name": dict(enumerate(self._class_names(name))).get(labels[row], str(labels[row])),
                    "confidence": _number(confidence[row]),
                }
                if question.scores:
                    answer["scores"] = asdict(scores(self.model, images[row : row + 1], candidates))
                each.append(answer)
            answers.append({"answers": each, "among": 1 if first.task is not None else len(candidates)})
            start += len(question)
        return answers

    def learn(self, lesson: Lesson, progress: Callable[[float], None]) -> None:
        """Learn a task and keep a few examples; it is in the file when this returns."""
        classes = sorted(set(lesson.labels))
        numbers = {name: number for number, name in enumerate(classes)}
        labels = torch.tensor([numbers[label] for label in lesson.labels])
        self.model.learn((_inputs(lesson.images), labels), task=lesson.task)
        content = torch.frombuffer(bytearray(json.dumps(classes).encode()), dtype=torch.uint8)
        kept = {_NAMES: content}
        if lesson.images.dtype == np.uint8 and lesson.images.ndim == 4:
            kept[EXAMPLES] = _examples(lesson.images, lesson.labels)
        self.model.extras[lesson.task] = self.model.extras.get(lesson.task, {}) | kept
        self.model.save()
        progress(1.0)

    def forget(self, task: str) -> None:
        """Remove a task for good, from the file too."""
        self.model.forget(task)

    def tasks(self, search: str, offset: int, limit: int) -> Json:
        """Some of the tasks whose names hold a text, in order."""
        rows = list(self.model.state.tasks)
        wanted = search.casefold()
        matching = [row for row in rows if wanted in row.name.casefold()] if wanted else rows
        listed = [
            {"name": row.name, "classes": row.classes, "learned_at": row.learned_at}
            for row in matching[offset : offset + limit]
        ]
        return {"total": len(rows), "matching": len(matching), "tasks": listed}

    def details(self, task: str) -> Json:
        """What is known of one task."""
        row = self.model.state.tasks[task]
        return {
            "name": row.name,
            "classes": row.classes,
            "class_names": self._class_names(task),
            "learned_at": row.learned_at,
            "bytes": stored_bytes(self.path, task),
            "examples": [_data_url(image) for image in row.extras.get(EXAMPLES, torch.empty(0))],
        }

    def close(self) -> None:
        """Let go of the file."""
        self.model.close()

    def _class_names(self, task: str) -> list[str]:
        row = self.model.state.tasks[task]
        if _NAMES in row.extras:
            return [str(name) for name in json.loads(bytes(row.extras[_NAMES].tolist()))]
        return [str(number) for number in range(row.classes)]


def _inputs(images: Array) -> Tensor:
    found = torch.from_numpy(images)
    return found.float().div_(127.5).sub_(1) if images.dtype == np.uint8 else found.float()


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _examples(images: Array, labels: Sequence[str]) -> Tensor:
    """A few small images, of as many classes as can be."""
    rows: list[int] = []
    for turn in range(_KEPT):
        seen: dict[str, int] = {}
        for row, label in enumerate(labels):
            if row not in rows:
                seen.setdefault(label, row)
        rows += list(seen.values())[: _KEPT - len(rows)]
        if len(rows) >= _KEPT or turn >= len(labels):
            break
    return torch.stack([_small(images[row]) for row in rows])


def _small(image: Array) -> Tensor:
    picture = _picture(image)
    picture.thumbnail((_SIDE, _SIDE))
    pixels = np.asarray(picture, np.uint8)
    return torch.from_numpy(pixels[None].copy() if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def _picture(image: Array) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def _data_url(image: Tensor) -> str:
    content = io.BytesIO()
    _picture(image.cpu().numpy()).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
