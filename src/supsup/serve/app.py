"""The HTTP application: routes that each read a request, make one call and return JSON; behind access control.

A page on another site can make a visitor's browser send requests here. So a server that is reachable only from this
machine checks the Host header, because a foreign name may be made to resolve to 127.0.0.1. And requests that change
the model must come from our own page or from no page at all.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supsup import SupSupError, __version__
from supsup.model.state import check_name
from supsup.runtime.errors import printable
from supsup.serve.requests import PredictRequest, read_learn_request, read_predict_request
from supsup.serve.server import LOOPBACK, ServerSettings
from supsup.serve.service import Batcher, JobQueue, Json, ModelService, ServerJob


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
_DRAINED = 16 << 20  # bytes of a rejected body that are still read
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ERROR_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # the rest of the body is not read
    429: {"Retry-After": "5"},
    503: {"Retry-After": "1"},
}


class ModelServer:
    """A model, the batches of predictions and the queue of changes, behind the routes."""

    def __init__(self, service: ModelService, settings: ServerSettings) -> None:
        self.service, self.settings, self.metrics = service, settings, Metrics()
        self.jobs = JobQueue(self.metrics.jobs, settings.limits.queued_jobs)
        self.batcher: Batcher[PredictRequest, Json] = Batcher(
            self._predict_batch, max_batch=settings.max_batch, max_queued=settings.limits.queued_images
        )
        tasks = Gauge("supsup_tasks", "Tasks that the model has learned.", registry=self.metrics.registry)
        tasks.set_function(lambda: len(service.model.tasks))
        active = Gauge("supsup_jobs_under_way", "Jobs queued or running.", registry=self.metrics.registry)
        active.set_function(lambda: len(self.jobs.active()))
        folder = files("supsup.serve").joinpath("page")
        self._page = {name: folder.joinpath(file).read_bytes() for name, (file, _) in _PAGE.items()}

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
            exception_handlers=dict.fromkeys((HTTPException, SupSupError, Exception), _error_response),
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
        job = self.jobs.add(ServerJob("forget", name, lambda progress: self.service.model.forget(name)))
        await asyncio.wait([asyncio.wrap_future(job.finished)], timeout=_FORGET_WAIT)
        if job.state == "failed":
            raise HTTPException(409, job.error or "the task could not be forgotten")
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
        return Response(generate_latest(self.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def page(self, name: str, request: Request) -> Response:
        """The web page and its two files."""
        return Response(self._page[name], media_type=_PAGE[name][1])

    def _predict_batch(self, requests: Sequence[PredictRequest]) -> list[Json | Exception]:
        self.metrics.batches.observe(sum(map(len, requests)))
        return self.service.predict(requests)

    def _existing(self, request: Request) -> str:
        name: str = request.path_params["name"]
        if name not in self.service.model:
            raise HTTPException(404, f"there is no task {name!r}")
        return name

    def _check_new(self, name: str) -> None:
        check_name(name)
        if name in (".", ".."):
            raise HTTPException(400, f"browsers cannot request a task called {name!r}; choose another name")
        if name in self.service.model:
            raise HTTPException(409, f"a task {name!r} already exists; forget it first, or choose another name")
        if any(job.kind == "learn" and job.task == name for job in self.jobs.active()):
            raise HTTPException(409, f"a task {name!r} is being learned; choose another name")


def _query_integer(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:20]) <= most:
        raise HTTPException(400, f"{name} must be an integer from 0 to {most:,}")
    return int(text)


class Metrics:
    """Requests, batches and finished jobs of one server, and the memory of its process; for use from any thread."""

    def __init__(self) -> None:
        self.registry = every = CollectorRegistry()
        ProcessCollector(registry=every)
        self.requests = Counter(
            "supsup_requests", "Requests answered, by route and status.", ("route", "status"), registry=every
        )
        self.seconds = Histogram(
            "supsup_request_seconds", "Seconds to answer a request.", ("route",), buckets=_SECONDS, registry=every
        )
        self.batches = Histogram("supsup_batch_images", "Images in a batch.", buckets=_IMAGES, registry=every)
        self.jobs = Counter("supsup_jobs", "Finished jobs, by kind and outcome.", ("kind", "state"), registry=every)


class AccessControl:
    """Middleware: rejects what is not allowed, adds security headers, and counts requests."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics, self._local = app, settings, metrics, settings.local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    sent.setdefault(name, value)
            await send(message)

        try:
            try:
                self._check(scope["method"], scope["path"], headers)
                limits = self._settings.limits
                most = limits.learn_bytes if scope["path"].startswith("/tasks/") else limits.predict_bytes
                limited = _limit_body(receive, headers, most)
            except HTTPException as error:
                if error.status_code == 413:
                    await _drain(receive)
                response = await _error_response(Request(scope), error)
                await response(scope, receive, send_with_headers)
                return
            await self._app(scope, limited, send_with_headers)
        finally:
            # the endpoint's name, never the path, which could be anything
            route = str(getattr(scope.get("endpoint"), "__name__", "none"))
            self._metrics.requests.labels(route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - begin)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._local and _host_name(host) not in LOOPBACK:
            raise HTTPException(421, "this server is reachable only as localhost; use http://127.0.0.1 with its port")
        if method in _SAFE_METHODS:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and origin.rpartition("://")[2] != host) or site not in ("same-origin", "none"):
            raise HTTPException(403, "requests from pages of other sites are rejected")
        if path == "/predict":
            return
        if self._settings.read_only:
            raise HTTPException(403, "this server was started with --read-only; the model cannot be changed")
        if self._settings.token is None:
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(token.strip().encode(), self._settings.token.encode())
        if kind.lower() != "bearer" or not matches:
            raise HTTPException(401, "changing the model needs the server's token: Authorization: Bearer TOKEN")


def _limit_body(receive: Receive, headers: Headers, most: int) -> Receive:
    """`receive` that rejects a body of more than `most` bytes, before reading it if Content-Length says so."""
    too_large = f"the request has more than {most:,} bytes; send fewer or smaller images"
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:20]) > most:
        raise HTTPException(413, too_large)
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, too_large)
        return message

    return limited


async def _drain(receive: Receive) -> None:
    """Read some of a rejected body: a client that is cut off while sending may never see the response."""
    received, more = 0, True
    while more and received < _DRAINED:
        message = await receive()
        received += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


def _host_name(host: str) -> str:
    """The name or address in a Host header, without the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


async def _error_response(request: Request, error: Exception) -> Response:
    """JSON that says why a request was rejected."""
    status, reason = 500, "internal server error; see the server's log"
    if isinstance(error, HTTPException):
        status, reason = error.status_code, error.detail
    elif isinstance(error, SupSupError):
        status, reason = 400, str(error)
    return JSONResponse({"error": printable(reason, 2000)}, status, _ERROR_HEADERS.get(status))
