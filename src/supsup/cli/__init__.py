"""The command line: arguments in, one call out. One module for each command or group of commands."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer import Option

import supsup
from supsup.cli.commands import Commands
from supsup.cli.console import INTERRUPTED, complain
from supsup.runtime.errors import SupSupError
from supsup.runtime.process import tune_process

_MISTYPED: Any = typer.BadParameter.__mro__[1]  # what typer calls a usage error, wherever it keeps its parser
_OF_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    """Continual learning with thousands of tasks on one frozen network (Supermasks in Superposition)."""
    if show:
        typer.echo(f"supsup {supsup.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what a user can put right is said in one line, with exit code 2."""
    tune_process()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # neither missing nor replaced
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know every character
    try:
        sys.exit(app(standalone_mode=False))
    except _MISTYPED as error:
        sys.exit(_mistyped(error))
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except (SupSupError, *_OF_PATHS) as error:
        complain(error)
        sys.exit(2)
    except OSError as error:
        complain(error)
        sys.exit(1)


def _mistyped(error: Any) -> int:
    """One line on arguments that a command does not take; where there are none the help has been shown."""
    if type(error).__name__ != "NoArgsIsHelpError":
        command = "supsup" if error.ctx is None else error.ctx.command_path
        complain(SupSupError(f"{error.format_message().rstrip('.')}; `{command} --help` says what can be given"))
    return 2
