"""SupSup on SplitCIFAR100 with the task given: six budgets, with and without transfer, and how fast transfer learns.

Without transfer the tasks of a budget are trained at once. With transfer a task starts from the masks of earlier
tasks, so all budgets are trained side by side, task after task.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from supsup import nets
from supsup.data import Stream, Task
from supsup.evaluation.evaluator import evaluate
from supsup.inference.methods import Inference
from supsup.model import checks
from supsup.model.learning import Learning
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError
from supsup.training import SPLIT_CIFAR100, Recipe, train_masks
from supsup_paper.catalogue.experiments import SplitCifarExperiment, TransferSpeedExperiment
from supsup_paper.records import PlannedRow, RowResult, bytes_of
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.figures import accuracy_figures, per_task, plain_way
from supsup_paper.runs.schedule import PlannedTraining, Work


def run_cifar(trial: PlannedTraining[SplitCifarExperiment], environment: Environment) -> Work:
    """Every budget that rows ask for; the models are kept beside the rows, for their bytes."""
    training, seed = trial.experiment.training, trial.seeds[0]
    stream = environment.cifar_stream(training.tasks, seed)
    groups = [list(trial.wanted)] if training.transfer != "none" else [[wanted] for wanted in trial.wanted]
    for group in groups:
        models = [new_cifar_model(wanted.experiment, seed, environment) for wanted in group]
        begin = environment.clock()
        if len(models) > 1:
            with progress.bar("learning with transfer", len(stream) * len(models)) as advance:
                for task in stream:
                    learn_with_models(models, task, advance)
        else:
            models[0].learn_many(stream, cluster=environment.cluster)
        seconds = {"learning": (environment.clock() - begin) / len(group)} | plain_way(models[0], stream, environment)
        for wanted, model in zip(group, models):
            yield _finished(wanted, seed, model, stream, seconds, len(group), environment)


def learn_with_models(models: Sequence[SupSup], task: Task, advance: progress.Advance = lambda _: None) -> None:
    """Learn a task with several models on one frozen network, each with its own recipe; together where possible."""
    learners = [Learning(state_of(model)) for model in models]
    for model, learner in zip(models, learners):
        checks.check_stream([task], learner.state.tasks, learner.input_requirements())
        if not isinstance(model.recipe, Recipe):
            raise SupSupError("models that learn together need a recipe each: SupSup(net, recipe=Recipe(…))")
    with ExitStack() as held:
        for model in sorted(models, key=id):
            held.enter_context(state_of(model).changing)
        jobs = [learner.state.settings.recipe.stepwise.job(task, learner.first_scores) for learner in learners]
        waiting = iter(learners)
        with closing(train_masks(learners[0].state.net, jobs, advance=advance)) as groups:
            for trained in groups:
                for one, learner in zip(trained.split(), waiting):
                    rotated = learner.state.settings.recipe.self_labels is not None
                    learner.add(one._replace(tasks=[task], rotated=rotated))


def recipe_of(basic: Recipe, batch_size: int, epochs: int | None, steps: int | None) -> Recipe:
    """The recipe for so many epochs or, where that is None, so many steps."""
    if epochs is not None:
        return replace(basic, batch_size=batch_size, epochs=epochs)
    if steps is None:
        raise SupSupError("a training needs its number of epochs or of steps")
    return replace(basic, batch_size=batch_size, epochs=None, steps=steps)


def new_cifar_model(experiment: SplitCifarExperiment, seed: int, environment: Environment) -> SupSup:
    """A model that keeps as much as the row's budget says, before it learns."""
    training = experiment.training
    basic = replace(SPLIT_CIFAR100, budget=experiment.own.budget, transfer=training.transfer)
    recipe = recipe_of(basic, training.batch_size, training.epochs, training.steps)
    return SupSup(nets.gem_resnet18(5), seed, recipe=recipe, inference=Inference("one-shot"), device=environment.device)


def _finished(
    wanted: PlannedRow[SplitCifarExperiment],
    seed: int,
    model: SupSup,
    stream: Stream,
    learning: dict[str, float],
    sharing: int,
    environment: Environment,
) -> RowResult:
    begin = environment.clock()
    graded = evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False, outputs="all")
    seconds = learning | {"grading": environment.clock() - begin}
    file = wanted.path(seed).with_suffix(".supsup")
    file.parent.mkdir(parents=True, exist_ok=True)
    model.save(file)
    figures, each = accuracy_figures(wanted, graded), per_task(graded)
    return RowResult(wanted, seed, figures, each, bytes_of(file), seconds, at_once=sharing)


def run_transfer_speed(trial: PlannedTraining[TransferSpeedExperiment], environment: Environment) -> Work:
    """All budgets; with transfer side by side, without it the later tasks of a budget at once."""
    training, seed = trial.experiment.training, trial.seeds[0]
    stream = environment.cifar_stream(training.tasks, seed)
    first = recipe_of(SPLIT_CIFAR100, training.batch_size, training.first_epochs, training.first_steps)
    later = recipe_of(SPLIT_CIFAR100, training.batch_size, training.epochs, training.steps)
    models = [
        SupSup(
            nets.gem_resnet18(5),
            seed,
            recipe=replace(first, budget=budget),
            inference=Inference("one-shot"),
            device=environment.device,
        )
        for budget in training.budgets
    ]
    begin = environment.clock()
    with progress.bar("the first task", len(models)) as advance:
        learn_with_models(models, stream[0], advance)
    for model in models:
        model.recipe = replace(later, budget=model.recipe.stepwise.budget, transfer=training.transfer)
    _learn_the_others(models, stream[1:], environment)
    seconds = {"learning": environment.clock() - begin}
    begin = environment.clock()
    graded = {
        budget: 100
        * evaluate(model, stream, "GG", stages=[len(stream)], show_progress=False, outputs="all").average_accuracy
        for budget, model in zip(training.budgets, models)
    }
    seconds["grading"] = environment.clock() - begin
    for wanted in trial.wanted:
        yield RowResult(wanted, seed, {"accuracy %": {str(s): value for s, value in graded.items()}}, seconds=seconds)


def _learn_the_others(models: list[SupSup], stream: Stream, environment: Environment) -> None:
    if models[0].recipe.stepwise.transfer == "none":
        for model in models:
            model.learn_many(stream, cluster=environment.cluster)
        return
    with progress.bar("learning with transfer", len(stream) * len(models)) as advance:
        for task in stream:
            learn_with_models(models, task, advance)
