"""How far long work is, how fast, how long still: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from supsup.errors import printable

Advance = Callable[[float], None]


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f} {self._unit}/s" if speed else f"– {self._unit}/s")


class Lines:
    """In place of a bar, where stderr is a file or a pipe: a line when `EVERY` seconds have passed since the last."""

    EVERY = 10.0

    def __init__(self, description: str, total: int, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._description, self._total, self._unit, self._clock = printable(description), total, unit, clock
        self._done, self._begin = 0.0, clock()
        self._last = self._begin

    def __call__(self, pieces: float) -> None:
        self._done += pieces
        now = self._clock()
        if now - self._last >= self.EVERY and _stderr() is not None:
            self._last = now
            rate = self._done / (now - self._begin)
            left = f", {(self._total - self._done) / rate:,.0f} s left" if rate else ""
            print(f"{self._description}: {self._done:,.4g} of {self._total:,} {self._unit}{left}", file=sys.stderr)


def _stderr() -> TextIO | None:
    """Where to say it; a program may have no stderr, or have closed it."""
    stream: TextIO | None = sys.stderr
    return None if stream is None or getattr(stream, "closed", False) else stream


@contextmanager
def bar(description: str, total: int, unit: str = "tasks", show: bool | None = None) -> Iterator[Advance]:
    """A function to call with the number of pieces just done.

    show  True for a bar, False for silence; by default a bar on a terminal and lines elsewhere
    """
    stream = _stderr()
    if stream is None or show is False:
        yield lambda pieces: None
        return
    if show is None and not stream.isatty():
        yield Lines(description, total, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        job = progress.add_task(escape(printable(description)), total=total)
        yield lambda pieces: progress.advance(job, pieces)
