"""Commands by name, each imported when it is asked for: a word of help must not wait for torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Place(NamedTuple):
    """Where a command is: a function, or a `typer.Typer` with commands of its own; and its line in the list of all."""

    module: str
    name: str
    help: str


COMMANDS = {
    "learn": Place(
        "supsup.cli.learn",
        "learn",
        "Learn tasks from your own data into a model file; what is in it already stays as it is.",
    ),
    "predict": Place(
        "supsup.cli.predict",
        "predict",
        "Say of each image or row what it is: its class by the name you gave it, its task, and how sure both are.",
    ),
    "evaluate": Place(
        "supsup.cli.predict",
        "evaluate",
        "Say how often a model is right on data with labels: with the task given, and with the task to be found.",
    ),
    "demo": Place(
        "supsup_paper.commands.demo",
        "demo",
        "Learn a stream of tasks on one frozen network, then answer with the task given and with the task unknown.",
    ),
    "reproduce": Place(
        "supsup_paper.commands.reproduce",
        "reproduce",
        "Run tables and figures of the paper, and print ours beside the published ones.",
    ),
    "report": Place(
        "supsup_paper.commands.report",
        "report",
        "Set the results beside the paper's numbers: one HTML page that needs no network, and Markdown tables.",
    ),
    "tasks": Place("supsup.cli.model", "tasks", "List the tasks of a model file."),
    "info": Place(
        "supsup.cli.model",
        "info",
        "Say what a model file holds, and how its size compares with the entropy bound and the paper's own count.",
    ),
    "verify": Place(
        "supsup.cli.model", "verify", "Check every task of a model file; the exit code is 1 if anything is damaged."
    ),
    "repair": Place(
        "supsup.cli.model",
        "repair",
        "Write every intact task of a damaged file to a new one; the exit code is 1 if a task is or may be lost.",
    ),
    "forget": Place(
        "supsup.cli.model",
        "forget",
        "Remove tasks for good: their bytes are overwritten; every other answer stays as it is.",
    ),
    "compact": Place(
        "supsup.cli.model",
        "compact",
        "Make a model file as small as it can be: no space of forgotten tasks, no mask larger than it must be.",
    ),
    "export": Place(
        "supsup.cli.export", "export", "Write subnetworks as ordinary networks, each checked by running it."
    ),
    "card": Place(
        "supsup.cli.card",
        "card",
        "Write a model card: tasks, classes, accuracies, data, recipe and size, as the file has them.",
    ),
    "serve": Place(
        "supsup.cli.serve",
        "serve",
        "Serve a model over HTTP: answers, tasks to learn and forget, and a page to try it on at http://127.0.0.1:8000.",
    ),
    "bench": Place("supsup_paper.commands.bench", "app", "Measure speed and memory on this machine."),
}


class Commands(TyperGroup):
    """All commands, in the order of the table; only the one that is called is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: Later(name, place) for name, place in COMMANDS.items()}


class Later(TyperCommand):
    """Stands for a command in the list of all."""

    def __init__(self, name: str, place: Place) -> None:
        super().__init__(name, help=place.help, rich_markup_mode=None)
        self._place = place

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The arguments go to the command itself."""
        return loaded(self._place).make_context(info_name, args, parent=parent, **extra)


def loaded(place: Place) -> Any:
    """The command itself."""
    found = getattr(import_module(place.module), place.name)
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command()(found)
    return get_command(alone)
