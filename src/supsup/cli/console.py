"""How commands talk to whoever typed them: text from elsewhere made safe, questions, and a word on an interruption."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer import Option

from supsup.runtime.errors import Damaged, SupSupError, printable

INTERRUPTED = 130  # what a shell calls a program that Ctrl-C has ended
_MOST_OF_AN_ERROR = 2000  # characters of a line

Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")]


def escape_for_terminal(text: object, most: int = 200) -> str:
    """Text from a file or a user for a terminal: no control characters, and no markup of its own."""
    return escape(printable(str(text), most))


def say(text: str, *, to_stderr: bool = False) -> None:
    """One line, as it is."""
    Console(stderr=to_stderr).print(text, highlight=False, soft_wrap=True)


def complain(error: Exception) -> None:
    """An error on stderr, and how to rescue what a damaged file still holds."""
    message = str(error)
    if isinstance(error, Damaged) and "supsup repair" not in message and "nothing can be rescued" not in message:
        message += "; `supsup repair FILE` writes the undamaged tasks to a new file"
    lines = (escape_for_terminal(line, _MOST_OF_AN_ERROR) for line in message.split("\n"))
    say("[bold red]error[/] " + "\n".join(lines), to_stderr=True)


def agreed(question: str, yes: bool) -> None:
    """Go on only if the user agrees to what cannot be undone; with --yes nobody is asked.

    Where nobody can be asked, because stdin is no terminal, it is an error: a script has to say --yes.
    """
    if yes:
        return
    if not on_a_terminal():
        raise SupSupError(f"{question} This cannot be undone, and there is no terminal to ask on; if so, add --yes")
    if not typer.confirm(f"{printable(question, _MOST_OF_AN_ERROR)} This cannot be undone."):
        say("nothing was changed")
        raise typer.Exit(1)


@contextmanager
def interruptible(outcome: str | Callable[[], str]) -> Iterator[None]:
    """What Ctrl-C leaves behind, and how to go on, is said before the command ends."""
    try:
        yield
    except KeyboardInterrupt:
        said = outcome if isinstance(outcome, str) else outcome()
        say(f"interrupted: {escape_for_terminal(said, _MOST_OF_AN_ERROR)}", to_stderr=True)
        raise typer.Exit(INTERRUPTED) from None


def on_a_terminal() -> bool:
    """Whether somebody is there to answer a question."""
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError, OSError):
        return False
