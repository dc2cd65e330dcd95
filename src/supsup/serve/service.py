"""The model behind the server: batches of predictions, each from one state of the model, and changes to it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from supsup import Inference, SupSup, SupSupError, data
from supsup.data import Inputs, Task
from supsup.data.task import TaskInfo
from supsup.file.modelfile import stored_bytes
from supsup.file.task_record import EXAMPLES
from supsup.runtime.errors import printable
from supsup.serve.examples import choose_examples, data_url
from supsup.serve.requests import Array, LearnRequest, PredictRequest

Json = dict[str, Any]
_MOST_VALUES, _MOST_NAMED = 400, 5  # of the scores: values for a plot, and tasks by name


class ModelService:
    """A model and its file, with the operations of the server; safe to use from any thread.

    method  how the server infers tasks; the setting in the model and its file stays
    """

    def __init__(self, model: SupSup, path: Path, method: str | None = None) -> None:
        self.model, self.path = model, path
        self._inference = None if method is None else model.inference.replaced(method=method)
        self._cached: tuple[object, _InputRule] = (None, _InputRule(raw=False))  # for all tasks, by model.version

    @classmethod
    def open(
        cls,
        path: Path,
        net: nn.Module | None = None,
        *,
        read_only: bool = False,
        masks: Literal["memory", "disk"] = "memory",
        device: str = "auto",
        method: str | None = None,
    ) -> Self:
        """Load a model file, and change it in place unless `read_only`; `net` if the network is the user's."""
        model = SupSup.load(path, net, in_place=not read_only, masks=masks, device=device)
        service, shape = cls(model, path, method), model.image_shape
        if shape is not None and model.tasks:  # the first request must not wait for kernels to load or compile
            for count in (1, 3):  # a single image and several take different paths
                service.predict([PredictRequest(np.zeros((1, *shape), np.float32), scores=True)] * count)
        return service

    def info(self) -> Json:
        """The model as GET /health shows it."""
        shape = self.model.image_shape
        return {
            "model": self.path.name,
            "tasks": len(self.model.tasks),
            "image_shape": None if shape is None else list(shape),
            "device": str(self.model.device),
        }

    def predict(self, requests: Sequence[PredictRequest]) -> list[Json | Exception]:
        """A result or an error for each request, all from one state of the model; similar requests share a batch."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            kind = (request.task, request.among, request.images.dtype.kind, request.images.shape[1:])
            groups[kind].append(number)
        results: dict[int, Json | Exception] = {}
        with self.model.reading():
            for numbers in groups.values():
                results.update(zip(numbers, self._predict_group([requests[number] for number in numbers])))
        return [results[number] for number in range(len(requests))]

    def _predict_group(self, requests: Sequence[PredictRequest]) -> Sequence[Json | Exception]:
        """Results for similar requests; if one of them fails, the others are still answered."""
        try:
            return list(self._predict_together(requests))
        except SupSupError as error:
            if len(requests) == 1:
                return [error]
            return [self._predict_group([request])[0] for request in requests]

    def _predict_together(self, requests: Sequence[PredictRequest]) -> Iterator[Json]:
        first = requests[0]
        named = [first.task] if first.task is not None else first.among
        inputs = self._inputs(np.concatenate([request.images for request in requests]), named)
        prediction = self.model.predict(inputs, task=first.task, among=first.among, inference=self._inference)
        candidates = list(first.among) if first.among is not None else self.model.tasks
        answers = [_json_answer(answer) for answer in prediction.describe()]
        start = 0
        for request in requests:
            rows = slice(start, start + len(request))
            part = answers[rows]
            if request.scores and first.task is None:
                found = scores(self.model, inputs[rows], candidates, self._inference)
                part = [answer | {"scores": each} for answer, each in zip(part, found, strict=True)]
            yield {"answers": part, "among": 1 if first.task is not None else len(candidates)}
            start += len(request)

    def learn(self, request: LearnRequest, progress: Callable[[float], None]) -> None:
        """Learn a task and keep a few example images; both are saved. An exception from `progress` stops it."""
        self.model.learn(
            self._task(request), callback=lambda step: progress(step.step / step.steps), show_progress=False
        )
        if request.images.dtype == np.uint8 and request.images.ndim == 4:
            examples = choose_examples(request.images, request.labels)
            self.model.extras[request.task] = self.model.extras.get(request.task, {}) | {EXAMPLES: examples}
            self.model.save()

    def tasks(self, search: str, offset: int, limit: int) -> Json:
        """One page of the tasks whose names contain `search`, in the order in which they were learned."""
        with self.model.reading():
            names, wanted = self.model.tasks, search.casefold()
            matching = [name for name in names if wanted in name.casefold()] if wanted else names
            listed = [
                {"name": name, "classes": self.model.classes(name), "learned_at": self.model.learned_at(name)}
                for name in matching[offset : offset + limit]
            ]
        return {"total": len(names), "matching": len(matching), "tasks": listed}

    def details(self, task: str) -> Json:
        """One task as GET /tasks/NAME shows it."""
        with self.model.reading():
            info, classes = self.model.task_info(task), self.model.classes(task)
            return info.describe() | {
                "name": task,
                "classes": classes,
                "class_names": [_json_label(info.class_name(number)) for number in range(classes)],
                "learned_at": self.model.learned_at(task),
                "bytes": stored_bytes(self.path, task),
                "examples": [data_url(image) for image in self.model.extras.get(task, {}).get(EXAMPLES, [])],
            }

    def close(self) -> None:
        """Close the model file."""
        self.model.close()

    def _task(self, request: LearnRequest) -> Task:
        """The task to learn. If the model's tasks take normalised inputs, images are normalised as for the first."""
        layout = "NCHW" if request.images.ndim == 4 else None
        infos = [self.model.task_info(name) for name in self.model.tasks]
        normalised = bool(infos) and all(info.inputs is None for info in infos)
        images = torch.from_numpy(request.images)
        if not normalised or images.dtype != torch.uint8:
            images = images.float() if normalised else images
            return data.task((images, request.labels), request.task, layout=layout, normalise=not normalised)
        scale = infos[0].normalisation
        if scale is None:
            raise SupSupError(_unknown_normalisation(self.model.tasks[0]))
        task = data.task((images, request.labels), request.task, layout=layout, normalise=False)
        part = replace(task.train, gain=scale.gain, offset=scale.offset)
        return replace(task, train=part, test=part, inputs=None)

    def _inputs(self, images: Array, candidates: Sequence[str] | None) -> Tensor:
        """Images (uint8) and arrays as `predict` takes them for these tasks; None: all."""
        array, rule = torch.from_numpy(images), self._input_rule(candidates)
        if images.dtype != np.uint8:
            return array if rule.raw else array.float()
        if rule.error is not None:
            raise SupSupError(rule.error)
        return array if rule.normalisation is None else rule.normalisation.preprocess(array)

    def _input_rule(self, candidates: Sequence[str] | None) -> _InputRule:
        if candidates is not None:
            return _InputRule.of({name: self.model.task_info(name) for name in candidates})
        if self._cached[0] is not self.model.version:
            rule = _InputRule.of({name: self.model.task_info(name) for name in self.model.tasks})
            self._cached = self.model.version, rule
        return self._cached[1]


def scores(model: SupSup, inputs: object, candidates: list[str], how: Inference | None = None) -> list[Json]:
    """The scores of these tasks for each input [n, …], as standard deviations from their mean.

    values  one per candidate; of many candidates, the largest of every `each` neighbours, so that they fit a plot
    best    (task, score) of the highest, the highest first
    """
    found = []
    for row in model.task_scores(inputs, among=candidates, inference=how).cpu().double():
        spread = float(row.std(correction=0)) if len(row) > 1 else 0.0
        standard = ((row - row.mean()) / spread if spread > 0 else torch.zeros_like(row)).nan_to_num()
        each = -(-len(standard) // _MOST_VALUES)
        values = [round(float(piece.max()), 3) for piece in standard.split(each)]
        top = standard.topk(min(_MOST_NAMED, len(standard)))
        best = [(candidates[index], round(value, 3)) for value, index in zip(*(part.tolist() for part in top))]
        found.append({"values": values, "each": each, "best": best})
    return found


class _InputRule(NamedTuple):
    """How inputs are prepared for some tasks.

    raw            a task takes raw inputs; the model normalises them
    normalisation  of images, the same for all tasks; None: the model does it
    error          why images cannot be normalised
    """

    raw: bool
    normalisation: Inputs | None = None
    error: str | None = None

    @classmethod
    def of(cls, tasks: Mapping[str, TaskInfo]) -> Self:
        raw = any(info.inputs is not None for info in tasks.values())
        kinds: dict[object, tuple[str, Inputs | None]] = {}  # a task for each normalisation
        for name, info in tasks.items():
            scale = info.normalisation
            if info.inputs is None and scale is None:
                return cls(raw, error=_unknown_normalisation(name))
            kinds.setdefault(None if scale is None else scale.key, (name, scale))
        if len(kinds) > 1:
            one, other = (printable(repr(name)) for name, _ in list(kinds.values())[:2])
            different = f"tasks {one} and {other} normalise images differently"
            return cls(raw, error=f"{different}; name the task, or send normalised arrays")
        return cls(raw, next((scale for _, scale in kinds.values()), None))


def _unknown_normalisation(task: str) -> str:
    return (
        f"the model does not say how images of task {printable(repr(task))} were normalised: it was learned from "
        "normalised arrays, or by an earlier version; send normalised arrays, or learn it again from images"
    )


def _json_answer(answer: Json) -> Json:
    """An answer with a class name and numbers that JSON can hold."""
    numbers = {key: answer[key] for key in ("confidence", "task_confidence")}
    rounded = {key: round(value, 6) if math.isfinite(value) else None for key, value in numbers.items()}
    return answer | {"name": _json_label(answer["name"])} | rounded


def _json_label(name: object) -> str | int | float:
    """A class name that JSON can hold."""
    return name if isinstance(name, str | int) or (isinstance(name, float) and math.isfinite(name)) else str(name)
