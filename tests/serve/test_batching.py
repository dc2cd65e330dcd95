"""Questions that wait are answered together, each gets its own answer, and too many are turned away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from starlette.exceptions import HTTPException

from supsup.serve.service import Batcher


class Images(int):
    """A request of as many images."""

    def __len__(self) -> int:
        return self


class Image(Images):
    """A request of one image."""

    def __len__(self) -> int:
        return 1


class Slow:
    """Answers each number with its double, a batch at a time, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()

    def answer(self, numbers: Sequence[Images]) -> list[int | Exception]:
        self.go.wait(10)
        self.batches.append(list(numbers))
        return [ValueError(f"{number} is odd") if number % 2 else 2 * number for number in numbers]


def test_what_arrives_while_a_batch_is_computed_is_the_next_batch() -> None:
    slow = Slow()

    async def work() -> list[object]:
        batcher = Batcher(slow.answer, max_batch=8, max_queued=100)
        asked = [asyncio.create_task(batcher.submit(Image(number))) for number in range(21)]
        await asyncio.sleep(0.05)
        slow.go.set()
        given = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.close()
        return list(given)

    given = asyncio.run(work())
    assert [number for batch in slow.batches for number in batch] == list(range(21))
    assert [len(batch) for batch in slow.batches] == [8, 8, 5]
    assert [answer for answer in given if not isinstance(answer, Exception)] == [4 * half for half in range(11)]
    assert {str(answer) for answer in given if isinstance(answer, Exception)} == {
        f"{number} is odd" for number in range(1, 21, 2)
    }


def test_who_has_gone_keeps_nobody_from_an_answer() -> None:
    slow = Slow()

    async def work() -> int:
        batcher = Batcher(slow.answer, max_batch=8, max_queued=100)
        gone, stays = asyncio.create_task(batcher.submit(Image(2))), asyncio.create_task(batcher.submit(Image(4)))
        await asyncio.sleep(0.02)
        gone.cancel()
        slow.go.set()
        return await stays

    assert asyncio.run(work()) == 8


def test_a_full_queue_turns_others_away() -> None:
    slow = Slow()

    async def work() -> None:
        batcher = Batcher(slow.answer, max_batch=4, max_queued=10)
        first = asyncio.create_task(batcher.submit(Images(20)))  # larger than the queue, but there is none
        await asyncio.sleep(0.02)
        second = asyncio.create_task(batcher.submit(Images(8)))
        await asyncio.sleep(0.02)
        with pytest.raises(HTTPException, match="more than 10 images are queued") as refused:
            await batcher.submit(Images(4))
        assert refused.value.status_code == 503
        slow.go.set()
        assert await first == 40
        assert await second == 16
        assert await batcher.submit(Images(4)) == 8

    asyncio.run(work())


def test_an_error_of_the_whole_batch_reaches_everybody_and_the_next_batch_is_answered() -> None:
    failed: list[bool] = []

    def answer(numbers: Sequence[Images]) -> list[int | Exception]:
        if not failed:
            failed.append(True)
            raise RuntimeError("no memory")
        return list(numbers)

    async def work() -> None:
        batcher: Batcher[Images, int] = Batcher(answer, max_batch=8, max_queued=100)
        given = await asyncio.gather(batcher.submit(Image(1)), batcher.submit(Image(2)), return_exceptions=True)
        assert [str(each) for each in given] == ["no memory", "no memory"]
        assert await batcher.submit(Image(3)) == 3

    asyncio.run(work())
