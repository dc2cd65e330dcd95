"""The state of a model: four operations change it, and its file follows."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.file.header import Header
from supsup.file.task_record import LearnedTask, TaskRecord
from supsup.model.state import ModelState, state_of


def model_with(*names: str) -> SupSup:
    model = SupSup(nets.FullyConnected((20, 10, 4)), recipe=Recipe(steps=1), device="cpu")
    for name in names:
        add(state_of(model), name)
    return model


def add(state: ModelState, name: str) -> None:
    chance = torch.Generator().manual_seed(len(state.tasks))
    mask = {key: torch.rand(shape, generator=chance) < 0.5 for key, shape in state.net.shapes.items()}
    state.add([LearnedTask(name, 3)], state.bank.pack(mask)[:, None], {}, (20,))


def masks(state: ModelState) -> dict[str, bytes]:
    return {task.name: state.bank.packed(index).numpy().tobytes() for index, task in enumerate(state.tasks)}


def test_bank_and_table_keep_the_same_indices() -> None:
    state = state_of(model_with("a", "b", "c"))
    before = masks(state)
    state.remove("a")
    add(state, "d")
    state.replace("c", state.bank.mask(state.tasks.index("b")))
    after = masks(state)
    assert list(after) == ["b", "c", "d"]
    assert after["b"] == after["c"] == before["b"]
    with pytest.raises(SupSupError, match="learned already"):
        add(state, "b")
    assert len(state.bank) == 3, "a mask without a task would shift all later ones"


def test_a_commit_writes_what_has_changed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.supsup"
    model_with("a", "b").save(path)
    with supsup.load(path, in_place=True, device="cpu") as model:
        state = state_of(model)
        assert state.file is not None
        assert not state.tasks.unsaved()
        written: list[str] = []
        put = state.file.put

        def watched(tasks: Iterable[TaskRecord], header: Header) -> None:
            listed = list(tasks)
            written.extend(task.name for task in listed)
            put(listed, header)

        monkeypatch.setattr(state.file, "put", watched)
        add(state, "c")
        state.replace("a", state.bank.mask(1))
        state.commit()
        state.commit()
        assert written == ["a", "c"]
        model.extras["b"] = {"x": torch.ones(2)}
        model.save()
        assert written == ["a", "c", "b"], "extras set after a task was learned must reach its file"
    again = supsup.load(path, device="cpu")
    assert masks(state_of(again)) == masks(state_of(model))
    assert torch.equal(again.extras["b"]["x"], torch.ones(2))


def test_settings_changed_later_are_those_that_are_written(tmp_path: Path) -> None:
    path = tmp_path / "m.supsup"
    model_with("a").save(path)
    with supsup.load(path, in_place=True, device="cpu") as model:
        model.recipe = Recipe(steps=7)
        model.notes["why"] = "to see"
    again = supsup.load(path, device="cpu")
    assert (again.recipe, again.notes) == (Recipe(steps=7), {"why": "to see"})
    assert again.created == model.created


def test_other_rooms_cannot_write_through_the_face() -> None:
    """What a model is made of changes in one place only."""
    for name in ("put", "take_in", "replace_mask", "commit", "first_scores", "switched"):
        assert not hasattr(SupSup, name), name


def test_a_model_in_no_file_has_nowhere_to_save_to() -> None:
    model = model_with("a")
    state_of(model).commit()
    model.close()
    with pytest.raises(SupSupError, match="has no file; give a path"):
        model.save()
