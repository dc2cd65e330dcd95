"""Requests to /predict and /tasks/NAME: image files, multipart forms, and JSON with base64 or arrays.

Every size is checked against `RequestLimits` before anything is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from supsup.data.decode import resize_and_crop, to_rgb
from supsup.data.folder import IMAGE_SUFFIXES
from supsup.runtime.validation import CheckedFields, whole

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Count = Annotated[int, whole(1)]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_GREY = ("1", "L", "LA", "I;16")  # Pillow modes
_MAX_DECODED = 2 << 30  # bytes, all images of one request
_SMALL_FILES, _SMALL_IMAGE = 1 << 14, 1 << 16  # bytes of all files, pixels of one image: about 1 ms to decode
_LARGE_JSON = 1 << 18  # bytes; larger bodies are parsed in a thread
_MAX_FIELDS = 10_000  # form fields that are not files, such as `among`
_ACCEPTED = (
    "send an image file (Content-Type: image/png, image/jpeg, …), a multipart form with files, or JSON with image, "
    "images or arrays"
)


@dataclass(frozen=True)
class RequestLimits(CheckedFields):
    """The most that one request may send, and how much may be queued.

    predict_bytes, predict_images  to classify
    learn_bytes, learn_images      to learn a task from
    pixels                         of one decoded image
    queued_images                  waiting for a prediction; further requests get 503
    queued_jobs                    changes waiting for their turn; further ones get 429
    """

    predict_bytes: Count = 32 << 20
    predict_images: Count = 256
    learn_bytes: Count = 512 << 20
    learn_images: Count = 20_000
    pixels: Count = 40_000_000
    queued_images: Count = 4096
    queued_jobs: Count = 64


@dataclass(frozen=True)
class PredictRequest:
    """Inputs to classify.

    images  [n, …], uint8 for images
    task    the task, if it is known
    among   candidate tasks if it is not; None: all
    scores  also return the score of every candidate
    """

    images: Array
    task: str | None = None
    among: tuple[str, ...] | None = None
    scores: bool = False

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class LearnRequest:
    """A task to learn: inputs [n, …] and a class for each of them."""

    task: str
    images: Array
    labels: list[str] | list[int]


class ImageFile(NamedTuple):
    """The bytes of an image file, and its name for error messages."""

    content: bytes
    name: str = "the image"


async def read_predict_request(request: Request, shape: Shape | None, limits: RequestLimits) -> PredictRequest:
    """Read a request to /predict; `shape` is that of the model's inputs, None before it has learned a task."""
    kind = _content_type(request)
    if kind == "application/json":
        content = await _json(request)
        task, among, scores = (content.get(name) for name in ("task", "among", "scores"))
        images = await _json_inputs(content, shape, limits.predict_images, limits.pixels)
    elif kind == "multipart/form-data":
        async with request.form(max_files=limits.predict_images, max_fields=_MAX_FIELDS) as form:
            task, among, scores = form.get("task") or None, form.getlist("among") or None, form.get("scores")
            files = [ImageFile(await file.read(), file.filename or "the image") for file in _uploads(form)]
        images = await _decode(files, shape, limits.pixels)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        query = request.query_params
        task, among, scores = query.get("task"), query.getlist("among") or None, query.get("scores")
        images = await _decode([ImageFile(await request.body())], shape, limits.pixels)
    else:
        raise HTTPException(415, _ACCEPTED)
    if task is not None and not isinstance(task, str):
        raise HTTPException(400, "task must be the name of a task")
    if among is not None and not (isinstance(among, list) and among and all(isinstance(name, str) for name in among)):
        raise HTTPException(400, "among must be a non-empty list of task names")
    return PredictRequest(images, task, None if among is None else tuple(among), scores in (True, "1", "true", "yes"))


async def read_learn_request(request: Request, task: str, shape: Shape | None, limits: RequestLimits) -> LearnRequest:
    """Read a task to learn: a form whose file names are CLASS/FILE, or JSON with labels."""
    kind = _content_type(request)
    if kind == "application/json":
        content = await _json(request)
        labels = content.get("labels")
        if not isinstance(labels, list) or any(type(label) not in (str, int) for label in labels):
            raise HTTPException(400, "labels must be a list with a string or an integer for each image")
        images = await _json_inputs(content, shape, limits.learn_images, limits.pixels)
    elif kind == "multipart/form-data":
        async with request.form(max_files=limits.learn_images, max_fields=16) as form:
            named = [(class_from_path(file.filename or ""), file) for file in _uploads(form)]
            labels = [name for name, _ in named if name is not None]
            files = [ImageFile(await file.read(), file.filename or "") for name, file in named if name is not None]
            images = await _decode(files, shape, limits.pixels)
    else:
        raise HTTPException(
            415, "send a multipart form with image files named CLASS/FILE, or JSON with images or arrays and labels"
        )
    if len(labels) != len(images):
        raise HTTPException(400, f"got {len(images)} images but {len(labels)} labels; send one label for each image")
    if len(set(labels)) < 2:
        raise HTTPException(400, "a task needs images of at least two classes; put each class in its own folder")
    return LearnRequest(task, images, labels)


def decode_images(files: Sequence[ImageFile], shape: Shape | None, max_pixels: int) -> Array:
    """Decode image files to uint8 [n, *shape]; without a shape, all images must have the same size."""
    if not files:
        raise HTTPException(400, "the request contains no image")
    if shape is not None and len(files) * math.prod(shape) > _MAX_DECODED:
        raise HTTPException(413, f"{len(files):,} images of shape {shape} are too many for one request")
    decoded: list[Array] = []
    for file in files:
        decoded.append(_pixels(file, shape, max_pixels))
        if decoded[-1].shape != decoded[0].shape:
            raise HTTPException(
                400,
                f"{file.name} is {_size_text(decoded[-1])}, but {files[0].name} is {_size_text(decoded[0])}; the "
                "first task must have images of one size, all grey or all in colour",
            )
    return np.stack(decoded)


def to_array(values: object, shape: Shape | None) -> Array:
    """Convert nested lists of numbers to [n, *shape]; flat rows are reshaped."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise HTTPException(400, "arrays must be lists of numbers, all of one shape") from error
    if array.dtype.kind not in "iuf" or array.ndim < 2 or not array.size:
        raise HTTPException(400, "arrays must be a non-empty list of inputs, each a list of numbers, all of one shape")
    if shape is not None and math.prod(array.shape[1:]) != math.prod(shape):
        raise HTTPException(400, f"arrays have inputs of shape {array.shape[1:]}, but the model expects {shape}")
    return array if shape is None else array.reshape(len(array), *shape)


def image_from_base64(text: object, name: str) -> ImageFile:
    """Read an image file from base64 text or a data: URL."""
    if not isinstance(text, str):
        raise HTTPException(400, f"{name} must be an image file in base64")
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return ImageFile(base64.b64decode(encoded, validate=True), name)
    except (binascii.Error, ValueError) as error:
        raise HTTPException(400, f"{name} is not valid base64 ({error})") from error


def class_from_path(name: str) -> str | None:
    """The class of an uploaded file: the folder it is in. None for a file whose name is not that of an image."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or parts[-1].startswith(".") or PurePosixPath(parts[-1]).suffix.lower() not in IMAGE_SUFFIXES:
        return None
    if len(parts) < 2 or ".." in parts:
        raise HTTPException(400, f"{name!r} has no class; name files CLASS/FILE, for example cat/1.png")
    return parts[-2]


async def _decode(files: Sequence[ImageFile], shape: Shape | None, max_pixels: int) -> Array:
    """`decode_images` without blocking the event loop: small images here, larger ones in a thread."""
    if sum(len(file.content) for file in files) <= _SMALL_FILES:
        try:
            return decode_images(files, shape, min(_SMALL_IMAGE, max_pixels))
        except HTTPException as error:
            if error.status_code != 413:
                raise
    return await run_in_threadpool(decode_images, files, shape, max_pixels)


def _pixels(file: ImageFile, shape: Shape | None, max_pixels: int) -> Array:
    channels, height, width = _layout(shape)
    try:
        with Image.open(io.BytesIO(file.content), formats=FORMATS) as image:
            if math.prod(image.size) > max_pixels:
                raise Image.DecompressionBombError
            grey = image.mode in _GREY if channels is None else channels == 1
            fitted = to_rgb(image)
        if height is not None and width is not None and fitted.size != (width, height):
            if height == width:
                fitted = resize_and_crop(fitted, height)
            else:
                fitted = fitted.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(fitted.convert("L") if grey else fitted, np.uint8)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError) as error:
        raise HTTPException(413, f"{file.name} has more than {max_pixels:,} pixels; send a smaller image") from error
    except Exception as error:  # Pillow raises almost any exception for a damaged file
        raise HTTPException(400, f"{file.name} cannot be read as an image; send {', '.join(FORMATS)}") from error
    pixels = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return pixels.copy() if shape is None else pixels.reshape(shape).copy()


def _layout(shape: Shape | None) -> tuple[int | None, int | None, int | None]:
    """Channels, height and width of the model's images; None where the uploaded image decides."""
    if shape is None:
        return None, None, None
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    for channels in (1, 3):
        side = math.isqrt(math.prod(shape) // channels)
        if len(shape) == 1 and side > 1 and channels * side * side == shape[0]:
            return channels, side, side
    raise HTTPException(400, f"this model takes inputs of shape {shape}, not images; send JSON with arrays")


def _size_text(pixels: Array) -> str:
    channels, height, width = pixels.shape
    return f"{width} × {height} in {'grey' if channels == 1 else 'colour'}"


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _uploads(form: FormData) -> list[UploadFile]:
    return [value for _, value in form.multi_items() if isinstance(value, UploadFile)]


async def _json(request: Request) -> Mapping[str, Any]:
    body = await request.body()
    try:
        content = json.loads(body) if len(body) < _LARGE_JSON else await run_in_threadpool(json.loads, body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body is not valid JSON") from error
    if not isinstance(content, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return content


async def _json_inputs(content: Mapping[str, Any], shape: Shape | None, most: int, max_pixels: int) -> Array:
    """The arrays or base64 images of a request."""
    if "arrays" in content:
        values = content["arrays"]
    else:
        values = [content["image"]] if "image" in content else content.get("images")
    if isinstance(values, list) and len(values) > most:
        raise HTTPException(413, f"{len(values):,} images are too many; send at most {most:,} per request")
    if "arrays" in content:
        return to_array(values, shape)
    if not isinstance(values, list):
        raise HTTPException(400, _ACCEPTED)
    files = [image_from_base64(text, f"images[{number}]") for number, text in enumerate(values)]
    return await _decode(files, shape, max_pixels)
