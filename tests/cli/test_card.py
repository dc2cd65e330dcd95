"""A model card says what the file holds, and nothing in the file can make it say more."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import supsup
from supsup import SupSup, SupSupError, nets
from supsup.cli import app
from supsup.cli.inspect import record_outcome
from supsup.data.task import TaskInfo
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    model = SupSup(nets.FullyConnected((5, 4)), device="cpu")
    model.notes["data"] = 'pictures: "all" of them'
    info = TaskInfo(names=("razorbill", "jay"), recipe={"optimiser": "adam", "steps": 300})
    tasks = [LearnedTask("birds", 2, info=info), LearnedTask("x | <b>*y*", 2)]
    state_of(model).add(tasks, torch.zeros(3, 2, dtype=torch.uint8), {}, (5,))
    record_outcome(model, "birds", 120, 0.875)
    model.save(tmp_path / "birds.supsup")
    return tmp_path / "birds.supsup"


def test_a_card_has_tasks_classes_accuracy_data_recipe_and_size(birds: Path) -> None:
    assert "2 tasks" in run("card", birds, "--licence", "mit").stdout
    text = birds.with_suffix(".md").read_text()
    _, metadata, body = text.split("---\n", 2)
    values = dict(line.split(": ", 1) for line in metadata.splitlines() if re.match(r"\w+: ", line))
    assert json.loads(values["license"]) == "mit"
    assert json.loads(values["datasets"]) == ['pictures: "all" of them']
    assert "accuracy, value: 0.8750" in metadata
    for part in ("| birds | 2: razorbill, jay | 120 | 87.5 |", "optimiser adam steps 300", "20 frozen weights"):
        assert part in body
    assert f"{birds.stat().st_size:,} bytes" in body
    assert r"| x \| \<b\>\*y\* | 2 | – | – |" in body


def test_a_card_replaces_nothing_unasked(birds: Path) -> None:
    birds.with_suffix(".md").write_text("mine")
    with pytest.raises(SupSupError, match="--yes"):
        run("card", birds)
    assert birds.with_suffix(".md").read_text() == "mine"
    assert run("card", birds, "-").stdout.startswith("---\nlibrary_name: supsup\n")
    run("card", birds, "--yes")
    assert birds.with_suffix(".md").read_text() == run("card", birds, "-").stdout


def test_what_was_measured_stays_with_its_task(birds: Path) -> None:
    """Also through a forgetting, and through a copy."""
    with supsup.load(birds, in_place=True) as model:
        model.forget("x | <b>*y*")
        model.save(birds.with_name("copy.supsup"))
    for path in (birds, birds.with_name("copy.supsup")):
        (only,) = json.loads(run("tasks", path, "--json").stdout)
        assert (only["task"], only["examples"], only["accuracy"]) == ("birds", 120, 0.875)
