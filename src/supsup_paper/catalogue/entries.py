"""Every table and figure of the paper by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue import images as image_entries
from supsup_paper.catalogue import mnist as mnist_entries
from supsup_paper.catalogue.rows import Entry

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*mnist_entries.ENTRIES, *image_entries.ENTRIES)}
GROUPS: dict[str, tuple[str, ...]] = {
    "all-mnist": tuple(entry.name for entry in mnist_entries.ENTRIES),
    "all": tuple(ENTRIES),
}


def entries_named(names: Sequence[str]) -> list[Entry]:
    """The entries of these names, each once; a group stands for several."""
    unknown = [name for name in names if name not in ENTRIES and name not in GROUPS]
    if unknown:
        raise SupSupError(
            f"the catalogue has no {', '.join(map(repr, unknown))}; it has {', '.join(ENTRIES)}, "
            f"and the groups {', '.join(GROUPS)}"
        )
    chosen = [entry for name in names for entry in GROUPS.get(name, (name,))]
    return [ENTRIES[name] for name in dict.fromkeys(chosen)]


def only_rows(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """The entries with the rows of these names alone; those that have none of them are left out."""
    known = {row.name: None for entry in entries for row in entry.rows}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SupSupError(f"there is no row {', '.join(map(repr, unknown))}; the rows are {', '.join(known)}")
    chosen = [replace(entry, rows=tuple(row for row in entry.rows if row.name in names)) for entry in entries]
    return [entry for entry in chosen if entry.rows]
