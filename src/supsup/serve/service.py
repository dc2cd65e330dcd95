"""The model behind the server, the batches of its predictions, and the queue of its changes.

A batch is answered from one state of the model. Changes are jobs that run one after another and report progress.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import math
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from PIL import Image
from prometheus_client import Counter as Metric
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
_REMEMBERED = 1000  # finished jobs
_MAX_HELD = 2 << 30  # bytes of images in the queue
State = Literal["waiting", "running", "done", "failed", "stopped"]
Progress = Callable[[float], None]
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

    def learn(self, request: LearnRequest, progress: Progress) -> None:
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
    seen: dict[object, Iterator[int]] = defaultdict(itertools.count)
    ranks = [next(seen[label]) for label in labels]  # for each image, how many of its class come before it
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

    def __init__(self, ended: Metric, max_queued: int) -> None:
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
