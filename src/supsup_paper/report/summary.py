"""Results read back and set beside what was published: each row's mean, deviation over seeds, and verdict.

Pure functions of the catalogue and a folder; the HTML page and the Markdown tables only show what they return.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supsup_paper.catalogue.entries import GROUPS
from supsup_paper.catalogue.rows import Entry, Row, at_scale, repeated_rows
from supsup_paper.catalogue.settings import settings_of
from supsup_paper.report.verdicts import STATUSES, OverSeeds, over_seeds, status_of

PAPERS_COUNT, STATISTICS, BYTES, AVERAGE = "paper's count", "statistics", "bytes", "avg"

WALL_TIME = "wall-time.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Result:
    """One file of results/: a row's figures for one seed; `at_once` trainings shared its seconds of learning."""

    file: str
    entry: str
    row: str
    seed: int
    scale: str
    settings: Mapping[str, Any]
    at_once: int
    figures: Mapping[str, Mapping[str, float]]
    bytes: Mapping[str, float]
    seconds: Mapping[str, float]
    trace: Mapping[str, Any]
    note: str
    made_by: Mapping[str, Any]


@dataclass(frozen=True)
class RowSummary:
    """A row of the catalogue with what was measured for it, over all its seeds.

    repeats  "entry/row" where the same measurement is counted; "" where it is counted here
    """

    row: Row
    status: str
    results: tuple[Result, ...] = ()
    figures: Mapping[str, Mapping[str, OverSeeds]] = field(default_factory=dict)
    repeats: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is known about why the row differs, each remark once."""
        return tuple(dict.fromkeys(result.note for result in self.results if result.note))

    def mean_of(self, kind: str, name: str) -> float | None:
        """Mean over seeds of one of the "seconds" or "bytes", None where no file has it."""
        values = [getattr(result, kind)[name] for result in self.results if name in getattr(result, kind)]
        return sum(values) / len(values) if values else None

    @property
    def own_bytes(self) -> float | None:
        """What ours stores, mean over seeds: everything but the paper's count; None where masks were not measured."""
        counted = [r.bytes for r in self.results if not r.bytes.keys() <= {PAPERS_COUNT, STATISTICS}]
        sums = [sum(size for name, size in sizes.items() if name != PAPERS_COUNT) for sizes in counted]
        return sum(sums) / len(sums) if sums else None

    def made_with(self, name: str) -> tuple[str, ...]:
        """The different devices, commits, dates or commands of its files."""
        return tuple(dict.fromkeys(str(r.made_by[name]) for r in self.results if r.made_by.get(name)))


@dataclass(frozen=True)
class EntrySummary:
    """A table or figure of the paper with all its rows."""

    entry: Entry
    rows: tuple[RowSummary, ...]

    @property
    def has_results(self) -> bool:
        return any(row.results for row in self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each status; those that repeat others are not counted."""
        statuses = [row.status for row in self.rows if not row.repeats]
        return {status: statuses.count(status) for status in STATUSES}

    @property
    def repeats(self) -> int:
        """How many rows repeat the measurement of another."""
        return sum(bool(row.repeats) for row in self.rows)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of all figures: those published first, in the catalogue's order, then those only measured."""
        published = [name for row in self.rows for name in row.row.published]
        measured = [name for row in self.rows for name in row.figures]
        return tuple(dict.fromkeys([*published, *measured]))

    def positions(self, figure: str) -> tuple[str, ...]:
        """The positions on the axis at which the figure is known: names as they come, numbers in order, then "avg"."""
        known = dict.fromkeys(
            position
            for row in self.rows
            for position in (*row.row.published.get(figure, {}), *row.figures.get(figure, {}))
        )  # fmt: skip
        numbers = sorted((position for position in known if as_number(position) is not None), key=float)
        names = [position for position in known if as_number(position) is None and position != AVERAGE]
        return (*names, *numbers, *(position for position in known if position == AVERAGE))


@dataclass(frozen=True)
class WallTime:
    """What the first seed of all rows of the MNIST half took, and on what."""

    seconds: float
    device: str


@dataclass(frozen=True)
class Summary:
    """Everything the page says."""

    entries: tuple[EntrySummary, ...]
    damaged: tuple[str, ...] = ()
    mnist_time: WallTime | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each status, each measurement counted once."""
        return {status: sum(entry.counts[status] for entry in self.entries) for status in STATUSES}

    @property
    def repeats(self) -> int:
        """How many rows repeat the measurement of another."""
        return sum(entry.repeats for entry in self.entries)


def summarise(entries: Mapping[str, Entry], folder: Path) -> Summary:
    """The catalogue beside the results in a folder; files that cannot be used are named in `damaged`."""
    results, damaged = read_results(entries, folder)
    mnist_time, more_damaged = read_wall_time(entries, folder)
    by_row: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_row.setdefault((result.entry, result.row), []).append(result)
    repeats = repeated_rows(entries)

    def summary_of(entry: Entry) -> EntrySummary:
        rows = [summarise_row(row, by_row.get((entry.name, row.name), [])) for row in entry.rows]
        return EntrySummary(
            entry, tuple(replace(row, repeats=repeats.get(f"{entry.name}/{row.row.name}", "")) for row in rows)
        )

    found = tuple(summary_of(entry) for entry in entries.values())
    return Summary(found, (*damaged, *more_damaged), mnist_time)


def read_results(entries: Mapping[str, Entry], folder: Path) -> tuple[list[Result], list[str]]:
    """All files ENTRY/ROW-seedN.json of the catalogue, and a line on each that cannot be used."""
    results, damaged = [], []
    for name, entry in entries.items():
        rows = {row.name: row for row in entry.rows}
        found = [(_seed(path), path) for path in (folder / name).glob("*-seed*.json")]
        for _, path in sorted((seed, path) for seed, path in found if seed is not None):
            shown = path.relative_to(folder).as_posix()
            try:
                result = read_result(path, shown)
            except _UNREADABLE as error:
                damaged.append(
                    f"{shown}: damaged ({_reason(error)}); delete it and run `supsup reproduce {name}` again"
                )
                continue
            if (result.entry, result.row, result.seed) != (name, path.stem.rpartition("-seed")[0], _seed(path)):
                damaged.append(
                    f"{shown}: says it is {result.entry}/{result.row}, seed {result.seed}; rename or delete it"
                )
            elif result.row not in rows:
                damaged.append(f"{shown}: {name} has no row {result.row!r}; delete it if the row was renamed")
            elif result.settings != settings_of(at_scale(rows[result.row], result.scale)):
                damaged.append(f"{shown}: made with other settings or defaults than there are now; run it again")
            else:
                results.append(result)
    return results, damaged


def read_result(path: Path, shown: str) -> Result:
    """One file; anything missing or of the wrong kind is an exception."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return Result(
        file=shown,
        entry=str(record["entry"]),
        row=str(record["row"]),
        seed=int(record["seed"]),
        scale=str(record["scale"]),
        settings=dict(record["settings"]),
        at_once=int(record.get("trainings at once", 1)),
        figures={str(figure): _numbers(positions) for figure, positions in record["figures"].items()},
        bytes=_numbers(record.get("bytes", {})),
        seconds=_numbers(record.get("seconds", {})),
        trace=dict(record.get("trace") or {}),
        note=str(record.get("note") or ""),
        made_by=dict(record["made by"]),
    )


def summarise_row(row: Row, results: Iterable[Result]) -> RowSummary:
    """Means over seeds and a verdict; runs at full scale are never mixed with quick ones.

    Published bytes are held against ours by the paper's way of counting.
    """
    found = tuple(results)
    full = tuple(result for result in found if result.scale == "full")
    used = full or found
    figures: dict[str, dict[str, list[float]]] = {}
    for result in used:
        for figure, positions in result.figures.items():
            for position, value in positions.items():
                figures.setdefault(figure, {}).setdefault(position, []).append(value)
        if BYTES in row.published and BYTES not in result.figures and PAPERS_COUNT in result.bytes:
            figures.setdefault(BYTES, {}).setdefault("", []).append(result.bytes[PAPERS_COUNT])
    means = {
        figure: {position: over_seeds(values) for position, values in positions.items()}
        for figure, positions in figures.items()
    }
    return RowSummary(row, status_of(row, means, bool(used), bool(full)), used, means)


def read_wall_time(entries: Mapping[str, Entry], folder: Path) -> tuple[WallTime | None, list[str]]:
    """The time of the calls that made the MNIST half, None as long as some row is in none of them; what is damaged."""
    path = folder / WALL_TIME
    mnist = [entry for name, entry in entries.items() if name in GROUPS["all-mnist"]]
    first = {f"{entry.name}/{row.name}-seed0" for entry in mnist for row in entry.rows}
    if not path.exists():
        return None, []
    try:
        calls = [call for call in json.loads(path.read_text(encoding="utf-8"))["calls"] if call["scale"] == "full"]
        part = [call for call in calls if first.intersection(call["written"])]
        if not first or not first <= {file for call in part for file in call["written"]}:
            return None, []
        devices = dict.fromkeys(str(call["made by"]["device"]) for call in part)
        return WallTime(elapsed(part), " and ".join(devices)), []
    except _UNREADABLE as error:
        return None, [f"{WALL_TIME}: damaged ({_reason(error)}); delete it, and the total time is left out"]


def elapsed(calls: Iterable[Mapping[str, Any]]) -> float:
    """Seconds during which at least one of the calls ran: those side by side are counted once."""
    seconds, end = 0.0, -math.inf
    for call in sorted(calls, key=lambda call: str(call["began"])):
        begin = datetime.datetime.fromisoformat(call["began"]).timestamp()
        stop = begin + float(call["seconds"])
        seconds += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return seconds


def as_number(position: str) -> float | None:
    """A position on an axis as a number, None where it is a name."""
    try:
        return float(position)
    except ValueError:
        return None


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {str(name): float(value) for name, value in record.items()}
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"{name or 'a figure'} is {value}")
    return numbers


def _seed(path: Path) -> int | None:
    found = re.fullmatch(r".+-seed(\d+)", path.stem)
    return int(found[1]) if found else None


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
