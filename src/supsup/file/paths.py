"""Paths of a model file and of the files beside it: checked, in full, never written through another user's link."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from supsup.runtime.errors import SupSupError, printable

AnyPath = str | os.PathLike[str]
MASK_FOLDER = "-masks"  # suffix of the folder with decoded masks (`task_blocks.py`)
_LONGEST_NAME = 200  # bytes; the names of journal, lock and partial file are a little longer
_PART = ".supsup-part"  # suffix of a file that is not complete yet
_BLOCK_FILE = re.compile(r"\d{6,}\.block(\..*)?")


def full_path(path: AnyPath) -> Path:
    """The absolute path, links followed; an error if no file can have it."""
    try:
        full = Path(path).resolve()
        leads_back = full.is_symlink()
        full.exists()
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # NUL, too long, a loop of links
        raise SupSupError(f"{printable(repr(path))} is not a path that can be used ({printable(error)})") from error
    if leads_back:
        raise SupSupError(f"{printable(full)} is a link that leads back to itself; give the path of a model file")
    return full


def existing_file(path: AnyPath) -> Path:
    """The full path of an ordinary file that is not empty, or an error."""
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


def writable_path(path: AnyPath) -> Path:
    """The full path of a file that may be created or replaced; follows the user's own links, not those of others."""
    full = full_path(path)
    if not full.parent.is_dir():
        raise SupSupError(f"there is no folder {full.parent}; create it first")
    if len(os.fsencode(full.name)) > _LONGEST_NAME:
        raise SupSupError(f"the name {printable(full.name, 40)} is too long for a file; use a shorter one")
    given = Path(path)
    if given.is_symlink() and given.lstat().st_uid not in (0, os.geteuid()):
        raise SupSupError(f"{given} is another user's link to {full}, so it is not written through; name {full} itself")
    return full


def beside(path: Path, suffix: str) -> Path:
    """The file beside a model file: its name with a suffix."""
    return path.with_name(path.name + suffix)


def new_part(target: Path) -> Path:
    """The path of a partial file beside `target`, which replaces it once it is complete."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{_PART}")


def remove_parts(target: Path) -> None:
    """Remove the partial files of saves that were killed; the caller must hold the writer's lock."""
    ours = re.compile(re.escape(f".{target.name}.") + "[0-9a-f]{16}" + re.escape(_PART) + "(-journal)?")
    for name in os.listdir(target.parent):
        if ours.fullmatch(name):
            with suppress(OSError):
                (target.parent / name).unlink()


def remove_mask_folder(path: Path) -> None:
    """Remove the decoded masks beside a model file: before a task is removed, so that none of its bits stay."""
    folder = beside(path, MASK_FOLDER)
    if folder.is_symlink() or not folder.is_dir():
        return
    for each in folder.iterdir():
        if _BLOCK_FILE.fullmatch(each.name.removeprefix(".")):
            each.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
