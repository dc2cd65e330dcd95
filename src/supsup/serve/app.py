"""The HTTP routes: each reads a request, makes one call and returns JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supsup import SupSupError, __version__
from supsup.model.state import check_name
from supsup.serve.auth import AccessControl
from supsup.serve.batching import Batcher
from supsup.serve.errors import RequestError, error_response
from supsup.serve.jobs import JobQueue, ServerJob
from supsup.serve.metrics import CONTENT_TYPE, Metrics
from supsup.serve.requests import PredictRequest, read_learn_request, read_predict_request
from supsup.serve.service import Json, ModelService
from supsup.serve.settings import ServerSettings


class _TaskName(StringConvertor):
    """A task's name in a path: any characters, also slashes and line breaks."""

    regex = "(?s:.+)"


register_url_convertor("name", _TaskName())
_PAGE = {
    "": ("index.html", "text/html"),
    "style.css": ("style.css", "text/css"),
    "script.js": ("script.js", "text/javascript"),
}
_MAX_LISTED = 500  # tasks in one response
_FORGET_WAIT = 2.0  # seconds that DELETE waits before it returns a job
_GRACE = 20.0  # seconds for the running job when the server shuts down


class ModelServer:
    """A model, the batches of predictions and the queue of changes, behind the routes."""

    def __init__(self, service: ModelService, settings: ServerSettings) -> None:
        self.service, self.settings, self.metrics = service, settings, Metrics()
        self.jobs = JobQueue(self.metrics, settings.limits.queued_jobs)
        self.batcher: Batcher[PredictRequest, Json] = Batcher(
            self._predict_batch, len, max_batch=settings.max_batch, max_queued=settings.limits.queued_images
        )
        self.metrics.gauge("supsup_tasks", "Tasks that the model has learned.", lambda: len(service.model.tasks))
        self.metrics.gauge("supsup_jobs_under_way", "Jobs queued or running.", lambda: len(self.jobs.active()))
        self._page = {
            name: files("supsup.serve").joinpath("page", file).read_bytes() for name, (file, _) in _PAGE.items()
        }

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            *(Route(f"/{name}", partial(self.page, name), name="page") for name in _PAGE),
            Route("/predict", self.predict, methods=["POST"]),
            Route("/tasks", self.tasks),
            Route("/tasks/{name:name}", self.task),
            Route("/tasks/{name:name}", self.learn, methods=["POST"]),
            Route("/tasks/{name:name}", self.forget, methods=["DELETE"]),
            Route("/jobs/{job}", self.job),
            Route("/health", self.health),
            Route("/metrics", self.prometheus),
        ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(AccessControl, settings=self.settings, metrics=self.metrics)],
            exception_handlers={
                RequestError: _rejected,
                SupSupError: _bad_request,
                HTTPException: _http_error,
                Exception: _server_error,
            },
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False  # a task's name may end with a slash
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.batcher.close()
        if await run_in_threadpool(self.jobs.stop, _GRACE):
            self.service.close()

    async def predict(self, request: Request) -> Response:
        """POST /predict: classify images or arrays, with the task known or not."""
        begin = time.perf_counter()
        wanted = await read_predict_request(request, self.service.model.image_shape, self.settings.limits)
        answer = await self.batcher.submit(wanted)
        return JSONResponse(answer | {"milliseconds": round(1e3 * (time.perf_counter() - begin), 2)})

    async def tasks(self, request: Request) -> Response:
        """GET /tasks: list tasks, page by page."""
        limit = _query_integer(request, "limit", 50, _MAX_LISTED)
        offset = _query_integer(request, "offset", 0, 1 << 40)
        return JSONResponse(self.service.tasks(request.query_params.get("search", ""), offset, limit))

    async def task(self, request: Request) -> Response:
        """GET /tasks/NAME: everything about one task."""
        return JSONResponse(await run_in_threadpool(self.service.details, self._existing(request)))

    async def learn(self, request: Request) -> Response:
        """POST /tasks/NAME: learn a new task, as a job."""
        name = request.path_params["name"]
        self._check_new(name)
        wanted = await read_learn_request(request, name, self.service.model.image_shape, self.settings.limits)
        self._check_new(name)  # it may have been learned during the upload
        job = self.jobs.add(ServerJob("learn", name, partial(self.service.learn, wanted), wanted.images.nbytes))
        return JSONResponse(job.info(), 202, {"Location": f"/jobs/{job.id}"})

    async def forget(self, request: Request) -> Response:
        """DELETE /tasks/NAME: forget a task at once, or as a job if another change is running."""
        name = self._existing(request)
        job = self.jobs.add(ServerJob("forget", name, lambda progress: self.service.forget(name)))
        await asyncio.wait([asyncio.wrap_future(job.finished)], timeout=_FORGET_WAIT)
        if job.state == "failed":
            raise RequestError(409, job.error or "the task could not be forgotten")
        return JSONResponse(job.info(), 200 if job.state == "done" else 202, {"Location": f"/jobs/{job.id}"})

    async def job(self, request: Request) -> Response:
        """GET /jobs/ID: the progress of a job."""
        return JSONResponse(self.jobs.get(request.path_params["job"]).info())

    async def health(self, request: Request) -> Response:
        """GET /health: that the server is up, and what it serves."""
        status = {
            "status": "ok",
            "version": __version__,
            "read_only": self.settings.read_only,
            "needs_token": self.settings.token is not None,
            "jobs": [job.info() for job in self.jobs.active()],
        }
        return JSONResponse(status | self.service.info())

    async def prometheus(self, request: Request) -> Response:
        """GET /metrics: counters for Prometheus."""
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def page(self, name: str, request: Request) -> Response:
        """The web page and its two files."""
        return Response(self._page[name], media_type=_PAGE[name][1])

    def _predict_batch(self, requests: Sequence[PredictRequest]) -> list[Json | Exception]:
        self.metrics.batch(sum(map(len, requests)))
        return self.service.predict(requests)

    def _existing(self, request: Request) -> str:
        name: str = request.path_params["name"]
        if name not in self.service.model:
            raise RequestError(404, f"there is no task {name!r}")
        return name

    def _check_new(self, name: str) -> None:
        check_name(name)
        if name in (".", ".."):
            raise RequestError(400, f"browsers cannot request a task called {name!r}; choose another name")
        if name in self.service.model:
            raise RequestError(409, f"a task {name!r} already exists; forget it first, or choose another name")
        if any(job.kind == "learn" and job.task == name for job in self.jobs.active()):
            raise RequestError(409, f"a task {name!r} is being learned; choose another name")


def _query_integer(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:20]) <= most:
        raise RequestError(400, f"{name} must be an integer from 0 to {most:,}")
    return int(text)


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error.status, error.reason)


async def _bad_request(request: Request, error: Exception) -> Response:
    return error_response(400, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, error.detail)


async def _server_error(request: Request, error: Exception) -> Response:
    return error_response(500, "internal server error; see the server's log")
