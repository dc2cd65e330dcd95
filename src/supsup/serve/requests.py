"""Requests as questions and lessons: multipart forms, image files as they are, and JSON with base64 or arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from supsup.serve.errors import Refused
from supsup.serve.service import Lesson, Question
from supsup.serve.settings import Limits
from supsup.serve.uploads import Array, Picture, Shape, arrays, class_of, decoded, from_base64

_LARGE = 1 << 18  # bytes of JSON that are parsed in a thread
_FIELDS = 10_000  # of a form that are not files: tasks to choose among
_WAYS = (
    "send an image as it is (Content-Type: image/png or the like), a multipart form with files, or JSON with image, "
    "images or arrays"
)


async def question_of(request: Request, shape: Shape | None, limits: Limits) -> Question:
    """What a request to /predict asks."""
    kind = _kind(request)
    options: dict[str, Any]
    if kind == "multipart/form-data":
        async with request.form(max_files=limits.asked_images, max_fields=_FIELDS) as form:
            task, among = form.get("task"), form.getlist("among")
            files = [Picture(await file.read(), file.filename or "the image") for _, file in _files(form)]
            options = {"task": task or None, "among": among or None, "scores": form.get("scores")}
    elif kind == "application/json":
        content = await _json(request)
        options = {name: content.get(name) for name in ("task", "among", "scores")}
        if "arrays" in content:
            found = arrays(content["arrays"], shape)
            _few(len(found), limits.asked_images)
            return _question(found, options)
        files = _base64(content, limits.asked_images)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        query = request.query_params
        options = {"task": query.get("task"), "among": query.getlist("among") or None, "scores": query.get("scores")}
        files = [Picture(await request.body())]
    else:
        raise Refused(415, _WAYS)
    _few(len(files), limits.asked_images)
    return _question(await decoded(files, shape, limits.pixels), options)


async def lesson_of(request: Request, task: str, shape: Shape | None, limits: Limits) -> Lesson:
    """The task that a request brings: each image file in a folder that names its class, or JSON with labels."""
    kind = _kind(request)
    if kind == "application/json":
        content = await _json(request)
        labels = _labels(content.get("labels"))
        if "arrays" in content:
            images = arrays(content["arrays"], shape)
            _few(len(images), limits.learned_images)
        else:
            images = await decoded(_base64(content, limits.learned_images), shape, limits.pixels)
    elif kind == "multipart/form-data":
        async with request.form(max_files=limits.learned_images, max_fields=16) as form:
            named = [(class_of(file.filename or ""), file) for _, file in _files(form)]
            labels = [name for name, _ in named if name is not None]
            kept = [file for name, file in named if name is not None]
            images = await decoded(
                [Picture(await file.read(), file.filename or "") for file in kept], shape, limits.pixels
            )
    else:
        raise Refused(
            415, "send a multipart form with image files named CLASS/FILE, or JSON with images or arrays and labels"
        )
    if len(labels) != len(images):
        raise Refused(400, f"there are {len(images)} images but {len(labels)} labels; give one for each")
    if len(set(labels)) < 2:
        raise Refused(400, "a task needs images of at least two classes; put each class into a folder of its own")
    return Lesson(task, images, labels)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _files(form: FormData) -> list[tuple[str, UploadFile]]:
    return [(name, value) for name, value in form.multi_items() if isinstance(value, UploadFile)]


async def _json(request: Request) -> Mapping[str, Any]:
    body = await request.body()
    try:
        found = json.loads(body) if len(body) < _LARGE else await run_in_threadpool(json.loads, body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the body is not JSON") from error
    if not isinstance(found, dict):
        raise Refused(400, "the body must be a JSON object")
    return found


def _base64(content: Mapping[str, Any], most: int) -> list[Picture]:
    texts = content.get("images") if "image" not in content else [content["image"]]
    if not isinstance(texts, list):
        raise Refused(400, _WAYS)
    _few(len(texts), most)
    return [from_base64(text, f"images[{number}]") for number, text in enumerate(texts)]


def _few(count: int, most: int) -> None:
    if count > most:
        raise Refused(413, f"{count:,} images are too many; send at most {most:,} at a time")


def _labels(values: object) -> list[Any]:
    good = isinstance(values, list) and all(
        isinstance(each, str | int) and not isinstance(each, bool) for each in values
    )
    if not good:
        raise Refused(400, "labels must be a list with a text or a whole number for each image")
    assert isinstance(values, list)
    return values


def _question(images: Array, options: Mapping[str, Any]) -> Question:
    task, among = options["task"], options["among"]
    if task is not None and not isinstance(task, str):
        raise Refused(400, "task must be the name of a task")
    if among is not None and not (isinstance(among, list) and among and all(isinstance(name, str) for name in among)):
        raise Refused(400, "among must be a list of names of tasks, at least one")
    wanted = options["scores"] in (True, "1", "true", "yes")
    return Question(images, task, None if among is None else tuple(among), wanted)
