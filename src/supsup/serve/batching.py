"""Questions that arrive together are answered together: while one batch is computed, the next one gathers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from supsup.serve.errors import Refused

_SHARE, _GATHERING = 0.1, 0.02  # of a batch's time, and seconds at most, to gather the next after several questions
Asked = TypeVar("Asked")
Given = TypeVar("Given")
Answer = Callable[[Sequence[Asked]], Sequence[Given | Exception]]


class Batcher(Generic[Asked, Given]):
    """Asks a function for many answers at once, in a thread of its own; belongs to one event loop.

    answer    for each question what it gives, or an error that is raised to who asked
    size      of a question, in images
    together  the most images of one batch; a larger question is a batch of its own
    waiting   the most images in the queue; who comes then is turned away
    """

    def __init__(
        self, answer: Answer[Asked, Given], size: Callable[[Asked], int], *, together: int, waiting: int
    ) -> None:
        self._answer, self._size, self._together, self._most = answer, size, together, waiting
        self._queue: deque[tuple[Asked, asyncio.Future[Given]]] = deque()
        self._images = 0  # in the queue
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="supsup-answers")

    async def ask(self, question: Asked) -> Given:
        """The answer to one question, with those of others that wait."""
        if self._images + self._size(question) > self._most and self._queue:
            raise Refused(503, f"more than {self._most:,} images wait for an answer; try again in a moment")
        future: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self._queue.append((question, future))
        self._images += self._size(question)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Answer what waits, then end."""
        while self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                batch, begin = self._next(), loop.time()
                try:
                    given = await loop.run_in_executor(self._thread, self._answer, [asked for asked, _ in batch])
                except Exception as error:
                    given = [error] * len(batch)
                seconds = loop.time() - begin
                for (_, future), answer in zip(batch, given, strict=True):
                    if future.done():  # who asked has gone
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
                if len(batch) > 1:  # they may come again: the next batch is not to be the first of them alone
                    await asyncio.sleep(min(_GATHERING, _SHARE * seconds))
        finally:
            self._running = None

    def _next(self) -> list[tuple[Asked, asyncio.Future[Given]]]:
        batch: list[tuple[Asked, asyncio.Future[Given]]] = []
        images = 0
        while self._queue:
            size = self._size(self._queue[0][0])
            if batch and images + size > self._together:
                break
            batch.append(self._queue.popleft())
            images += size
        self._images -= images
        return batch
