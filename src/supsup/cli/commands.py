"""The commands by name. Each is imported only when it is called: `supsup --help` does not wait for torch.

`demo`, `reproduce`, `report` and `bench` are in `supsup_paper`, a package that ships with this one but may be absent.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

from supsup import SupSupError


class CommandEntry(NamedTuple):
    """Where a command is defined (a function, or a `typer.Typer` with subcommands), and its line in the overview."""

    module: str
    name: str
    help: str


_PAPER = "supsup_paper"
_TABLE = (
    ("learn", "supsup.cli.learn", "learn_command", "Learn tasks from your data into a model file."),
    ("predict", "supsup.cli.predict", "predict_command", "Classify each image or row; the task is inferred."),
    ("evaluate", "supsup.cli.predict", "evaluate_command", "Measure accuracy on labelled data."),
    ("demo", f"{_PAPER}.commands.demo", "demo", "Learn a stream of tasks on one frozen network and test it."),
    ("reproduce", f"{_PAPER}.commands.reproduce", "reproduce", "Run tables and figures of the paper."),
    ("report", f"{_PAPER}.commands.report", "write_report", "Compare the results with the paper's numbers."),
    ("tasks", "supsup.cli.inspect", "tasks_command", "List the tasks of a model file."),
    ("info", "supsup.cli.inspect", "info_command", "Show the contents and the size of a model file."),
    ("verify", "supsup.cli.maintenance", "verify_command", "Check every task of a model file for damage."),
    ("repair", "supsup.cli.maintenance", "repair_command", "Copy the intact tasks of a damaged file to a new file."),
    ("forget", "supsup.cli.maintenance", "forget_command", "Delete tasks permanently."),
    ("compact", "supsup.cli.maintenance", "compact_command", "Make a model file as small as possible."),
    ("export", "supsup.cli.maintenance", "export_command", "Export tasks as ordinary networks."),
    ("card", "supsup.cli.inspect", "card_command", "Write a model card in Markdown."),
    ("serve", "supsup.cli.serve", "serve_command", "Serve a model over HTTP, with a web page."),
    ("bench", f"{_PAPER}.commands.bench", "app", "Measure speed and memory on this machine."),
)
COMMANDS = {command: CommandEntry(*entry) for command, *entry in _TABLE}


class LazyGroup(TyperGroup):
    """All commands in the order of the table, with their lines in the overview; only one that is called is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_markup_mode=None) for name, entry in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command itself instead of its line."""
        name, listed, others = super().resolve_command(ctx, args)
        return name, listed and load_command(COMMANDS[str(name)]), others


class PlainCommand(TyperCommand):
    """A command whose help calls arguments MODEL, not {model}."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.metavar = parameter.metavar or str(parameter.name).upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """[OPTIONS] and the arguments."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: Any) -> str:
        """The help text, without characters that the terminal cannot show."""
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        return str(super().get_help(ctx)).encode(encoding, "backslashreplace").decode(encoding)


def load_command(entry: CommandEntry) -> Any:
    """Import a command."""
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != _PAPER:
            raise
        raise SupSupError(
            f"this command needs the package {_PAPER}, which is missing or incomplete; reinstall supsup, or put "
            f"the folder that contains {_PAPER} on PYTHONPATH"
        ) from error
    found = getattr(module, entry.name)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = None
        return get_command(found)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(cls=PlainCommand)(found)
    return get_command(single)
