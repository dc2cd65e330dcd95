"""Requests that arrive together are answered in one batch: while one is computed, the next one gathers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from starlette.exceptions import HTTPException

_SHARE, _LONGEST = 0.1, 0.02  # after a batch of several: wait this share of its time, at most so many seconds
In = TypeVar("In", bound=Sized)
Out = TypeVar("Out")


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
