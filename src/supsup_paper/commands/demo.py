"""`supsup demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, cast

from rich.console import Console
from typer import Option

from supsup import data as sources
from supsup.cli.console import confirm, escape_for_terminal, interruptible, is_interactive, print_table, say
from supsup.evaluation.grading import GradingProtocol
from supsup.runtime.devices import resolve
from supsup_paper.commands import hopfield_demo, supsup_demo
from supsup_paper.commands.supsup_demo import NETS, STREAMS, DemoSettings
from supsup_paper.report import accuracy_plot, closing_table, recovery_plot, recovery_table, write_text

_DEFAULT = DemoSettings()


def demo(
    data: Annotated[str, Option(help=f"Data set: {', '.join(sources.SOURCES)}.")] = _DEFAULT.data,
    data_dir: Annotated[
        Path | None, Option(envvar="SUPSUP_DATA", help="Folder with data sets (holding mnist/, fashion_mnist/ …).")
    ] = None,
    stream: Annotated[str, Option(help=f"How tasks are made: {', '.join(STREAMS)}.")] = _DEFAULT.stream,
    tasks: Annotated[int, Option(help="How many tasks (permuted and rotated).")] = _DEFAULT.tasks,
    classes_per_task: Annotated[int, Option(help="Classes in each task (split).")] = _DEFAULT.classes_per_task,
    net: Annotated[str, Option(help=f"Network: {', '.join(NETS)}.")] = _DEFAULT.net,
    outputs: Annotated[int, Option(help="Outputs of the network; those beyond the classes help inference.")] = (
        _DEFAULT.outputs
    ),
    steps: Annotated[int, Option(help="Training batches for each task.")] = _DEFAULT.steps,
    batch_size: Annotated[int, Option(help="Images in a training batch.")] = _DEFAULT.batch_size,
    seed: Annotated[int, Option(help="Seed of weights, scores, batches and permutations.")] = _DEFAULT.seed,
    method: Annotated[
        str, Option(help="Task inference: auto, features, one-shot, binary, gamma, descent, exhaustive.")
    ] = _DEFAULT.method,
    objective: Annotated[str, Option(help="What inference minimises: H, G or M.")] = _DEFAULT.objective,
    layers: Annotated[str, Option(help="Layers whose gradient counts: all, first, last.")] = _DEFAULT.layers,
    protocol: Annotated[
        str, Option(help="Who decides the task of a test batch: paper (one image) or paper-full-batch (all).")
    ] = _DEFAULT.protocol,
    unannounced: Annotated[bool, Option("--unannounced", help="Never say the task, not in training either (NNs).")] = (
        _DEFAULT.unannounced
    ),
    hopfield: Annotated[
        bool, Option("--hopfield", help="Keep all masks in one Hopfield memory (HopSupSup; classes are split).")
    ] = _DEFAULT.hopfield,
    units: Annotated[int, Option(help="Hidden units in each layer (--hopfield; the paper has 2048).")] = _DEFAULT.units,
    strict: Annotated[bool, Option(help="Also grade with every image deciding for itself.")] = _DEFAULT.strict,
    compare: Annotated[bool, Option(help="Also train an ordinary network on the same tasks.")] = _DEFAULT.compare,
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = _DEFAULT.device,
    out: Annotated[Path, Option(help="Folder for the plot, the JSON of all figures and the model.")] = Path("runs"),
    name: Annotated[
        str | None, Option(help="What to call the files there.", show_default="demo, or hopfield with --hopfield")
    ] = None,
    model: Annotated[
        Path | None,
        Option(
            help="Model file to learn into, and to go on from after an interruption.", show_default="OUT/NAME.supsup"
        ),
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Start again, whatever the model file holds.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="With --fresh: do not ask, even on a terminal.")] = False,
) -> None:
    """Learn a stream of tasks on one frozen network and test it.

    Prints a closing table and writes a plot (accuracy against tasks learned), a JSON of all figures and the model.
    A run that was interrupted goes on from the model file when it is started again; --fresh replaces a model file that
    is there, and asks first on a terminal.
    The default data are 5,000 real MNIST digits that need no download: pip install 'supsup[demo]'.
    """
    settings = DemoSettings(
        data=data,
        data_dir=data_dir,
        stream=stream,
        tasks=tasks,
        classes_per_task=classes_per_task,
        net=net,
        outputs=outputs,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        method=method,  # Inference refuses unknown methods, evaluate unknown protocols
        objective=objective,
        layers=layers,
        protocol=cast(GradingProtocol, protocol),
        unannounced=unannounced,
        hopfield=hopfield,
        units=units,
        strict=strict,
        compare=compare,
        device=device,
    )
    out.mkdir(parents=True, exist_ok=True)
    name = name or ("hopfield" if hopfield else "demo")
    file = model or out / f"{name}.supsup"
    if fresh and file.is_file():
        confirm(f"Replace the model in {file}?", yes or not is_interactive())  # --fresh alone says so in a script
    if hopfield:
        _hopfield(settings, file, out / f"{name}.json", out / f"{name}.svg", fresh)
        return
    kept = f"tasks that were learned are in {file}; the same command without --fresh goes on from there"
    with interruptible("nothing is kept of tasks that are not announced; start again" if unannounced else kept):
        results = supsup_demo.run_demo(settings, file, fresh=fresh)
    title = f"{settings.tasks} tasks ({settings.stream} {settings.data}), {settings.net}"
    plot, figures = out / f"{name}.svg", out / f"{name}.json"
    supsup_demo.write_json(figures, settings, results, resolve(device))
    curves = {result.label: dict(zip(result.evaluation.stages, result.evaluation.curve)) for result in results}
    write_text(plot, accuracy_plot(title, curves))
    print_table(closing_table(title, {result.label: (result.evaluation, result.seconds) for result in results}))
    if settings.unannounced:
        graded = results[0].evaluation
        say(f"{graded.masks} masks were opened for {len(graded.per_task)} tasks.")
    if results[0].from_file:
        say(
            f"{results[0].from_file} of the tasks were in {escape_for_terminal(file)} already and were not learned again."
        )
    Console().print(supsup_demo.in_words(results), highlight=False)
    say(
        f"plot: {escape_for_terminal(plot)}   figures: {escape_for_terminal(figures)}   model: {escape_for_terminal(file)}"
    )
    if not settings.unannounced:
        drawn = " draw a digit on it" if settings.stream == "drawn" else " see how the masks score on it"
        say(
            f"Next: [bold]supsup serve {escape_for_terminal(shlex.quote(str(file)))}[/] opens the model as a page;{drawn}."
        )


def _hopfield(settings: DemoSettings, file: Path, figures: Path, plot: Path, fresh: bool) -> None:
    with interruptible("a memory is written when all tasks are in it, so nothing is kept; start again"):
        experiment = hopfield_demo.run_and_save(settings, file, figures, fresh=fresh)
    title = f"Hopfield recovery, {settings.data} split by {settings.classes_per_task}"
    traces = (trace.tolist() for trace in experiment.recovered["best-of"].traces)
    write_text(plot, recovery_plot(title, dict(zip(experiment.tasks, traces))))
    print_table(recovery_table(title, experiment))
    size = experiment.memory_bytes[-1]
    say(f"Ψ and μ take {size:,} bytes, after the first task and after the last.")
    say(
        f"plot: {escape_for_terminal(plot)}   figures: {escape_for_terminal(figures)}   model: {escape_for_terminal(file)}"
    )
