"""`supsup verify`, `repair`, `forget` and `compact`: care for a model file.

Names in a file may come from anyone: they are printed through `escape_for_terminal` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

import supsup.file.repair
from supsup import SupSupError
from supsup.cli.console import LONG_LINE, File, Yes, confirm, escape_for_terminal, interruptible, say
from supsup.cli.inspect import Json, to_json
from supsup.file.modelfile import ModelFile
from supsup.hopfield.learner import KIND


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
        wanted = list(dict.fromkeys(names))
        _check_forgettable(model, wanted)
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


def _check_forgettable(model: ModelFile, names: list[str]) -> None:
    """Raise an error unless all of these tasks can be deleted."""
    if model.header.kind == KIND:
        raise SupSupError(
            f"{model.path} holds a {KIND} model, whose tasks share one memory: none can be deleted separately"
        )
    unknown = [name for name in names if name not in model]
    if unknown:
        raise SupSupError(
            f"{model.path}: no task {_first_of([repr(name) for name in unknown])}, so nothing was changed; "
            f"`supsup tasks {model.path.name}` lists the tasks"
        )


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
