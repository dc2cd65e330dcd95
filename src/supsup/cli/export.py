"""`supsup export`: subnetworks as ordinary networks, one or all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from typer import Argument, Option

import supsup
from supsup.cli.console import Yes, agreed, escape_for_terminal, interruptible, say
from supsup.cli.networks import OwnNet, own_network
from supsup.runtime.errors import SupSupError

_READABLE = " ,;()[]+&='"  # characters that a file's name may have beside letters, digits and _.-~


def export(
    file: Annotated[Path, Argument(help="A model file.")],
    task: Annotated[str, Argument(metavar="[TASK]", help="The task to export; left out with --all.")],
    out: Annotated[
        Path | None, Argument(metavar="OUT", help="out.safetensors or out.onnx; with --all a folder.")
    ] = None,
    everything: Annotated[bool, Option("--all", help="Export every task, each to a file of its name in OUT.")] = False,
    form: Annotated[Literal["safetensors", "onnx"], Option("--format", help="What --all writes.")] = "safetensors",
    net: OwnNet = None,
    yes: Yes = False,
) -> None:
    """Write subnetworks as ordinary networks, each checked by running it.

    Asks before it replaces a file; where stdin is no terminal it needs --yes for that.
    """
    if everything and out is not None:
        raise SupSupError("with --all no task is named: supsup export FILE --all FOLDER")
    if not everything and out is None:
        raise SupSupError(
            "say which task and where to: supsup export FILE TASK OUT, or supsup export FILE --all FOLDER"
        )
    target = Path(task) if out is None else out
    with interruptible(f"what was written before is in {target}; start again"):
        model = supsup.SupSup.load(file, own_network(net, file), device="cpu")
        if not everything:
            model.classes(task)  # an error for an unknown one before anybody is asked
        places = {name: target / f"{quote(name, _READABLE)}.{form}" for name in model.tasks} if everything else {}
        places = places or {task: target}
        there = [place for place in places.values() if place.is_file()]
        if there:
            agreed(f"Replace {there[0]}?" if len(there) == 1 else f"Replace {len(there):,} files in {target}?", yes)
        if everything:
            target.mkdir(parents=True, exist_ok=True)
        for name, place in places.items():
            supsup.export(model, name, place)
    if everything:
        say(f"{escape_for_terminal(target)}: {len(places):,} tasks, same outputs as the model")
    else:
        say(f"{escape_for_terminal(target)}: task {escape_for_terminal(task)}, same outputs as the model")
