"""The model behind the server: batches of predictions, each from one state of the model, and changes to it."""

from __future__ import annotations

import asyncio
import base64
import io
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor, nn

from supsup import Inference, SupSup, SupSupError, data
from supsup.data import Inputs, Task
from supsup.data.task import TaskInfo
from supsup.file.modelfile import stored_bytes
from supsup.file.task_record import EXAMPLES
from supsup.runtime.errors import printable
from supsup.serve.requests import Array, LearnRequest, PredictRequest

Json = dict[str, Any]
_DIGITS = 6  # of confidences
_MOST_VALUES, _MOST_NAMED = 400, 5  # of the scores: values for a plot, and tasks by name
_EXAMPLES, _EXAMPLE_SIDE = 6, 64  # images of a task for the page, and their longest side in pixels
_SHARE, _LONGEST = 0.1, 0.02  # after a batch of several: wait this share of its time, at most so many seconds
In = TypeVar("In", bound=Sized)
Out = TypeVar("Out")


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
        described = prediction.describe(_DIGITS)
        answers: list[Json] = [{key: _json_value(value) for key, value in answer.items()} for answer in described]
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
                "class_names": [_json_value(info.class_name(number)) for number in range(classes)],
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


def _json_value(value: object) -> str | int | float | None:
    """A class name, or a number that may be infinite, as JSON can hold it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) else str(value)


def choose_examples(images: Array, labels: Sequence[object]) -> Tensor:
    """Small copies of a few images of [n, channels, height, width], from as many classes as possible."""
    counts: Counter[object] = Counter()
    ranks = []  # for each image, how many of its class come before it
    for label in labels:
        ranks.append(counts[label])
        counts[label] += 1
    rows = sorted(range(len(labels)), key=ranks.__getitem__)[:_EXAMPLES]
    return torch.stack([_thumbnail(images[row]) for row in rows])


def data_url(image: Tensor) -> str:
    """An image [channels, height, width] as a data: URL."""
    content = io.BytesIO()
    _to_pillow(image.cpu().numpy()).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def _thumbnail(image: Array) -> Tensor:
    small = _to_pillow(image)
    small.thumbnail((_EXAMPLE_SIDE, _EXAMPLE_SIDE))
    pixels = np.array(small, np.uint8)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def _to_pillow(image: Array) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


class Batcher(Generic[In, Out]):
    """Runs a function on batches of requests, in its own thread. It belongs to one event loop.

    answer      takes requests (their `len` is the number of images), returns a result or an exception for each
    max_batch   images in a batch; a larger request is a batch by itself
    max_queued  images in the queue; further requests get status 503
    """

    def __init__(
        self, answer: Callable[[Sequence[In]], Sequence[Out | Exception]], *, max_batch: int, max_queued: int
    ) -> None:
        self._answer, self._max_batch, self._max_queued = answer, max_batch, max_queued
        self._queue: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._queued = 0  # images
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="supsup-predict")

    async def submit(self, request: In) -> Out:
        """The result for one request, computed together with others that wait."""
        if self._queue and self._queued + len(request) > self._max_queued:
            raise HTTPException(503, f"more than {self._max_queued:,} images are queued; try again in a moment")
        future: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        self._queued += len(request)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Answer the queued requests, then stop."""
        while self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                batch, begin = self._next(), loop.time()
                results: Sequence[Out | Exception]
                try:
                    results = await loop.run_in_executor(self._thread, self._answer, [request for request, _ in batch])
                except Exception as error:
                    results = [error] * len(batch)
                seconds = loop.time() - begin
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():  # the client has disconnected
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
                if len(batch) > 1:  # clients may send again: do not start the next batch with the first of them alone
                    await asyncio.sleep(min(_LONGEST, _SHARE * seconds))
        finally:
            self._running = None

    def _next(self) -> list[tuple[In, asyncio.Future[Out]]]:
        batch: list[tuple[In, asyncio.Future[Out]]] = []
        images = 0
        while self._queue:
            size = len(self._queue[0][0])
            if batch and images + size > self._max_batch:
                break
            batch.append(self._queue.popleft())
            images += size
        self._queued -= images
        return batch
