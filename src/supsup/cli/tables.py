"""Tables as wide as the terminal in which no word and no name is cut: lines break between words only.

Where columns as wide as their longest words have no room beside each other, each row is a few lines of its own.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


def show(table: Table) -> None:
    """Print a table; its title stands above it, as wide as it is."""
    console = Console(emoji=False)
    if table.title:
        _wrapped(_plain(table.title), console, "italic")
        table.title = None
    widths = _widths(table, console) or _widths(table, console, wrapped=True)
    if widths is None:
        _show_rows(table, console)
        return
    for column, width in zip(table.columns, widths):
        column.width, column.no_wrap = width, False
    console.print(table)


def fits(table: Table) -> bool:
    """Whether its columns have room beside each other, those that should not wrap as wide as they are."""
    return _widths(table, Console(emoji=False)) is not None


def _widths(table: Table, console: Console, *, wrapped: bool = False) -> list[int] | None:
    """How wide each column is: no narrower than its longest word, the widest wrapped first; None without room.

    wrapped  columns that should not wrap do too
    """
    wide = console.options.update(max_width=1 << 16, width=1 << 16)
    columns = [[*([column.header] if table.show_header else []), *column.cells] for column in table.columns]
    measured = [[Measurement.get(console, wide, cell) for cell in cells] for cells in columns]
    most = [max(cell.maximum for cell in column) for column in measured]
    words = [max(cell.minimum for cell in column) for column in measured]
    least = [line if column.no_wrap and not wrapped else word for column, word, line in zip(table.columns, words, most)]
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


def _show_rows(table: Table, console: Console) -> None:
    """The first cell of a row on a line, the others below it, each after its heading."""
    headings = [_plain(column.header) for column in table.columns]
    for first, *others in zip(*(column.cells for column in table.columns)):
        if _plain(first):
            _wrapped(_plain(first), console, "bold")
        replaced = [" ".join(filter(None, pair)) for pair in zip(headings[1:], map(_plain, others)) if pair[1]]
        if replaced:
            _wrapped(" · ".join(replaced), console, indent=2)


def _wrapped(text: str, console: Console, style: str = "", indent: int = 0) -> None:
    """Lines that break between words; a word that is longer than a line goes on beyond it."""
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
