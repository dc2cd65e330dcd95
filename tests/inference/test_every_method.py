"""Every method of the table goes through every place where a method can be chosen.

A method that is added and misses one of them fails here: in the library, on the command line, in the server's scores.
"""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from supsup import Inference, Recipe, SupSup, data, evaluate, nets
from supsup.cli import app
from supsup.data import Part, Task
from supsup.inference.methods import METHODS
from supsup.serve.requests import PredictRequest
from supsup.serve.service import ModelService

HOWS = [Inference(name) for name in METHODS] + [
    Inference("one-shot", coordinates=64),
    Inference("exhaustive", objective="energy"),
    Inference("exhaustive", objective="mixture"),
]
IDS = [f"{how.method}{how.coordinates or ''}{how.objective if how.objective != 'H' else ''}" for how in HOWS]
every_method = pytest.mark.parametrize("how", HOWS, ids=IDS)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(data.split(data.digits(), 2, tasks=4))


@pytest.fixture(scope="module")
def model(tasks: list[Task]) -> SupSup:
    found = SupSup(nets.FullyConnected((784, 60, 20)), recipe=Recipe(steps=30), device="cpu")
    found.learn_many(tasks, show_progress=False)
    return found


@pytest.fixture(scope="module")
def images(tasks: list[Task]) -> Tensor:
    return torch.cat([task.test.tensors()[0][:6] for task in tasks])


def table(seed: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(90) % 3
    centres = 4 * torch.randn(3, 5, generator=generator)
    return scale * (centres[labels] + torch.randn(90, 5, generator=generator)), labels


@pytest.fixture(scope="module")
def two_groups() -> SupSup:
    """Tasks whose inputs are normalised in two ways."""
    found = SupSup(nets.FullyConnected((5, 40, 8)), recipe=Recipe(steps=30), device="cpu")
    for name, seed, scale in (("a", 1, 1.0), ("b", 2, 1.0), ("c", 3, 1000.0)):
        found.learn(table(seed, scale), task=name, normalise="own")
    return found


def inferred(model: SupSup, x: Tensor, how: Inference, **more: object) -> list[str]:
    settings = {name: getattr(how, name) for name in ("objective", "coordinates")} if takes(how) else {}
    found = model.infer_task(x, method=how.method, **settings, **more)  # type: ignore[call-overload]
    return [found] if isinstance(found, str) else list(found)


def takes(how: Inference) -> bool:
    return bool(METHODS[how.method].settings)


@every_method
def test_predict_infer_task_and_infer_batches_agree(model: SupSup, images: Tensor, how: Inference) -> None:
    answer = model.predict(images, inference=how)
    assert set(answer.tasks) <= set(model.tasks)
    assert answer.method_used.startswith(("features", how.method) if METHODS[how.method].needs_profiles else how.method)
    assert inferred(model, images, how) == answer.tasks
    sure = answer.task_confidence
    assert bool(sure.isnan().all()) if how.coordinates else bool(((sure >= 0) & (sure <= 1)).all())
    other = model.to("cpu")
    other.inference = how
    batches = images.view(4, 6, *images.shape[1:])
    assert other.infer_batches(batches) == [inferred(model, batch, how, per="batch")[0] for batch in batches]
    assert other.predict(images).tasks == answer.tasks


@every_method
def test_only_the_tasks_among_which_to_choose_are_candidates(model: SupSup, images: Tensor, how: Inference) -> None:
    among = [model.tasks[3], model.tasks[1]]
    answer = model.predict(images, among=among, inference=how)
    assert set(answer.tasks) <= set(among)
    assert inferred(model, images, how, among=[*among, among[0]]) == answer.tasks, "a name given twice counts once"
    alone = model.predict(images, among=among[:1], inference=how)
    assert (set(alone.tasks), alone.method_used) == ({among[0]}, "the only task")
    assert bool((alone.task_confidence == 1).all())


@every_method
def test_tasks_that_normalise_inputs_differently(two_groups: SupSup, how: Inference) -> None:
    x = torch.cat([table(1, 1.0)[0][:9], table(3, 1000.0)[0][:9]])
    answer = two_groups.predict(x, inference=how)
    assert set(answer.tasks) <= {"a", "b", "c"}
    assert two_groups.task_scores(x, inference=how).shape == (18, 3)
    assert set(two_groups.predict(x, among=["c", "a"], inference=how).tasks) <= {"a", "c"}


@every_method
def test_images_of_no_task_are_rejected(model: SupSup, images: Tensor, how: Inference) -> None:
    noise = torch.randn(10, *images.shape[1:], generator=torch.Generator().manual_seed(0))
    answer = model.predict(torch.cat([images, noise]), inference=how, unknown=True)
    assert answer.unknown is not None
    assert bool(answer.unknown[-10:].all())
    assert not bool(answer.unknown[:-10].all())


@every_method
def test_scores_of_the_first_pass(model: SupSup, images: Tensor, how: Inference) -> None:
    """In the order of the names given; a method that decides in one pass takes the task that scores highest."""
    scores = model.task_scores(images, inference=how)
    assert scores.shape == (len(images), 4)
    assert bool(scores.isfinite().all())
    several_passes = ("auto", "binary", "gamma", "descent")
    if how.method not in several_passes and how.coordinates is None:
        best = [model.tasks[i] for i in scores.argmax(1).tolist()]
        assert best == model.predict(images, inference=how).tasks, "decides otherwise? add it to several_passes"
    among = [model.tasks[i] for i in (2, 0, 3, 1)]
    torch.testing.assert_close(model.task_scores(images, among=among, inference=how), scores[:, [2, 0, 3, 1]])
    assert model.task_scores(images[:1], among=among[:2], inference=how).shape == (1, 2)


@every_method
def test_evaluate(model: SupSup, tasks: list[Task], how: Inference) -> None:
    other = model.to("cpu")
    other.inference = how
    parts = [task.test.tensors() for task in tasks]
    few = [replace(task, test=Part(x[:8], y[:8])) for task, (x, y) in zip(tasks, parts)]
    for protocol in ("paper", "strict"):
        assert evaluate(other, few, "GNu", protocol=protocol, show_progress=False).task_accuracy > 0.3


@pytest.mark.parametrize("method", METHODS)
def test_the_server_s_scores(model: SupSup, images: Tensor, method: str, tmp_path: Path) -> None:
    model.save(tmp_path / "m.supsup")
    service = ModelService.open(tmp_path / "m.supsup", device="cpu", read_only=True, method=method)
    (answer,) = service.predict([PredictRequest(images[:2].numpy(), scores=True)])
    assert not isinstance(answer, Exception), answer
    shown = json.loads(json.dumps(answer))["answers"][0]
    assert shown["task"] in model.tasks
    assert len(shown["scores"]["values"]) == 4
    service.close()


@pytest.mark.parametrize("method", METHODS)
def test_the_command_line(model: SupSup, images: Tensor, method: str, tmp_path: Path) -> None:
    model.save(tmp_path / "m.supsup")
    np.savez(tmp_path / "x.npz", x=images[:3].numpy())
    arguments = ["predict", tmp_path / "m.supsup", tmp_path / "x.npz", "--method", method, "--json", "--device", "cpu"]
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    found = [json.loads(line)["task"] for line in done.output.splitlines()]
    assert found == model.predict(images[:3], inference=Inference(method)).tasks


@pytest.mark.parametrize("command", ["predict", "evaluate", "serve"])
def test_commands_offer_the_methods_of_the_table(command: str) -> None:
    done = CliRunner().invoke(app, [command, "m.supsup", "x", "--method", "guess"], env={"COLUMNS": "200"})
    assert done.exit_code != 0
    assert all(name in done.output for name in METHODS), done.output


def test_settings_are_those_that_a_method_takes() -> None:
    """What a row of the table says is what `Inference` accepts."""
    for name, method in METHODS.items():
        for flag, settings in (
            ("layers" in method.settings, {"layers": "first"}),
            ("steps" in method.settings, {"steps": 3}),
            ("coordinates" in method.settings, {"coordinates": 8}),
            ("energy" in method.objectives, {"objective": "energy"}),
        ):
            try:
                Inference(name, **settings)
            except ValueError:
                assert not flag, (name, settings)
            else:
                assert flag, (name, settings)
        defaults: dict[str, Any] = {field.name: field.default for field in fields(Inference)[1:]}
        Inference(name, **defaults)
