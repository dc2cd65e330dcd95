"""The command line: arguments in, one call out. One module for each command or group of commands."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer
from typer import Option

import supsup
from supsup.cli import bench, model
from supsup.cli.demo import demo
from supsup.cli.report import report
from supsup.cli.reproduce import reproduce
from supsup.cli.serve import serve
from supsup.cli.talking import complain
from supsup.errors import SupSupError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(reproduce)
app.command()(report)
app.command()(serve)
for command in (model.tasks, model.info, model.verify, model.repair, model.forget, model.compact, model.export):
    app.command()(command)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    """Continual learning with thousands of tasks on one frozen network (Supermasks in Superposition)."""
    if show:
        typer.echo(f"supsup {supsup.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what a user can put right is said in one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # neither missing nor replaced
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know every character
    try:
        app()
    except (SupSupError, OSError) as error:
        complain(error)
        sys.exit(1)
