"""Terminal output and questions: escaped text, errors, tables, confirmations, and messages on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from supsup import SupSupError
from supsup.runtime.errors import Damaged, printable

INTERRUPTED = 130  # the shell's exit code after Ctrl-C
LONG_LINE = 2000  # characters of an error or a list

File = Annotated[Path, Argument(help="The model file.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation; required when not interactive.")]


def escape_for_terminal(text: object, most: int = 200) -> str:
    """Make text from a file or a user safe to print: no control characters, no markup, at most so many characters."""
    return escape(printable(str(text), most))


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print one line."""
    Console(stderr=to_stderr).print(text, highlight=False, soft_wrap=True)


def print_error(error: Exception) -> None:
    """Print an error to stderr; for a damaged file, with the command that rescues its intact tasks."""
    message = str(error)
    if isinstance(error, Damaged) and "supsup repair" not in message and "nothing can be rescued" not in message:
        message += "; `supsup repair FILE` writes the undamaged tasks to a new file"
    lines = (escape_for_terminal(line, LONG_LINE) for line in message.split("\n"))
    say("[bold red]error[/] " + "\n".join(lines), to_stderr=True)


def confirm(question: str, yes: bool) -> None:
    """Continue only if the user agrees, or passed --yes. An error when not interactive: a script must pass --yes."""
    if yes:
        return
    if not is_interactive():
        raise SupSupError(f"{question} This cannot be undone. Not interactive: add --yes to confirm")
    if not typer.confirm(f"{printable(question, LONG_LINE)} This cannot be undone."):
        say("nothing was changed")
        raise typer.Exit(1)


@contextmanager
def interruptible(outcome: str | Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, print what was kept and how to continue, then exit."""
    try:
        yield
    except KeyboardInterrupt:
        text = outcome if isinstance(outcome, str) else outcome()
        say(f"interrupted: {escape_for_terminal(text, LONG_LINE)}", to_stderr=True)
        raise typer.Exit(INTERRUPTED) from None


def is_interactive() -> bool:
    """Whether stdin is a terminal, so that a user can answer a question."""
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError, OSError):
        return False


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal. Lines break between words only; no word is cut.

    If the columns do not fit side by side, each row is printed as a few lines.
    """
    console = Console(emoji=False)
    if table.title:
        _print_wrapped(_plain(table.title), console, "italic")
        table.title = None
    widths = column_widths(table, console) or column_widths(table, console, wrap_all=True)
    if widths is None:
        _print_rows(table, console)
        return
    for column, width in zip(table.columns, widths):
        column.width, column.no_wrap = width, False
    console.print(table)


def column_widths(table: Table, console: Console, *, wrap_all: bool = False) -> list[int] | None:
    """The width of each column, at least that of its longest word; the widest columns wrap first.

    Returns None if they do not fit. `wrap_all` wraps columns marked `no_wrap` as well.
    """
    wide = console.options.update(max_width=1 << 16, width=1 << 16)
    columns = [[*([column.header] if table.show_header else []), *column.cells] for column in table.columns]
    measured = [[Measurement.get(console, wide, cell) for cell in cells] for cells in columns]
    most = [max(cell.maximum for cell in column) for column in measured]
    words = [max(cell.minimum for cell in column) for column in measured]
    least = [
        line if column.no_wrap and not wrap_all else word for column, word, line in zip(table.columns, words, most)
    ]
    room = console.width - (Measurement.get(console, wide, table).maximum - sum(most))
    if sum(least) > room:
        return None
    widths = least
    for level in range(max(most, default=0) + 1):
        wider = [min(line, max(word, level)) for word, line in zip(least, most)]
        if sum(wider) > room:
            break
        widths = wider
    return widths


def _print_rows(table: Table, console: Console) -> None:
    """Each row: its first cell on a line, the others below it with their headings."""
    headings = [_plain(column.header) for column in table.columns]
    for first, *others in zip(*(column.cells for column in table.columns)):
        if _plain(first):
            _print_wrapped(_plain(first), console, "bold")
        cells = [" ".join(filter(None, pair)) for pair in zip(headings[1:], map(_plain, others)) if pair[1]]
        if cells:
            _print_wrapped(" · ".join(cells), console, indent=2)


def _print_wrapped(text: str, console: Console, style: str = "", indent: int = 0) -> None:
    """Break lines between words; a word longer than a line runs over."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and cell_len(longer) > console.width - indent:
            lines.append(word)
        else:
            lines[-1] = longer
    for line in lines:
        console.print(Text(" " * indent + line, style=style), soft_wrap=True, highlight=False)


def _plain(cell: object) -> str:
    return " ".join(Text.from_markup(str(cell), emoji=False).plain.split())
