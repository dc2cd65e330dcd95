"""Text files that are whole or not there: pages and plots."""

from __future__ import annotations

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """A text file, written beside its name first and then put in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
