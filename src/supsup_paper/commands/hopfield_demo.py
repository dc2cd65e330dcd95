"""`supsup demo --hopfield`: classes two by two, all masks in one Hopfield memory, each recovered from images alone."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from supsup import data, nets
from supsup.data import Stream
from supsup.file.modelfile import ModelFile
from supsup.hopfield.file import KIND
from supsup.hopfield.learner import HopSupSup
from supsup.hopfield.units import UnitRecipe
from supsup.runtime.errors import SupSupError
from supsup_paper.commands.supsup_demo import DemoSettings
from supsup_paper.provenance import provenance
from supsup_paper.runs.hopfield import HopfieldResult, learn_and_recover

PROCEDURES = ("paper", "best-of")
_IMAGES = 12_000  # what a task of the paper's SplitMNIST is trained on, in one epoch; smaller tasks make several


def split_stream(settings: DemoSettings) -> Stream:
    """The classes of the data in tasks of a few."""
    if settings.unannounced:
        raise SupSupError("--hopfield needs to be told the tasks in training; leave --unannounced out")
    return data.split(data.named(settings.data, settings.data_dir), settings.classes_per_task)


def new_hopfield_model(settings: DemoSettings, stream: Stream) -> HopSupSup:
    """A network with an output for every class of the stream, that has learned nothing yet."""
    outputs = sum(task.classes for task in stream)
    inputs = math.prod(stream[0].train.shape)
    epochs = max(1, round(_IMAGES / len(stream[0].train)))
    net = nets.HopMLP((inputs, settings.units, settings.units, outputs))
    model = HopSupSup(net, settings.seed, recipe=UnitRecipe(epochs=epochs), device=settings.device)
    model.notes = {"data": settings.data, "classes per task": settings.classes_per_task}
    return model


def _check_same(model: HopSupSup, file: Path) -> None:
    """An error unless the file holds what these settings would give."""
    with ModelFile(file) as there:
        same = there.header.kind == KIND and there.header.seed == model.seed and there.header.notes == model.notes
        same = same and there.header.weights == model.net.checksum and there.header.recipe == asdict(model.recipe)
    if not same:
        raise SupSupError(
            f"{file} holds another model, which would be replaced; use another file (--model FILE), "
            "or start again with --fresh"
        )


def run_and_save(settings: DemoSettings, file: Path, figures: Path, *, fresh: bool = False) -> HopfieldResult:
    """Learn, recover, grade; the model and all figures are written to files.

    fresh  replace any model in the file; without it only one that these settings give again is replaced
    """
    stream = split_stream(settings)
    model = new_hopfield_model(settings, stream)
    if file.is_file() and not fresh:
        _check_same(model, file)
    experiment = learn_and_recover([model], stream, PROCEDURES)
    model.save(file)
    record = {
        "tasks": experiment.tasks,
        "units": settings.units,
        "masks as learned": experiment.own.summary(),
        **{name: outcome.summary() for name, outcome in experiment.recovered.items()},
        "learning seconds": round(experiment.learning_seconds, 2),
        "bytes of Ψ and μ after each task": experiment.memory_bytes,
        "made by": provenance(model.device),
    }
    figures.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return experiment
