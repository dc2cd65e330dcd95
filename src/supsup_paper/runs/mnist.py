"""SupSup on permuted and rotated MNIST: one training, graded in every way that rows ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from supsup import nets
from supsup.data import Stream
from supsup.evaluation.evaluator import evaluate
from supsup.evaluation.grading import GradingCache
from supsup.inference.methods import Inference
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup_paper.catalogue import recipes
from supsup_paper.catalogue.experiments import SupSupExperiment, UnannouncedExperiment, settings_json
from supsup_paper.records import PlannedRow, RowResult
from supsup_paper.runs.checkpoints import SoFar, living_in, not_learned
from supsup_paper.runs.environment import Environment, net_of
from supsup_paper.runs.figures import accuracy_figures, per_task, plain_way
from supsup_paper.runs.schedule import PlannedTraining, Work


def run_supsup(trial: PlannedTraining[SupSupExperiment], environment: Environment) -> Work:
    """Learn all tasks at once, then grade row after row."""
    training, seed = trial.experiment.training, trial.seeds[0]
    stream = environment.mnist_stream(training, seed)
    with _model(trial, environment) as model:
        _compile(model, net_of(training), stream)
        begin = environment.clock()
        waiting = not_learned(model, stream)
        known = len(stream) - len(waiting)
        if waiting:
            model.learn_many(waiting, cluster=environment.cluster)
        learning, plain = environment.clock() - begin, plain_way(model, stream, environment)
        size = {"masks": sum(-(-shape.numel() // 8) for shape in state_of(model).net.shapes.values()) * len(stream)}
        answers = GradingCache()
        for wanted in trial.wanted:
            begin = environment.clock()
            figures, each = _graded(wanted, model, stream, answers)
            seconds = {"learning": learning, "grading": environment.clock() - begin} | plain
            trace = {"tasks learned before an interruption": known} if known else {}
            yield RowResult(wanted, seed, figures, each, size, seconds, trace)


def run_unannounced(trial: PlannedTraining[UnannouncedExperiment], environment: Environment) -> Work:
    """NNs: learn batch after batch without a word about tasks, graded on the way."""
    training, seed = trial.experiment.training, trial.seeds[0]
    stream = environment.mnist_stream(training, seed)
    with _model(trial, environment) as model:
        if training.allocation is not None:
            model.new_task_rule = replace(model.new_task_rule, deviations=training.allocation.deviations)
        so_far = SoFar(model, kept=environment.device.type == "cpu")
        before, begin = so_far.tasks, environment.clock()
        last = training.stages[-1]
        for stage in training.stages:
            if str(stage) not in so_far.figures or stage == last:  # the last is graded for each task, too
                graded = yield from so_far.learn_and_evaluate(stream[:stage])
                so_far.graded(stage, accuracy_figures(trial.wanted[0], graded))
        seconds = {"learning": environment.clock() - begin}
        figures: dict[str, dict[str, float]] = {}
        for found in so_far.figures.values():
            for figure, values in found.items():
                figures.setdefault(figure, {}).update(values)
        figures["masks opened"] = {str(len(stream)): float(graded.masks)}
        trace: dict[str, object] = {"tasks learned before an interruption": before} if before else {}
        trace |= {"tasks that opened not one mask but": so_far.opened} if so_far.opened else {}
        for wanted in trial.wanted:
            yield RowResult(wanted, seed, figures, per_task(graded), seconds=seconds, trace=trace)


def _graded(
    wanted: PlannedRow[SupSupExperiment], model: SupSup, stream: Stream, known: GradingCache
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    own = wanted.experiment.own
    inference = Inference(own.method, own.objective, own.layers)
    if own.gammas is None:
        model.inference = inference
        graded = evaluate(
            model, stream, own.scenario, protocol=own.protocol, stages=own.stages, cache=known, outputs="all"
        )
        return accuracy_figures(wanted, graded), per_task(graded)
    figures: dict[str, dict[str, float]] = {}
    for asked in own.gammas:
        gamma = 1 / len(stream) if isinstance(asked, str) else asked
        model.inference = replace(inference, gamma=gamma)
        graded = evaluate(
            model, stream, own.scenario, protocol=own.protocol, stages=own.stages, cache=known, outputs="all"
        )
        for figure, values in accuracy_figures(wanted, graded).items():
            figures.setdefault(figure, {})[f"{gamma:.4g}"] = list(values.values())[-1]
    return figures, per_task(graded)


@contextmanager
def _model(
    trial: PlannedTraining[SupSupExperiment] | PlannedTraining[UnannouncedExperiment], environment: Environment
) -> Iterator[SupSup]:
    """The model of a trial. On a CPU, where learning takes long, it lives in a file until all rows are there, so that
    an interrupted trial goes on at the task where it was."""
    training, seed = trial.experiment.training, trial.seeds[0]
    model = SupSup(
        net_of(training),
        seed,
        recipe=replace(recipes.MNIST, steps=training.steps),
        inference=Inference("one-shot"),
        device=environment.device,
    )
    if environment.device.type != "cpu":
        yield model
        return
    model.notes = {"training": {key: value for key, value in settings_json(training).items() if key != "tasks"}}
    file = trial.wanted[0].path(seed).with_suffix(".supsup")
    with living_in(file, model) as kept:
        yield kept
    file.unlink()


def _compile(model: SupSup, net: nets.FullyConnected, stream: Stream) -> None:
    """Compile the kernels, with another model of the same network, before the clock starts."""
    if model.device.type == "cuda":
        other = SupSup(net, recipe=model.recipe, inference=model.inference, device=model.device)
        other.learn_many(stream[:2], show_progress=False)
