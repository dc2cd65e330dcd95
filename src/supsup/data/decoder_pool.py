"""Worker processes that decode image files, a few batches ahead of whoever asks.

They are plain programs (decode.py) behind pipes: they need no guard in the user's script, share no locks with it, and
end when it does, however it ends.
"""

from __future__ import annotations

import json
import queue
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from supsup.data.decode_many import unreadable
from supsup.errors import SupSupError

Box = list[int] | None  # left, top, width, height, mirrored
Image = tuple[str, Box]
_NAME = "supsup-decoder"
_Worker = subprocess.Popen[bytes]
_PROGRAM = Path(__file__).with_name("decode.py")


class DecoderPool:
    """Processes that start when first needed and end with the pool."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=_NAME)  # each waits for one process
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()  # None: a process still to be started
        for _ in range(workers):
            self._idle.put(None)
        self._close = weakref.finalize(self, _end, self._threads, self._idle, workers)

    def close(self) -> None:
        """End the processes now."""
        self._close()

    def start(self, images: Sequence[Image], size: int, pinned: bool = False) -> PendingBatch:
        """Begin to decode a batch; pinned: into memory from which a GPU can copy while others work."""
        buffer = torch.empty(len(images), 3, size, size, dtype=torch.uint8, pin_memory=pinned)
        share = max(1, -(-len(images) // self.workers))
        starts = range(0, len(images), share)
        pieces = [(images[first : first + share], buffer[first : first + share]) for first in starts]
        return PendingBatch(buffer, [self._threads.submit(_decode, self._idle, *piece) for piece in pieces])


class PendingBatch:
    """A batch that is being decoded."""

    def __init__(self, buffer: Tensor, pieces: list[Future[None]]) -> None:
        self._buffer, self._pieces = buffer, pieces

    def result(self) -> Tensor:
        """uint8 [n, 3, size, size], once it is there."""
        try:
            for piece in self._pieces:
                piece.result()
        except BaseException:
            self.cancel()
            raise
        return self._buffer

    def cancel(self) -> None:
        """Do not begin what has not begun."""
        for piece in self._pieces:
            piece.cancel()


def _decode(idle: queue.SimpleQueue[_Worker | None], images: Sequence[Image], buffer: Tensor) -> None:
    """Decode with an idle process, straight into the buffer; one that failed is replaced by a new one later."""
    worker = idle.get()
    usable = False
    try:
        if worker is None:
            worker = _started()
        usable = _exchange(worker, images, buffer)
    except OSError as error:
        raise SupSupError(f"a process that decodes images could not be used ({error})") from error
    finally:
        if not usable and worker is not None:
            _stop(worker)
        idle.put(worker if usable else None)


def _started() -> _Worker:
    """A new process, which Ctrl-C does not reach and which ends when its input is closed."""
    command = [sys.executable, "-P", str(_PROGRAM)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _exchange(worker: _Worker, images: Sequence[Image], buffer: Tensor) -> bool:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps({"size": buffer.shape[-1], "images": images}).encode() + b"\n")
    worker.stdin.flush()
    if _read(worker.stdout, 1, images) == b"\1":
        (length,) = struct.unpack("<I", _read(worker.stdout, 4, images))
        raise unreadable([_read(worker.stdout, length, images).decode()])
    view = buffer.numpy().data.cast("B")
    if worker.stdout.readinto(view) != len(view):  # type: ignore[attr-defined]
        raise _ended(images)
    return True


def _read(pipe: IO[bytes], count: int, images: Sequence[Image]) -> bytes:
    answer = pipe.read(count)
    if len(answer) != count:
        raise _ended(images)
    return answer


def _ended(images: Sequence[Image]) -> SupSupError:
    more = f" or one of the {len(images) - 1} files with it" if len(images) > 1 else ""
    return SupSupError(
        f"a process that decodes images ended at {images[0][0]}{more}; if the machine is short of memory, use fewer "
        f"with workers=…"
    )


def _stop(worker: _Worker) -> None:
    worker.kill()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not sent cannot be sent any more
                pipe.close()
    worker.wait()


def _end(threads: ThreadPoolExecutor, idle: queue.SimpleQueue[_Worker | None], workers: int) -> None:
    """Wait for what is being decoded at this moment, then stop every process."""
    own = threading.current_thread().name.startswith(_NAME)  # garbage is collected in any thread
    threads.shutdown(wait=not own, cancel_futures=True)
    for _ in range(workers):
        with suppress(queue.Empty):
            worker = idle.get_nowait()
            if worker is not None:
                _stop(worker)
