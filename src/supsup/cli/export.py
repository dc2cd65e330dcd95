"""`supsup export`: one task or all tasks as ordinary networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from typer import Argument, Option

import supsup
from supsup import SupSupError
from supsup.cli.console import File, Yes, confirm, escape_for_terminal, interruptible, say
from supsup.cli.networks import UserNet, user_network

_READABLE = " ,;()[]+&='"  # characters of file names beside letters, digits and _.-~


def export_command(
    file: File,
    task: Annotated[str, Argument(metavar="[TASK]", help="The task to export; omit it with --all.")],
    out: Annotated[
        Path | None, Argument(metavar="OUT", help="out.safetensors or out.onnx; a folder with --all.")
    ] = None,
    everything: Annotated[bool, Option("--all", help="Export every task to a file with its name in OUT.")] = False,
    form: Annotated[Literal["safetensors", "onnx"], Option("--format", help="Format for --all.")] = "safetensors",
    net: UserNet = None,
    yes: Yes = False,
) -> None:
    """Export tasks as ordinary networks.

    Each is checked by running it. Asks before replacing a file; when not interactive, that needs --yes.
    """
    if everything and out is not None:
        raise SupSupError("--all takes no task name: supsup export FILE --all FOLDER")
    if not everything and out is None:
        raise SupSupError("give a task and a file: supsup export FILE TASK OUT, or supsup export FILE --all FOLDER")
    target = Path(task) if out is None else out
    with interruptible(f"files already written are in {target}; run the command again"):
        model = supsup.SupSup.load(file, user_network(net, file), device="cpu")
        if everything:
            places = {name: target / f"{quote(name, _READABLE)}.{form}" for name in model.tasks}
        else:
            model.classes(task)  # an unknown task is an error, before any question
            places = {task: target}
        existing = [place for place in places.values() if place.is_file()]
        if existing:
            which = str(existing[0]) if len(existing) == 1 else f"{len(existing):,} files in {target}"
            confirm(f"Replace {which}?", yes)
        if everything:
            target.mkdir(parents=True, exist_ok=True)
        for name, place in places.items():
            supsup.export(model, name, place)
    what = f"{len(places):,} tasks" if everything else f"task {escape_for_terminal(task)}"
    say(f"{escape_for_terminal(target)}: {what}, same outputs as the model")
