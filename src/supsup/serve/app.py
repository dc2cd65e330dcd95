"""The routes: requests in, one call each, JSON out."""

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

from supsup import __version__
from supsup.model.state import state_of
from supsup.model.task_table import check_name
from supsup.runtime.errors import SupSupError
from supsup.serve.auth import Guard
from supsup.serve.batching import Batcher
from supsup.serve.errors import Refused, answer_refused, refusal
from supsup.serve.jobs import Job, Jobs
from supsup.serve.metrics import Metrics, resident_bytes
from supsup.serve.requests import lesson_of, question_of
from supsup.serve.service import Json, Question, Served
from supsup.serve.settings import Settings


class _Name(StringConvertor):
    """The name of a task in a path: any characters, slashes and ends of lines too."""

    regex = "(?s:.+)"


register_url_convertor("name", _Name())
_PAGE = {
    "": ("index.html", "text/html"),
    "style.css": ("style.css", "text/css"),
    "script.js": ("script.js", "text/javascript"),
}
_MOST_LISTED = 500
_FORGETTING = 2.0  # seconds that a request waits for its change
_GRACE = 20.0  # seconds for a job under way when the server goes down


class Server:
    """A model, the queue of questions and the queue of changes, behind the routes."""

    def __init__(self, served: Served, settings: Settings) -> None:
        self.served, self.settings, self.metrics = served, settings, Metrics()
        self.jobs = Jobs(self.metrics, settings.limits.jobs)
        self.questions: Batcher[Question, Json] = Batcher(
            self._answers, len, together=settings.together, waiting=settings.limits.waiting
        )
        self._page = {
            name: files("supsup.serve").joinpath("page", file).read_bytes() for name, (file, _) in _PAGE.items()
        }

    def app(self) -> Starlette:
        """The application."""
        routes = [
            *(Route(f"/{name}", partial(self.page, name), name="page") for name in _PAGE),
            Route("/predict", self.predict, methods=["POST"]),
            Route("/tasks", self.tasks),
            Route("/tasks/{name:name}", self.task),
            Route("/tasks/{name:name}", self.learn, methods=["POST"]),
            Route("/tasks/{name:name}", self.forget, methods=["DELETE"]),
            Route("/jobs/{job}", self.job),
            Route("/health", self.health),
            Route("/metrics", self.numbers),
        ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(Guard, settings=self.settings, metrics=self.metrics)],
            exception_handlers={Refused: answer_refused, SupSupError: _wrong, HTTPException: _http, Exception: _failed},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False  # a task's name may end with one
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.questions.close()
        if await run_in_threadpool(self.jobs.stop, _GRACE):
            self.served.close()

    async def predict(self, request: Request) -> Response:
        """Answer images or arrays, with the task known or not."""
        begin = time.perf_counter()
        question = await question_of(request, self.served.model.image_shape, self.settings.limits)
        answer = await self.questions.ask(question)
        return JSONResponse(answer | {"milliseconds": round(1e3 * (time.perf_counter() - begin), 2)})

    async def tasks(self, request: Request) -> Response:
        """List tasks, page by page."""
        limit = _whole(request, "limit", 50, _MOST_LISTED)
        offset = _whole(request, "offset", 0, 1 << 40)
        return JSONResponse(self.served.tasks(request.query_params.get("search", ""), offset, limit))

    async def task(self, request: Request) -> Response:
        """What is known of one task."""
        name = self._known(request)
        return JSONResponse(await run_in_threadpool(self.served.details, name))

    async def learn(self, request: Request) -> Response:
        """Learn a new task: a job."""
        name = request.path_params["name"]
        self._check_new(name)
        lesson = await lesson_of(request, name, self.served.model.image_shape, self.settings.limits)
        self._check_new(name)  # what was uploaded meanwhile
        job = self.jobs.add(Job("learn", name, partial(self.served.learn, lesson), lesson.images.nbytes))
        return JSONResponse(job.info(), 202, {"Location": f"/jobs/{job.id}"})

    async def forget(self, request: Request) -> Response:
        """Forget a task: done at once, or a job where another change is under way."""
        name = self._known(request)
        job = self.jobs.add(Job("forget", name, lambda progress: self.served.forget(name)))
        await asyncio.wait([asyncio.wrap_future(job.ended)], timeout=_FORGETTING)
        if job.state == "failed":
            raise Refused(409, job.error or "it could not be forgotten")
        return JSONResponse(job.info(), 200 if job.state == "done" else 202, {"Location": f"/jobs/{job.id}"})

    async def job(self, request: Request) -> Response:
        """How far a job is."""
        return JSONResponse(self.jobs.get(request.path_params["job"]).info())

    async def health(self, request: Request) -> Response:
        """Whether the server answers, and what it serves."""
        settings = self.settings
        mine = {
            "status": "ok",
            "version": __version__,
            "read_only": settings.read_only,
            "needs_token": settings.token is not None,
            "jobs": [job.info() for job in self.jobs.under_way()],
        }
        return JSONResponse(mine | self.served.info())

    async def numbers(self, request: Request) -> Response:
        """Counts for Prometheus."""
        gauges = {
            "supsup_tasks": ("Tasks that the model has learned.", len(state_of(self.served.model).tasks)),
            "supsup_jobs_under_way": ("Changes that wait or run.", len(self.jobs.under_way())),
            "process_resident_memory_bytes": ("Memory of the server in bytes.", resident_bytes()),
        }
        return Response(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def page(self, name: str, request: Request) -> Response:
        """The page and its two files."""
        return Response(self._page[name], media_type=_PAGE[name][1])

    def _answers(self, questions: Sequence[Question]) -> list[Json | Exception]:
        self.metrics.batch(sum(map(len, questions)))
        return self.served.answers(questions)

    def _known(self, request: Request) -> str:
        name: str = request.path_params["name"]
        if name not in state_of(self.served.model).tasks:
            raise Refused(404, f"there is no task {name!r}")
        return name

    def _check_new(self, name: str) -> None:
        check_name(name)
        if name in (".", ".."):
            raise Refused(400, f"browsers cannot ask for a task called {name!r}; use another name")
        if name in state_of(self.served.model).tasks:
            raise Refused(409, f"there is a task {name!r} already; forget it first, or use another name")
        if any(job.kind == "learn" and job.task == name for job in self.jobs.under_way()):
            raise Refused(409, f"a task {name!r} is being learned; use another name")


def _whole(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:20]) <= most:
        raise Refused(400, f"{name} must be a whole number from 0 to {most:,}")
    return int(text)


async def _wrong(request: Request, error: Exception) -> Response:
    return refusal(400, error)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, error.detail)


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, "the server failed; its log says why")
