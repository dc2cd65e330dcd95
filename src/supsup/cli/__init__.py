"""The command line: one module for each command or group of commands."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer import Option

import supsup
from supsup import SupSupError
from supsup.cli.commands import LazyGroup
from supsup.cli.console import INTERRUPTED, print_error
from supsup.runtime.process import tune_process

_UsageError: Any = typer.BadParameter.__mro__[1]  # typer may bundle its own copy of click
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, Option("--version", help="Print the version and exit.")] = False) -> None:
    """Continual learning with thousands of tasks on one frozen network (Supermasks in Superposition)."""
    if show:
        typer.echo(f"supsup {supsup.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. Errors that a user can fix are printed in one line; the exit code is then 2."""
    tune_process()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # neither missing nor replaced
            stream.reconfigure(errors="backslashreplace")  # for terminals that cannot print every character
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
        else:
            command = "supsup" if error.ctx is None else error.ctx.command_path
            print_error(SupSupError(f"{error.format_message().rstrip('.')}; see `{command} --help`"))
        sys.exit(2)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except (SupSupError, *_PATH_ERRORS) as error:
        print_error(error)
        sys.exit(2)
    except OSError as error:
        print_error(error)
        sys.exit(1)
