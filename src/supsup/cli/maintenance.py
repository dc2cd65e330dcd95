"""`supsup verify`, `repair`, `forget`, `compact` and `export`: care for a model file, and its tasks as networks.

Names in a file may come from anyone: they are printed through `escape_for_terminal` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import typer
from typer import Argument, Option

import supsup
import supsup.file.repair
from supsup import SupSupError
from supsup.cli.console import LONG_LINE, File, Yes, confirm, escape_for_terminal, interruptible, say
from supsup.cli.inspect import Json, to_json
from supsup.cli.networks import UserNet, user_network
from supsup.file.modelfile import ModelFile
from supsup.hopfield.learner import KIND

_READABLE = " ,;()[]+&='"  # characters of file names beside letters, digits and _.-~


def verify_command(file: File, json: Json = False) -> None:
    """Check every task of a model file for damage.

    The exit code is 1 if anything is damaged.
    """
    with interruptible("nothing was changed"):
        findings = supsup.file.repair.verify(file)
    header = findings.header
    count = len(header.details["tasks"]) if header and header.kind == KIND else len(findings.intact)
    if json:
        problems = {"structure": findings.structure, "damaged": findings.damaged}
        print(to_json({"file": file, "clean": findings.clean, "intact": count} | problems))
        raise typer.Exit(0 if findings.clean else 1)
    for problem in [*findings.structure, *findings.damaged.values()]:
        say(f"[red]damaged[/] {escape_for_terminal(problem, LONG_LINE)}")
    if findings.clean:
        say(f"{escape_for_terminal(file)}: {count:,} tasks, all intact")
        return
    command = f"supsup repair {escape_for_terminal(file.name)}"
    say(f"{len(findings.intact):,} tasks are readable; `{command}` may find more")
    raise typer.Exit(1)


def repair_command(
    file: File, out: Annotated[Path | None, Argument(help="The new file (default: FILE-repaired.supsup).")] = None
) -> None:
    """Copy the intact tasks of a damaged file to a new file.

    The damaged file is not changed, and no existing file is replaced. The exit code is 1 if a task is or may be lost.
    """
    target = out or file.with_name(f"{file.stem}-repaired{file.suffix}")
    with interruptible(f"{file} is unchanged, and {target} was not written; run the command again"):
        findings = supsup.file.repair.repair(file, target)
    say(f"{escape_for_terminal(target)}: {len(findings.intact):,} tasks rescued")
    for name, problem in findings.damaged.items():
        say(f"[red]lost[/] {escape_for_terminal(name)}: {escape_for_terminal(problem, LONG_LINE)}")
    if findings.structure and not findings.damaged:
        say("tasks whose names could not be read may be missing; compare with your list of tasks")
    if not findings.clean:
        raise typer.Exit(1)


def forget_command(
    file: File,
    names: Annotated[list[str], Argument(metavar="TASK", help="The tasks to delete.")],
    compact: Annotated[bool, Option("--compact", help="Also make the file smaller.")] = False,
    yes: Yes = False,
) -> None:
    """Delete tasks permanently.

    Their bytes are overwritten; answers of other tasks do not change. If a name is not in the file, nothing is
    deleted. Asks for confirmation; when not interactive, --yes is required.
    """
    with ModelFile(file, write=True) as model:
        model.check_writable()
        wanted, path = list(dict.fromkeys(names)), model.path
        unknown = [repr(name) for name in wanted if name not in model]
        if unknown:
            nothing = f"{path}: no task {_first_of(unknown)}, so nothing was changed"
            raise SupSupError(f"{nothing}; `supsup tasks {path.name}` lists the tasks")
        confirm(f"Forget {len(wanted):,} of {len(model.names):,} tasks of {file.name}: {_first_of(wanted)}?", yes)

        def outcome() -> str:
            left = [name for name in wanted if name in model]
            done = f"{len(wanted) - len(left):,} of {len(wanted):,} tasks are forgotten"
            return f"{done}; still there: {_first_of(left)}. Run the command again for these" if left else done

        with interruptible(outcome):
            for name in wanted:
                model.remove(name)
            if compact:
                model.compact()
        left = len(model.names)
    say(f"{', '.join(map(escape_for_terminal, wanted))} forgotten; {left:,} tasks left")


def _first_of(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def compact_command(
    file: File,
    against_mean: Annotated[
        bool, Option("--against-mean", help="Also encode masks relative to their mean, where that is smaller.")
    ] = False,
) -> None:
    """Make a model file as small as possible.

    Frees the space of forgotten tasks and recompresses masks. No mask changes, so there is no confirmation.
    """
    before = file.stat().st_size if file.is_file() else 0
    again = "every task is unchanged; run the command again to make the file smaller"
    with interruptible(again), ModelFile(file, write=True) as model:
        model.compact(against_mean=against_mean)
    say(f"{escape_for_terminal(file)}: {before:,} → {file.stat().st_size:,} bytes")


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
