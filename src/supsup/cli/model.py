"""`supsup tasks`, `info`, `verify`, `repair`, `forget`, `compact` and `export`: what is done with a model file.

What a file says may come from anybody: it reaches the terminal through `shown` alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

import supsup
import supsup.file.repair
from supsup.cli.talking import Yes, agreed, interruptible, say, shown
from supsup.errors import SupSupError
from supsup.file import codec
from supsup.file.convert import extras_of, facts_of
from supsup.file.modelfile import ModelFile
from supsup.hopfield.file import KIND, read
from supsup.tasks import TRACE, Facts

File = Annotated[Path, Argument(help="A model file.")]
_SHOWN = ("optimiser", "learning_rate", "steps", "batch_size")  # of a recipe that was chosen for a task
_MOST_OF_A_LINE = 2000  # characters
_NAMED = 5  # classes of a task that are listed


def tasks(file: File) -> None:
    """List the tasks of a model file."""
    with interruptible("nothing was changed"), ModelFile(file) as model:
        table = Table("task", title=shown(file.name), title_justify="left")
        if model.header.kind == KIND:
            for heading in ("classes", "learned"):
                table.add_column(heading, justify="right", no_wrap=True)
            table.add_column("labels and inputs")
            for task in read(model).tasks:
                own = _facts(task.facts)
                table.add_row(shown(task.name), f"{task.classes}", shown(task.learned_at[:10]), own)
            Console().print(table)
            return
        for heading in ("classes", "density %", "bytes", "bits/weight", "learned"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("labels and inputs")
        weights = sum(model.header.sizes)
        for row in model.records():
            size = len(row.mask) + len(row.extras)
            table.add_row(
                shown(row.name),
                f"{row.classes}",
                f"{100 * row.kept / weights:.2f}",
                f"{size:,}",
                f"{8 * len(row.mask) / weights:.4f}",
                shown(row.created[:10]),
                _facts(facts_of(row, model.header)),
            )
        Console().print(table)


def _facts(facts: Facts) -> str:
    """What the user calls a task's classes and what becomes of raw inputs, in a few words."""
    names = [] if facts.names is None else [str(name) for name in facts.names[:_NAMED]]
    labels = ", ".join(names) + (", …" if facts.names is not None and len(facts.names) > _NAMED else "")
    told = [labels] if labels else []
    if facts.inputs is not None:
        count = facts.inputs.gain.numel()
        kind = "tokens" if facts.inputs.tokens else f"raw, {count} mean{'' if count == 1 else 's'}"
        told.append(f"{kind}{', channels last' if facts.inputs.channels_last else ''}")
    return shown("; ".join(told))


def info(file: File) -> None:
    """Say what a model file holds, and how its size compares with the entropy bound and the paper's own count."""
    with interruptible("nothing was changed"), ModelFile(file) as model:
        lines = _hopfield_lines(model) if model.header.kind == KIND else _lines(model)
        table = Table(title=shown(file.name), title_justify="left", show_header=False)
        for name, value in (lines | {"file": f"{file.stat().st_size:,} bytes"}).items():
            if value:
                table.add_row(name, shown(value, _MOST_OF_A_LINE))
        Console().print(table)


def _lines(model: ModelFile) -> dict[str, str]:
    """What the masks of a SupSup model take."""
    header, coded, extras, bound, paper = model.header, 0, 0, 0.0, 0.0
    chosen: Counter[str] = Counter()
    named = raw = asked = right = traces = 0
    for row in model.records():
        packed = row.decoded(header, model.reference).packed
        coded, extras = coded + len(row.mask), extras + len(row.extras)
        bound += codec.entropy_bytes(packed, header.sizes)
        facts = facts_of(row, header)
        checked = extras_of(row).get(f"{TRACE}checked")
        if checked is not None and checked.shape == (2,):
            traces, asked, right = traces + 1, asked + int(checked[0]), right + int(checked[1])
        named, raw = named + (facts.names is not None), raw + (facts.inputs is not None)
        if facts.recipe is not None:
            chosen[" ".join(f"{key} {value}" for key, value in facts.recipe.items() if key in _SHOWN)] += 1
        paper += codec.paper_bytes(codec.kept(packed, header.sizes), list(header.shapes.values()))
    masks = {
        "masked weights": f"{sum(header.sizes):,} in {len(header.shapes)} tensors, seed {header.seed}",
        "inference": _way(header.inference, len(model.names), traces),
        "tasks": f"{len(model.names):,}"
        + (f", {named:,} with names of classes" if named else "")
        + (f", {raw:,} from raw inputs" if raw else ""),
        "masks": f"{coded:,} bytes (entropy bound {bound:,.0f}, the paper's count {paper:,.0f})",
        "extras": f"{extras:,} bytes",
    }
    if asked:
        masks["task found"] = f"in {100 * right / asked:.0f} % of {asked:,} images held back, when tasks were learned"
    if chosen:
        masks["chosen recipes"] = "; ".join(f"{text} ({tasks:,} ×)" for text, tasks in chosen.most_common())
    return _about(model, masks)


def _way(inference: dict[str, Any], tasks: int, traces: int) -> str:
    """How tasks are found."""
    method = inference.get("method")
    if method not in ("auto", "features"):
        return f"{method}, objective {inference.get('objective')}"
    return f"{method}, by statistics of {'all' if traces == tasks else f'{traces:,} of {tasks:,}'} tasks"


def _hopfield_lines(model: ModelFile) -> dict[str, str]:
    """What the memory of a HopSupSup model takes."""
    header, contents = model.header, read(model)
    memory = {
        "frozen weights": f"{sum(header.sizes):,} in {len(header.shapes)} tensors, seed {header.seed}",
        "memory": f"{len(model.state()):,} bytes, whatever the number of tasks; rule {contents.rule}",
        "recovery": ", ".join(f"{key} {value}" for key, value in asdict(contents.recovery).items()),
        "tasks": f"{len(contents.tasks):,}",
    }
    return _about(model, memory)


def _about(model: ModelFile, tasks: dict[str, str]) -> dict[str, str]:
    """What every kind of model has, around the lines on its tasks."""
    header, built = model.header, model.header.architecture
    call = ", ".join(f"{key}={value!r}" for key, value in built.get("arguments", {}).items()) if built else ""
    return {
        "kind": header.kind,
        "network": f"{built.get('name')}({call})" if built else "a module of the user's own",
        "weights checksum": header.weights,
        "images": " × ".join(map(str, header.image_shape)) if header.image_shape else "none learned yet",
        "recipe": ", ".join(f"{key} {value}" for key, value in header.recipe.items()),
        **tasks,
        "notes": ", ".join(f"{key}: {value}" for key, value in header.notes.items()),
        "created": f"{header.created} by supsup {header.library}, format {header.format}",
    }


def verify(file: File) -> None:
    """Check every task of a model file; the exit code is 1 if anything is damaged."""
    with interruptible("nothing was changed"):
        findings = supsup.file.repair.verify(file)
    for problem in [*findings.structure, *findings.damaged.values()]:
        say(f"[red]damaged[/] {shown(problem, _MOST_OF_A_LINE)}")
    if findings.clean:
        header = findings.header
        count = len(header.details["tasks"]) if header and header.kind == KIND else len(findings.intact)
        say(f"{shown(file)}: {count:,} tasks, all intact")
        return
    say(f"{len(findings.intact):,} tasks can be read as they are; `supsup repair {shown(file.name)}` may find more")
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
    say(f"{shown(target)}: {len(findings.intact):,} tasks rescued")
    for name, problem in findings.damaged.items():
        say(f"[red]lost[/] {shown(name)}: {shown(problem, _MOST_OF_A_LINE)}")
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
    say(f"{', '.join(map(shown, wanted))} forgotten; {left:,} tasks left")


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
    say(f"{shown(file)}: {before:,} → {file.stat().st_size:,} bytes")


def export(
    file: File,
    task: Annotated[str, Argument(help="The task to export.")],
    out: Annotated[Path, Argument(help="out.safetensors or out.onnx.")],
    yes: Yes = False,
) -> None:
    """Write one task's subnetwork as an ordinary network, checked by running it.

    Asks before it replaces a file; where stdin is no terminal it needs --yes for that.
    """
    with interruptible(f"{out} is as it was; start again"):
        model = supsup.load(file, device="cpu")
        model.classes(task)  # an error for an unknown one before anybody is asked
        if out.is_file():
            agreed(f"Replace {out}?", yes)
        supsup.export(model, task, out)
    say(f"{shown(out)}: task {shown(task)}, same outputs as the model")
