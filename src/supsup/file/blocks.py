"""The blocks of masks beside a model file, for whoever changes that file: they must not outlive a task."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from supsup.file.paths import beside

ENDING = "-masks"  # of the folder's name, after that of the model file
_NAME = re.compile(r"\d{6,}\.block(\..*)?")


def discard(path: Path) -> None:
    """Remove the blocks beside a model file: before a task goes, so that none of its bits stay."""
    folder = beside(path, ENDING)
    if folder.is_symlink() or not folder.is_dir():
        return
    for each in folder.iterdir():
        if _NAME.fullmatch(each.name.removeprefix(".")):
            each.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
