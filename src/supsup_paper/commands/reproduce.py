"""`supsup reproduce`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from supsup.cli.console import escape_for_terminal, interruptible, print_table, say
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue.entries import ENTRIES, GROUPS, entries_named, only_rows
from supsup_paper.catalogue.rows import SCALES
from supsup_paper.records import add_bytes
from supsup_paper.report.grids import headline
from supsup_paper.report.summary import summarise
from supsup_paper.report.terminal import comparison_table, entries_table
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.reproduction import reproduce_entries


def reproduce(
    names: Annotated[
        list[str] | None, Argument(help="Tables and figures (see --list), or all-mnist or all.", metavar="NAME…")
    ] = None,
    show_list: Annotated[
        bool, Option("--list", help="List tables and figures with the verdicts so far, and exit.")
    ] = False,
    row: Annotated[list[str] | None, Option(help="Run only this row; repeat for several.")] = None,
    scale: Annotated[
        str, Option(help="quick: fewer tasks and steps, minutes on 2 cores. full: as in the paper.")
    ] = "quick",
    seeds: Annotated[
        int | None, Option(help="Seeds 0 … N−1.", show_default="1; for hopfield 20, and 2 at quick scale")
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Folder for the results; quick runs go to its subfolder quick/.", show_default="results, or runs"),
    ] = None,
    data_dir: Annotated[
        Path | None, Option(envvar="SUPSUP_DATA", help="Folder with data sets (holding mnist/, cifar100/, imagenet/).")
    ] = None,
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    cluster: Annotated[
        str | None,
        Option(
            metavar="local:N|ADDRESS",
            help="Train independent tasks in N processes, or on the Ray cluster at ADDRESS.",
        ),
    ] = None,
    count_bytes: Annotated[
        bool, Option("--bytes", help="Train nothing; measure the bytes of the saved models.")
    ] = False,
) -> None:
    """Run tables and figures of the paper.

    Prints our figures beside the published ones. Every row and seed is one JSON file, written when it is finished.
    Run the same command again to resume: files with the same settings are not made again. Rows with the same training
    share it, also across NAMEs.
    """
    if show_list:
        found = summarise(ENTRIES, out or Path("results"))
        print_table(entries_table(found, GROUPS))
        Console().print(headline(found), highlight=False)
        return
    if not names:
        raise SupSupError(f"say what to reproduce: {', '.join([*ENTRIES, *GROUPS])}")
    if scale not in SCALES:
        raise SupSupError(f"unknown scale {scale!r}; use {' or '.join(SCALES)}")
    if data_dir is not None and not data_dir.is_dir():
        raise SupSupError(f"{data_dir} does not exist; --data-dir needs a folder that holds mnist/, cifar100/ …")
    whole = entries_named(names)
    entries = only_rows(whole, row) if row else whole
    folder = (out or Path("results")) if scale == "full" else (out or Path("runs")) / "quick"
    if count_bytes:
        for entry in entries:
            for path in add_bytes(folder, entry.name):
                say(escape_for_terminal(path))
        return
    environment = Environment(resolve(device), data_dir, cluster)
    with interruptible("finished rows are saved; run the same command again to resume"):
        result = reproduce_entries(
            entries, folder, scale, seeds, environment, lambda line: say(escape_for_terminal(line, 2000))
        )
    found = summarise({entry.name: entry for entry in whole}, folder)
    for line in found.damaged:
        say(escape_for_terminal(line, 2000))
    asked = {entry.name: {row.name for row in entry.rows} for entry in entries}
    for summary in found.entries:
        rows = tuple(found_row for found_row in summary.rows if found_row.row.name in asked.get(summary.entry.name, ()))
        if rows:
            print_table(comparison_table(replace(summary, rows=rows), scale))
    if scale == "quick":
        say("Quick scale: fewer tasks and steps than in the paper, so the figures differ from the paper's.")
    say(
        f"{result.written} rows written to {escape_for_terminal(folder)}, "
        f"{result.skipped} were there, {result.seconds:.0f} s."
    )
    if result.failed:
        raise typer.Exit(1)
