"""Worker processes must give the pixels that were asked for, name what they cannot read, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from supsup.data.decode import decode_image
from supsup.data.folder import DecoderPool, ImageRequest, _exchange
from supsup.runtime.errors import SupSupError


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    generator = np.random.default_rng(0)
    for number in range(7):
        Image.fromarray(generator.integers(0, 256, (9, 12, 3), np.uint8)).save(tmp_path / f"{number}.png")
    return [str(path) for path in sorted(tmp_path.iterdir())]


@pytest.fixture
def pool() -> DecoderPool:
    return DecoderPool(2)


def alive(pool: DecoderPool) -> list[subprocess.Popen[bytes]]:
    """The idle processes; their decoders go back to the queue."""
    decoders = [pool._idle.get() for _ in range(pool.workers)]
    for decoder in decoders:
        pool._idle.put(decoder)
    return [decoder.process for decoder in decoders if decoder.process is not None]


def decoded(pool: DecoderPool, images: Sequence[ImageRequest]) -> torch.Tensor:
    """A whole batch of 8 × 8 pixels."""
    buffer, futures = pool.start(images, 8)
    for future in futures:
        future.result()
    return buffer


def test_a_batch_is_what_decoding_here_would_give(pool: DecoderPool, paths: list[str]) -> None:
    boxes = [None, [1, 2, 5, 6, 1], None, [0, 0, 12, 9, 0], [3, 3, 2, 2, 1], None, None]
    expected = [decode_image(path, 8, box and tuple(box)) for path, box in zip(paths, boxes)]  # type: ignore[arg-type]
    for _ in range(3):
        batch = decoded(pool, list(zip(paths, boxes)))
        assert batch.dtype == torch.uint8
        assert np.array_equal(batch.numpy(), np.stack(expected))
    assert len(alive(pool)) == 2


def test_one_image_and_none(pool: DecoderPool, paths: list[str]) -> None:
    assert decoded(pool, [(paths[0], None)]).shape == (1, 3, 8, 8)
    assert decoded(pool, []).shape == (0, 3, 8, 8)


def test_processes_start_when_first_needed(pool: DecoderPool) -> None:
    """Looking at a source must not cost processes."""
    assert alive(pool) == []


def test_an_unreadable_file_is_named_and_the_next_batch_works(pool: DecoderPool, paths: list[str]) -> None:
    Path(paths[3]).write_bytes(b"damaged")
    images = [(path, None) for path in paths]
    with pytest.raises(SupSupError, match=r"1 file cannot be read as images: .*3\.png \(unsupported image format"):
        decoded(pool, images)
    assert decoded(pool, images[:3]).shape == (3, 3, 8, 8)


def test_a_process_that_dies_is_reported_and_replaced(pool: DecoderPool, paths: list[str]) -> None:
    """A machine short of memory kills processes; waiting for them for ever would be worse than an error."""
    images = [(path, None) for path in paths]
    decoded(pool, images)
    for worker in alive(pool):
        worker.kill()
        worker.wait()
    with pytest.raises(SupSupError, match="a process that decodes images"):
        decoded(pool, images)
    for _ in range(2):  # the second process may not have been asked in the batch that failed
        try:
            batch = decoded(pool, images)
        except SupSupError:
            continue
    assert np.array_equal(batch[6].numpy(), decode_image(paths[6], 8))


def test_files_at_which_a_process_dies_are_named(paths: list[str]) -> None:
    images, buffer = [(path, None) for path in paths], torch.empty(len(paths), 3, 8, 8, dtype=torch.uint8)
    reads_and_ends = [sys.executable, "-c", "input()"]
    with subprocess.Popen(reads_and_ends, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        named = r"ended at .*0\.png or one of the 6 files with it; .* use fewer with workers="
        with pytest.raises(SupSupError, match=named):
            _exchange(worker, images, buffer)


def test_odd_names_reach_the_processes(pool: DecoderPool, tmp_path: Path) -> None:
    path = tmp_path / "ä \n\"'☃.png"
    Image.new("RGB", (8, 8), (1, 2, 3)).save(path)
    assert decoded(pool, [(str(path), None)])[0, :, 0, 0].tolist() == [1, 2, 3]


def test_processes_end_with_their_owner(paths: list[str]) -> None:
    owner = DecoderPool(2)
    decoded(owner, [(path, None) for path in paths])
    workers = alive(owner)
    assert len(workers) == 2
    del owner
    gc.collect()
    for worker in workers:  # a thread may hold the last reference for a moment
        worker.wait(60)


def test_a_pool_that_is_collected_waits_for_no_thread(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is collected in any thread, also in one that is being started: a join there waits for ever."""
    owner = DecoderPool(2)
    decoded(owner, [(path, None) for path in paths])
    monkeypatch.setattr(threading.Thread, "join", lambda *_: pytest.fail("the collector waits for a thread"))
    workers = alive(owner)
    del owner
    gc.collect()
    for worker in workers:
        worker.wait(60)


def test_a_busy_process_is_stopped_when_its_pool_has_gone(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would stop it, or close its pipes."""
    busy: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    collected = threading.Event()

    def slow(worker: subprocess.Popen[bytes], images: list[tuple[str, None]], buffer: torch.Tensor) -> None:
        busy.put(worker)
        collected.wait()
        _exchange(worker, images, buffer)

    monkeypatch.setattr("supsup.data.folder._exchange", slow)
    owner = DecoderPool(1)
    batch, (future,) = owner.start([(path, None) for path in paths], 8)
    worker = busy.get()
    del owner
    gc.collect()
    assert worker.poll() is None
    collected.set()
    future.result()
    assert batch.shape == (7, 3, 8, 8)
    worker.wait(60)


def test_interrupting_the_program_ends_it_and_its_processes(tmp_path: Path, paths: list[str]) -> None:
    """Ctrl-C while batches are under way: it ends with that, no word from the workers, nobody left."""
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, sys\n"
        "from supsup.data.folder import DecoderPool\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit that it is ignored\n"
        "pool = DecoderPool(2)\n"
        "images = [(path, None) for path in sys.argv[1:]] * 20\n"
        "[future.result() for future in pool.start(images, 8)[1]]\n"
        "decoders = [pool._idle.get() for _ in range(2)]\n"
        "[pool._idle.put(decoder) for decoder in decoders]\n"
        "print(*(decoder.process.pid for decoder in decoders), flush=True)\n"
        "while True:\n"
        "    [future.result() for future in pool.start(images, 8)[1]]\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(program), *paths],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        text=True,
    )
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0, errors
    assert "KeyboardInterrupt" in errors
    assert "decode.py" not in errors
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
