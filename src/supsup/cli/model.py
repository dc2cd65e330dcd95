"""`supsup tasks`, `info`, `verify`, `repair`, `forget` and `export`: what is done with a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

import supsup
import supsup.file.repair
from supsup.file import codec
from supsup.file.modelfile import ModelFile
from supsup.hopfield.file import KIND

File = Annotated[Path, Argument(help="A model file.")]


def tasks(file: File) -> None:
    """List the tasks of a model file."""
    with ModelFile(file) as model:
        table = Table("task", title=escape(file.name), title_justify="left")
        if model.header.kind == KIND:
            for heading in ("classes", "learned"):
                table.add_column(heading, justify="right", no_wrap=True)
            for name, classes, learned in model.header.details.get("tasks", []):
                table.add_row(escape(str(name)), f"{classes}", str(learned)[:10])
            Console().print(table)
            return
        for heading in ("classes", "density %", "bytes", "bits/weight", "learned"):
            table.add_column(heading, justify="right", no_wrap=True)
        weights = sum(model.header.sizes)
        for row in model.records():
            size = len(row.mask) + len(row.extras)
            table.add_row(
                escape(row.name),
                f"{row.classes}",
                f"{100 * row.kept / weights:.2f}",
                f"{size:,}",
                f"{8 * len(row.mask) / weights:.4f}",
                row.created[:10],
            )
    Console().print(table)


def info(file: File) -> None:
    """Say what a model file holds, and how its size compares with the entropy bound and the paper's own count."""
    with ModelFile(file) as model:
        header, coded, extras, bound, paper = model.header, 0, 0, 0.0, 0.0
        for row in model.records():
            packed = row.decoded(header, model.reference).packed
            coded, extras = coded + len(row.mask), extras + len(row.extras)
            bound += codec.entropy_bytes(packed, header.sizes)
            paper += codec.paper_bytes(codec.kept(packed, header.sizes), list(header.shapes.values()))
        count = len(model.names)
        state = model.state() if header.kind == KIND else b""
    built = header.architecture
    call = ", ".join(f"{key}={value!r}" for key, value in built.get("arguments", {}).items()) if built else ""
    network = f"{built.get('name')}({call})" if built else "a module of the user's own"
    recipe = ", ".join(f"{key} {value}" for key, value in header.recipe.items())
    weights = f"{sum(header.sizes):,} in {len(header.shapes)} tensors, seed {header.seed}"
    about_masks = {
        "masked weights": weights,
        "inference": f"{header.inference.get('method')}, objective {header.inference.get('objective')}",
        "tasks": f"{count:,}",
        "masks": f"{coded:,} bytes (entropy bound {bound:,.0f}, the paper's count {paper:,.0f})",
        "extras": f"{extras:,} bytes",
    }
    if header.kind == KIND:
        details = header.details
        about_masks = {
            "frozen weights": weights,
            "memory": f"{len(state):,} bytes, whatever the number of tasks; rule {details.get('rule')}",
            "recovery": ", ".join(f"{key} {value}" for key, value in details.get("recovery", {}).items()),
            "tasks": f"{len(details.get('tasks', [])):,}",
        }
    lines = {
        "kind": header.kind,
        "network": network,
        "weights checksum": header.weights,
        "images": " × ".join(map(str, header.image_shape)) if header.image_shape else "none learned yet",
        "recipe": recipe,
        **about_masks,
        "notes": ", ".join(f"{key}: {value}" for key, value in header.notes.items()),
        "file": f"{file.stat().st_size:,} bytes",
        "created": f"{header.created} by supsup {header.library}, format {header.format}",
    }
    table = Table(title=escape(file.name), title_justify="left", show_header=False)
    for name, value in lines.items():
        if value:
            table.add_row(name, escape(value))
    Console().print(table)


def verify(file: File) -> None:
    """Check every task of a model file; the exit code is 1 if anything is damaged."""
    console, findings = Console(), supsup.file.repair.verify(file)
    for problem in [*findings.structure, *findings.damaged.values()]:
        console.print(f"[red]damaged[/] {escape(problem)}", highlight=False, soft_wrap=True)
    if findings.clean:
        header = findings.header
        count = len(header.details["tasks"]) if header and header.kind == KIND else len(findings.intact)
        console.print(f"{escape(str(file))}: {count:,} tasks, all intact", highlight=False)
        return
    console.print(
        f"{len(findings.intact):,} tasks can be read as they are; `supsup repair {escape(file.name)}` may find more"
    )
    raise typer.Exit(1)


def repair(
    file: File, out: Annotated[Path | None, Argument(help="The new file (default: FILE-repaired.supsup).")] = None
) -> None:
    """Write every intact task of a damaged file to a new one; the exit code is 1 if a task is or may be lost."""
    target = out or file.with_name(f"{file.stem}-repaired{file.suffix}")
    console, findings = Console(), supsup.file.repair.repair(file, target)
    console.print(f"{escape(str(target))}: {len(findings.intact):,} tasks rescued", highlight=False)
    for name, problem in findings.damaged.items():
        console.print(f"[red]lost[/] {escape(name)}: {escape(problem)}", highlight=False, soft_wrap=True)
    if findings.structure and not findings.damaged:
        console.print("tasks whose names could not be read may be missing; compare with what you learned")
    if not findings.clean:
        raise typer.Exit(1)


def forget(
    file: File,
    names: Annotated[list[str], Argument(metavar="TASK...", help="The tasks to remove.")],
    compact: Annotated[bool, Option("--compact", help="Also make the file smaller.")] = False,
) -> None:
    """Remove tasks for good: their bytes are overwritten; every other answer stays as it is."""
    with ModelFile(file, write=True) as model:
        for name in names:
            model.remove(name)
        if compact:
            model.compact()
        left = len(model.names)
    Console().print(f"{', '.join(map(escape, names))} forgotten; {left:,} tasks left", highlight=False)


def compact(
    file: File,
    against_mean: Annotated[
        bool, Option("--against-mean", help="Also code masks against their mean, where that is smaller.")
    ] = False,
) -> None:
    """Make a model file as small as it can be: no space of forgotten tasks, no mask larger than it must be."""
    before = file.stat().st_size if file.is_file() else 0
    with ModelFile(file, write=True) as model:
        model.compact(against_mean=against_mean)
    Console().print(f"{escape(str(file))}: {before:,} → {file.stat().st_size:,} bytes", highlight=False)


def export(
    file: File,
    task: Annotated[str, Argument(help="The task to export.")],
    out: Annotated[Path, Argument(help="out.safetensors or out.onnx.")],
) -> None:
    """Write one task's subnetwork as an ordinary network, checked by running it."""
    supsup.export(supsup.load(file, device="cpu"), task, out)
    Console().print(f"{escape(str(out))}: task {escape(task)}, same outputs as the model", highlight=False)
