"""A progress bar for long work: how far, how fast, how long still. Silent where nobody is looking."""

from __future__ import annotations

import sys
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


def _shows(show: bool | None) -> bool:
    """Whether there is a bar: by default where somebody looks at stderr. A program may have none, or have closed it."""
    stream: TextIO | None = sys.stderr
    if stream is None or getattr(stream, "closed", False):
        return False
    return stream.isatty() if show is None else show


@contextmanager
def bar(description: str, total: int, unit: str = "tasks", show: bool | None = None) -> Iterator[Advance]:
    """A function to call with the number of pieces just done; show=None shows the bar on a terminal only."""
    if not _shows(show):
        yield lambda pieces: None
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
