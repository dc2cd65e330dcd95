"""The command line: arguments in, one call out. One module for each command or group of commands."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer
from typer import Option

import supsup
from supsup.cli.commands import Commands
from supsup.cli.talking import complain
from supsup.errors import Damaged, SupSupError

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    """Continual learning with thousands of tasks on one frozen network (Supermasks in Superposition)."""
    if show:
        typer.echo(f"supsup {supsup.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what a user can put right is said in one line, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # neither missing nor replaced
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know every character
    try:
        app()
    except (SupSupError, OSError) as error:
        complain(error)
        sys.exit(2 if isinstance(error, SupSupError) and not isinstance(error, Damaged) else 1)
