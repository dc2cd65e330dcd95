"""Runs every command that reads a file over every crafted one, under a limit of memory and time.

`python -m tests.attack.judge FOLDER [WORD]` writes what happened to FOLDER/verdicts.json; with a word, for the files
whose names it begins.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import supsup
from supsup import SupSup, SupSupError
from supsup.cli import inspect as commands
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair, verify
from tests.attack import crafted, planted
from tests.attack.forging import (
    BYSTANDER,
    CASES,
    bystander,
    digest_of,
    hop_model,
    info,
    mask_of,
    plain_model,
    residual_model,
)
from tests.attack.mutating import TASKS

assert crafted, planted  # which fill CASES

MEMORY, SECONDS = 3 << 30, 20


def main(folder: Path, word: str = "") -> None:
    torch.set_num_threads(1)
    right = sound_ones()
    limit()
    verdicts = {}
    for number, (name, (expect, kind, make)) in enumerate(CASES.items()):
        if not name.startswith(word):
            continue
        place = folder / str(number)
        place.mkdir()
        path = place / "model.supsup"
        make(path)
        bystander(path).write_bytes(BYSTANDER)
        start = time.process_time()
        verdicts[name] = judged(path, expect, kind, right) | {"seconds": time.process_time() - start}
    used_at_most = peak_bytes()
    (folder / "verdicts.json").write_text(json.dumps({"verdicts": verdicts, "bytes": used_at_most}))


@dataclass(frozen=True)
class Right:
    """What sound models are: digests by kind of those that files are made from, of all others, and of every mask."""

    whole: dict[str, str]
    others: set[str]
    masks: set[str]


def peak_bytes() -> int:
    """The most memory that this program has had; `getrusage` also counts what it was started from."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sound_ones() -> Right:
    models: dict[str, Any] = {"plain": plain_model(), "residual": residual_model(), "hop": hop_model()}
    whole, others = {kind: info(model) for kind, model in models.items()}, [plain_model(tasks) for tasks in TASKS]
    learned = [model for model in [*models.values(), *others] if isinstance(model, SupSup)]
    masks = {f"{task}/{mask_of(model, task)}" for model in learned for task in model.tasks}
    return Right(whole, {*whole.values(), *map(info, others)}, masks)


def limit() -> None:
    """Hold this process to the memory it has and a little more, and each command to its time."""
    signal.signal(signal.SIGPROF, too_late)  # of computing
    signal.signal(signal.SIGALRM, too_late)  # of waiting, on a machine that may be busy
    used = 0
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def judged(path: Path, expect: str, kind: str, right: Right, *, in_place: bool = True) -> dict[str, Any]:
    """What each command did, and what of it is not allowed; with `in_place` also what a writer did."""
    before, wrong = snapshot(path.parent), []
    out = path.parent / "out"

    def load(**how: Any) -> str:
        model = supsup.load(path, device="cpu", **how)
        found = info(model)
        if isinstance(model, SupSup):
            model.close()
        return found

    def rescue() -> str:
        repair(path, out)
        with ModelFile(out) as rescued:
            found = {f"{row.name}/{digest_of(rescued.decoded(row).tobytes())}" for row in rescued.records()}
        if not found <= right.masks and expect not in ("other", "forged"):
            wrong.append(f"repair gave other masks: {found - right.masks}")
        return "rescued"

    commands_to_run: dict[str, Callable[[], Any]] = {
        "load": load,
        "verify": lambda: verify(path).clean,
        "tasks": lambda: printed(commands.tasks_command, path),
        "info": lambda: printed(commands.info_command, path),
        "repair": rescue,
    }
    begin, longest = time.process_time(), 0.0
    done = {}
    for name, run in commands_to_run.items():
        done[name] = outcome(run, wrong, name)
        longest, begin = max(longest, time.process_time() - begin), time.process_time()
    out.unlink(missing_ok=True)
    after = snapshot(path.parent)
    wrong += [f"reading changed {name}" for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if in_place and kind != "hop":
        done["load in place"] = outcome(lambda: load(in_place=True), wrong, "load in place")
    other = bystander(path)
    if not other.exists() or other.read_bytes() != BYSTANDER:
        wrong.append("another file is gone or changed")
    loaded = done["load"]
    if loaded == "refused" and expect == "right":
        wrong.append("a sound model was refused")
    allowed = right.others if expect == "one of them" else {right.whole[kind]}
    if loaded != "refused" and (expect in ("refused", "forged") or (expect != "other" and loaded not in allowed)):
        wrong.append("a wrong model was loaded")
    return {"wrong": wrong, "done": done, "longest": longest}


def printed(command: Callable[[Path], None], path: Path) -> str:
    with redirect_stdout(io.StringIO()) as text, redirect_stderr(io.StringIO()):
        command(path)
    return f"{len(text.getvalue())} characters"


def outcome(run: Callable[[], Any], wrong: list[str], name: str) -> str:
    """What a command gave, in a word; anything but an answer or an error of ours is wrong."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
    try:
        return str(run())
    except SupSupError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 4000:
            wrong.append(f"{name} speaks to the terminal: {text[:200]!r}")
        return "refused"
    except BaseException as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}\n{where}")
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def snapshot(folder: Path) -> dict[str, str]:
    """What lies in a folder, to the byte and the time of the last change."""
    found = {}
    for file in folder.iterdir():
        status = file.lstat()
        content = b""
        if stat.S_ISREG(status.st_mode):
            with file.open("rb") as opened, suppress(MemoryError):
                content = opened.read(1 << 20)
        found[file.name] = f"{status.st_mode} {status.st_size} {status.st_mtime_ns} {hash(content)}"
    return found


def too_late(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
