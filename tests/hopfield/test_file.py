"""A HopSupSup model in its file: the memory comes back bit for bit, its size stays, and damage is noticed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import supsup
from supsup import HopSupSup, Recovery, SupSup, SupSupError, UnitRecipe, nets
from supsup.data import Task
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair, verify

Hop = tuple[HopSupSup, list[Task], list[list[Tensor]]]


def stored(tasks: int, rule: str = "storkey") -> HopSupSup:
    """A model with random masks in its memory."""
    model = HopSupSup(nets.HopMLP((20, 60, 50, 40)), 7, rule=rule, recipe=UnitRecipe(epochs=3), device="cpu")
    chance = torch.Generator().manual_seed(0)
    for number in range(tasks):
        units = [torch.rand(width, generator=chance) < 0.5 for width in (60, 50)]
        model.store(f"Aufgabe {number} ✓", 2, units, (20,))
    return model


def test_answers_from_the_file_are_those_of_the_model(hop: Hop, tmp_path: Path) -> None:
    model, tasks, _ = hop
    model.save(tmp_path / "m.supsup")
    again = supsup.load(tmp_path / "m.supsup", device="cpu")
    x = tasks[1].test.tensors()[0]
    one, two = model.predict(x), again.predict(x)
    assert one.tasks == two.tasks
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.confidence, two.confidence)


def test_everything_comes_back(tmp_path: Path) -> None:
    model = stored(3, "hebb")
    model.recovery = Recovery(procedure="paper", starts=3)
    model.notes = {"data": "noise"}
    model.save(tmp_path / "m.supsup")
    again = HopSupSup.load(tmp_path / "m.supsup", device="cpu")
    for mine, theirs in zip([*model.psi, *model.mean], [*again.psi, *again.mean]):
        assert torch.equal(mine, theirs)
    for name in ("tasks", "seed", "rule", "recipe", "recovery", "notes", "created", "image_shape"):
        assert getattr(again, name) == getattr(model, name), name
    assert [again.learned_at(task) for task in again.tasks] == [model.learned_at(task) for task in model.tasks]
    stored(0).save(tmp_path / "m.supsup")  # over the older one
    assert supsup.load(tmp_path / "m.supsup", device="cpu").tasks == []


@pytest.mark.parametrize("notes", ["text", {"when": object()}, {1: "one"}, {"x": float("nan")}])
def test_notes_are_refused_when_they_are_given(notes: Any) -> None:
    """Not only when the model is saved, after it has learned."""
    model = stored(1)
    with pytest.raises(SupSupError, match="notes"):
        model.notes = notes
    assert model.notes == {}


def test_the_state_has_one_size_whatever_the_number_of_tasks(tmp_path: Path) -> None:
    """The point of it all; the names of the tasks are a few bytes each, beside the state."""
    states, files = set(), []
    for tasks in (0, 1, 2, 5, 8):
        path = tmp_path / f"{tasks}.supsup"
        stored(tasks).save(path)
        with ModelFile(path) as file:
            states.add(len(file.state()))
            assert list(file.records()) == []
        files.append(path.stat().st_size)
    assert len(states) == 1
    assert max(files) - min(files) <= 2 * 1024  # a page, in each copy of the header


def test_damage_to_the_memory_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.supsup"
    stored(3).save(path)
    assert verify(path).clean
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 100] ^= 1  # inside a page, not on the link at its beginning
    path.write_bytes(content)
    assert not verify(path).clean
    with pytest.raises(SupSupError, match="checksum of the model's state differs"):
        supsup.load(path, device="cpu")
    with pytest.raises(SupSupError, match="restore the file from a backup"):
        repair(path, tmp_path / "repaired.supsup")


def test_load_returns_the_kind_of_model_that_the_file_holds(tmp_path: Path) -> None:
    """Without it a user must know the kind of a file before opening it."""
    hop, plain = tmp_path / "hop.supsup", tmp_path / "plain.supsup"
    stored(2).save(hop)
    SupSup(nets.FullyConnected((20, 10, 4)), device="cpu").save(plain)
    assert type(supsup.load(plain, device="cpu")) is SupSup
    for net in (None, nets.HopMLP((20, 60, 50, 40))):
        model = supsup.load(hop, net, device="cpu")
        assert type(model) is HopSupSup
        assert model.tasks == stored(2).tasks
    with pytest.raises(SupSupError, match=r"HopSupSup model, for which there is no in_place=True"):
        supsup.load(hop, in_place=True, device="cpu")
    with pytest.raises(SupSupError, match=r"HopSupSup model, for which there is no masks='disk'"):
        supsup.load(hop, masks="disk", device="cpu")
    with pytest.raises(SupSupError, match="masks"):
        supsup.load(hop, masks="tape", device="cpu")  # type: ignore[arg-type]
    with pytest.raises(SupSupError, match="does not fit"):
        supsup.load(hop, nets.HopMLP((20, 60, 51, 40)), device="cpu")


def test_each_class_loads_its_own_kind_only(tmp_path: Path) -> None:
    hop, plain = tmp_path / "hop.supsup", tmp_path / "plain.supsup"
    stored(1).save(hop)
    SupSup(nets.FullyConnected((20, 10, 4)), device="cpu").save(plain)
    with pytest.raises(SupSupError, match=r"HopSupSup model, not a SupSup one.*supsup.load"):
        SupSup.load(hop)
    with pytest.raises(SupSupError, match=r"SupSup model, not a HopSupSup one.*supsup.load"):
        HopSupSup.load(plain)
    with ModelFile(hop, write=True) as file, pytest.raises(SupSupError, match="on its own"):
        file.compact()


def test_ordinary_models_stay_in_format_1(tmp_path: Path) -> None:
    """Files that earlier versions wrote and read are not touched by the second kind."""
    SupSup(nets.FullyConnected((20, 10, 4)), device="cpu").save(tmp_path / "plain.supsup")
    with ModelFile(tmp_path / "plain.supsup") as file:
        assert file.header.format == 1
        assert "kind" not in file.header.to_json()
