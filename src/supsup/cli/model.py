"""`supsup tasks`, `info`, `verify`, `repair`, `forget` and `compact`: what is done with a model file.

What a file says may come from anybody: it reaches the terminal through `escape_for_terminal` alone.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from typer import Argument, Option

import supsup
import supsup.file.repair
from supsup.cli.console import Yes, agreed, escape_for_terminal, interruptible, say
from supsup.cli.inspect import ModelContents, TaskContents, as_json, contents_of, tasks_of
from supsup.cli.tables import show
from supsup.file.modelfile import ModelFile
from supsup.hopfield.file import KIND
from supsup.runtime.errors import SupSupError

File = Annotated[Path, Argument(help="A model file.")]
Json = Annotated[bool, Option("--json", help="Print it as JSON, with nothing left out.")]
_MOST_OF_A_LINE = 2000  # characters
_NAMED = 5  # classes of a task that are listed


def tasks(file: File, json: Json = False) -> None:
    """List the tasks of a model file."""
    with interruptible("nothing was changed"), ModelFile(file) as model:
        found = list(tasks_of(model))
    if json:
        print(as_json([asdict(task) for task in found]))
        return
    masks = any(task.bytes is not None for task in found)
    graded = any(task.accuracy is not None for task in found)
    figures = ["density %", "bytes", "bits/weight"] if masks else []
    table = Table("task", title=escape_for_terminal(file.name))
    for heading in ("classes", *figures, *(["right %"] if graded else []), "learned"):
        table.add_column(heading, justify="right")
    table.add_column("labels and inputs")
    for task in found:
        cells = [f"{task.classes:,}"]
        if masks:
            cells += [f"{100 * (task.density or 0):.2f}", f"{task.bytes:,}", f"{task.bits_per_weight:.4f}"]
        if graded:
            cells.append("–" if task.accuracy is None else f"{100 * task.accuracy:.1f}")
        table.add_row(
            escape_for_terminal(task.task, _MOST_OF_A_LINE),
            *cells,
            escape_for_terminal(task.learned[:10]),
            _labels(task),
        )
    show(table)


def _labels(task: TaskContents) -> str:
    """What the user calls a task's classes and what becomes of raw inputs, in a few words."""
    names = task.class_names or []
    labels = ", ".join(map(str, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
    return escape_for_terminal("; ".join(filter(None, (labels, task.inputs))), _MOST_OF_A_LINE)


def info(file: File, json: Json = False) -> None:
    """Say what a model file holds, and how its size compares with the entropy bound and the paper's own count."""
    with interruptible("nothing was changed"), ModelFile(file) as model:
        contents = contents_of(model)
    if json:
        print(as_json(asdict(contents)))
        return
    table = Table(title=escape_for_terminal(file.name), show_header=False)
    for name, value in _lines(contents).items():
        if value:
            table.add_row(name, escape_for_terminal(value, _MOST_OF_A_LINE))
    show(table)


def _lines(model: ModelContents) -> dict[str, str]:
    """What is said of a file, line by line; what is empty is left out."""
    memory = model.memory is not None
    chosen = (f"{text} ({count:,} ×)" for text, count in model.chosen_recipes.items())
    return {
        "kind": model.kind,
        "network": model.network or "a module of the user's own",
        "weights checksum": model.weights_checksum,
        "images": " × ".join(map(str, model.image_shape)) if model.image_shape else "none learned yet",
        "recipe": ", ".join(f"{key} {value}" for key, value in model.recipe.items()),
        "frozen weights" if memory else "masked weights": f"{model.weights:,} in {model.tensors} tensors, "
        f"seed {model.seed}",
        "memory": f"{model.memory:,} bytes, whatever the number of tasks" if memory else "",
        "inference": _way(model),
        "tasks": f"{model.tasks:,}"
        + (f", {model.named:,} with names of classes" if model.named else "")
        + (f", {model.raw:,} from raw inputs" if model.raw else ""),
        "masks": ""
        if memory
        else f"{model.masks:,} bytes (entropy bound {model.entropy_bound:,.0f}, "
        f"the paper's count {model.papers_count:,.0f})",
        "extras": "" if memory else f"{model.extras:,} bytes",
        "task found": f"in {100 * model.found / model.asked:.0f} % of {model.asked:,} images held back, when tasks "
        "were learned"
        if model.asked
        else "",
        "chosen recipes": "; ".join(chosen),
        "notes": ", ".join(f"{key}: {value}" for key, value in model.notes.items()),
        "created": f"{model.created} by supsup {model.library}, format {model.format}",
        "file": f"{model.file_bytes:,} bytes",
    }


def _way(model: ModelContents) -> str:
    """How tasks are found."""
    if model.inference.get("method") not in ("auto", "features"):
        return ", ".join(f"{key} {value}" for key, value in model.inference.items() if value is not None)
    some = "all" if model.profiles == model.tasks else f"{model.profiles:,} of {model.tasks:,}"
    return f"{model.inference['method']}, by statistics of {some} tasks"


def verify(file: File, json: Json = False) -> None:
    """Check every task of a model file; the exit code is 1 if anything is damaged."""
    with interruptible("nothing was changed"):
        findings = supsup.file.repair.verify(file)
    header = findings.header
    count = len(header.details["tasks"]) if header and header.kind == KIND else len(findings.intact)
    if json:
        problems = {"structure": findings.structure, "damaged": findings.damaged}
        print(as_json({"file": file, "clean": findings.clean, "intact": count} | problems))
        raise typer.Exit(0 if findings.clean else 1)
    for problem in [*findings.structure, *findings.damaged.values()]:
        say(f"[red]damaged[/] {escape_for_terminal(problem, _MOST_OF_A_LINE)}")
    if findings.clean:
        say(f"{escape_for_terminal(file)}: {count:,} tasks, all intact")
        return
    say(
        f"{len(findings.intact):,} tasks can be read as they are; `supsup repair {escape_for_terminal(file.name)}` may find more"
    )
    raise typer.Exit(1)


def repair(
    file: File, out: Annotated[Path | None, Argument(help="The new file (default: FILE-repaired.supsup).")] = None
) -> None:
    """Write every intact task of a damaged file to a new one; the exit code is 1 if a task is or may be lost.

    The damaged file stays as it is, and no file is ever replaced.
    """
    target = out or file.with_name(f"{file.stem}-repaired{file.suffix}")
    with interruptible(f"{file} is as it was, and {target} was not written; start again"):
        findings = supsup.file.repair.repair(file, target)
    say(f"{escape_for_terminal(target)}: {len(findings.intact):,} tasks rescued")
    for name, problem in findings.damaged.items():
        say(f"[red]lost[/] {escape_for_terminal(name)}: {escape_for_terminal(problem, _MOST_OF_A_LINE)}")
    if findings.structure and not findings.damaged:
        say("tasks whose names could not be read may be missing; compare with what you learned")
    if not findings.clean:
        raise typer.Exit(1)


def forget(
    file: File,
    names: Annotated[list[str], Argument(metavar="TASK...", help="The tasks to remove.")],
    compact: Annotated[bool, Option("--compact", help="Also make the file smaller.")] = False,
    yes: Yes = False,
) -> None:
    """Remove tasks for good: their bytes are overwritten; every other answer stays as it is.

    Nothing is removed if one of the names is not in the file. Asks first; where stdin is no terminal it needs --yes.
    """
    with ModelFile(file, write=True) as model:
        wanted = list(dict.fromkeys(names))
        _check_forgettable(model, wanted)
        agreed(f"Forget {len(wanted):,} of {len(model.names):,} tasks of {file.name}: {_some(wanted)}?", yes)

        def outcome() -> str:
            left = [name for name in wanted if name in model]
            gone = f"{len(wanted) - len(left):,} of {len(wanted):,} tasks are forgotten"
            return f"{gone}; still there: {_some(left)}. The same command with these goes on" if left else gone

        with interruptible(outcome):
            for name in wanted:
                model.remove(name)
            if compact:
                model.compact()
        left = len(model.names)
    say(f"{', '.join(map(escape_for_terminal, wanted))} forgotten; {left:,} tasks left")


def _check_forgettable(model: ModelFile, names: list[str]) -> None:
    """An error unless every one of these tasks can be removed; before anything is."""
    if model.header.kind == KIND:
        raise SupSupError(
            f"{model.path} holds a {KIND} model, whose tasks lie in one memory: none can be removed on its own"
        )
    unknown = [name for name in names if name not in model]
    if unknown:
        raise SupSupError(
            f"{model.path}: no task {_some([repr(name) for name in unknown])}, so nothing was changed; "
            f"`supsup tasks {model.path.name}` lists what there is"
        )


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def compact(
    file: File,
    against_mean: Annotated[
        bool, Option("--against-mean", help="Also code masks against their mean, where that is smaller.")
    ] = False,
) -> None:
    """Make a model file as small as it can be: no space of forgotten tasks, no mask larger than it must be.

    No mask changes, so nobody is asked.
    """
    before = file.stat().st_size if file.is_file() else 0
    again = "every task is as it was; start again to make the file smaller"
    with interruptible(again), ModelFile(file, write=True) as model:
        model.compact(against_mean=against_mean)
    say(f"{escape_for_terminal(file)}: {before:,} → {file.stat().st_size:,} bytes")
