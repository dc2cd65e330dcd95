"""Paths that a user gives: in full, of an ordinary file, and never written through somebody else's link."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from supsup.runtime.errors import SupSupError, printable

AnyPath = str | os.PathLike[str]
_LONGEST_NAME = 200  # bytes; the names of a journal, a lock and a file in the making are a little longer
_PART = ".supsup-part"  # how the name of a file in the making ends


def full_path(path: AnyPath) -> Path:
    """The path in full, links followed, or an error if no file can have it."""
    try:
        full = Path(path).resolve()
        if full.is_symlink():
            raise SupSupError(f"{printable(full)} is a link that leads back to itself; give the path of a model file")
        full.exists()
    except SupSupError:
        raise
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # NUL, too long, a loop of links
        raise SupSupError(f"{printable(repr(path))} is not a path that can be used ({printable(error)})") from error
    return full


def existing(path: AnyPath) -> Path:
    """The path in full, once it is clear that there is something in it to read."""
    full = full_path(path)
    try:
        status = full.stat()
    except FileNotFoundError:
        raise SupSupError(f"there is no file {full}") from None
    except OSError as error:
        raise SupSupError(f"{full} cannot be opened: {error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise SupSupError(f"{full} is a folder; give the path of a model file")
    if not stat.S_ISREG(status.st_mode):
        raise SupSupError(f"{full} is not an ordinary file; give the path of a model file")
    if status.st_size == 0:
        raise SupSupError(f"{full} is empty, so it is not a supsup model file")
    return full


def to_write(path: AnyPath) -> Path:
    """The path in full of a file that may be made or replaced; one's own links are followed, others' are not."""
    full = full_path(path)
    if not full.parent.is_dir():
        raise SupSupError(f"there is no folder {full.parent}; make it first")
    if len(os.fsencode(full.name)) > _LONGEST_NAME:
        raise SupSupError(f"the name {printable(full.name, 40)} is too long for a file; use a shorter one")
    given = Path(path)
    if hasattr(os, "geteuid") and given.is_symlink() and given.lstat().st_uid not in (0, os.geteuid()):
        raise SupSupError(f"{given} is another user's link to {full}, so it is not written through; name {full} itself")
    return full


def beside(path: Path, ending: str) -> Path:
    """The file beside a model file whose name goes on with `ending`."""
    return path.with_name(path.name + ending)


def new_part(target: Path) -> Path:
    """The path of a file that is made beside `target` and takes its place when it is whole."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{_PART}")


def remove_parts(target: Path) -> None:
    """Remove what saves to `target` left behind that were killed; only for who holds the writer's lock."""
    ours = re.compile(re.escape(f".{target.name}.") + "[0-9a-f]{16}" + re.escape(_PART) + "(-journal)?")
    for name in os.listdir(target.parent):
        if ours.fullmatch(name):
            with suppress(OSError):
                (target.parent / name).unlink()
