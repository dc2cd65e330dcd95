"""Models ⇄ files: what older versions wrote is read as it was meant, and the file room knows no learner.

The files in before/ were written at commit 29e9dc7, before models were taken apart into a state, a task table and a
face, with the entropy coder installed; expected.json holds what those models said of themselves then.
"""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

import supsup
from supsup import HopSupSup, SupSup, SupSupError, UnitRecipe, load, nets
from supsup.file import codec, convert
from supsup.file.convert import settings_of_a_file
from supsup.file.format import Header
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import LearnedTask
from supsup.masks.frozen import FrozenNet
from supsup.model.state import state_of
from supsup.model.task_table import TaskTable

BEFORE = Path(__file__).parent / "before"
EXPECTED: dict[str, dict[str, Any]] = json.loads((BEFORE / "expected.json").read_text())
needs_coder = pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")


def waves(count: int, shift: float) -> Tensor:
    """The images that the models learned and answered: no generator whose numbers may change."""
    grid = torch.arange(count * 16, dtype=torch.float64).view(count, 16)
    return torch.sin(grid * (0.37 + shift) + shift).float()


def own_module() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def check_facts(model: SupSup | HopSupSup, expected: dict[str, Any]) -> None:
    assert [[name, model.classes(name), model.learned_at(name)] for name in model.tasks] == expected["tasks"]
    assert (model.seed, model.notes, model.created) == (expected["seed"], expected["notes"], expected["created"])
    assert list(model.image_shape or ()) == expected["image_shape"]
    assert model.recipe == type(model.recipe)(**expected["recipe"])


def check_answers(model: SupSup | HopSupSup, x: Tensor, expected: dict[str, Any]) -> None:
    """Answers were then over all outputs, also those that stand for no class."""
    answer = model.predict(x, outputs="all") if isinstance(model, SupSup) else model.predict(x)
    assert (answer.labels.tolist(), answer.tasks) == (expected["labels"], expected["tasks"])
    if isinstance(model, SupSup):
        assert torch.allclose(answer.confidence, torch.tensor(expected["confidence"]), atol=1e-5)


def check_headers(old: Header, new: Header) -> None:
    """The same but for the version that wrote them; a recipe may have got further settings since."""
    assert old.recipe.items() <= new.recipe.items()
    assert replace(old, library="", recipe={}) == replace(new, library="", recipe={})


@needs_coder
@pytest.mark.parametrize(("name", "net"), [("model", None), ("alike", None), ("own", own_module)])
def test_a_model_file_from_before_is_the_same_model(name: str, net: Any) -> None:
    """Every mask bit for bit: plain, entropy coded, coded against their mean, with and without statistics."""
    expected = EXPECTED[name]
    model = supsup.load(BEFORE / f"{name}.file", net and net(), device="cpu")
    check_facts(model, expected)
    assert model.inference == type(model.inference)(**expected["inference"])
    assert model.new_task_rule == type(model.new_task_rule)(**expected["allocation"])
    for task, tensors in expected["masks"].items():
        for weight, bits in model.mask(task).items():
            assert "".join(map(str, bits.int().flatten().tolist())) == tensors[weight], (task, weight)
    for task, statistics in expected.get("statistics", {}).items():
        for buffer, values in statistics.items():
            assert torch.equal(model.subnetwork(task)[buffer], torch.tensor(values)), (task, buffer)
    extras = {task: {key: value.tolist() for key, value in tensors.items()} for task, tensors in model.extras.items()}
    assert extras == expected.get("extras", {})
    check_answers(model, waves(6, 0.25), expected["answers"])
    for task, labels in expected["known"].items():
        assert model.predict(waves(6, 0.25), task=task, outputs="all").labels.tolist() == labels


@needs_coder
def test_the_files_from_before_hold_every_way_of_coding() -> None:
    for name in ("model", "alike"):
        with ModelFile(BEFORE / f"{name}.file") as file:
            assert [record.codec for record in file.records()] == EXPECTED[name]["codecs"]
    assert {*EXPECTED["model"]["codecs"], *EXPECTED["alike"]["codecs"]} == {"bits", "ans-1", "mean-1+ans-1"}


@needs_coder
@pytest.mark.parametrize("name", ["model", "own"])
def test_what_is_written_now_is_what_was_written_before(name: str, tmp_path: Path) -> None:
    """Older versions must be able to read it: the same facts, bits and tensors, record by record.

    What is new is metadata beside the tensors, which says what the network was, and which the checksum covers.
    """
    before = BEFORE / f"{name}.file"
    supsup.load(before, own_module() if name == "own" else None, device="cpu").save(tmp_path / "again")
    with ModelFile(before) as old, ModelFile(tmp_path / "again") as new:
        check_headers(old.header, new.header)
        first, second = (list(file.records()) for file in (old, new))
    for one, other in zip(first, second, strict=True):
        same = other._replace(position=one.position, checksum=one.checksum, extras=one.extras)
        assert one == same, "all but their positions: one task was forgotten"
        mine, theirs = ({} if not each.extras else tensors_of(each.extras) for each in (one, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_a_hopfield_file_from_before_is_the_same_model(tmp_path: Path) -> None:
    expected = EXPECTED["hop"]
    model = supsup.load(BEFORE / "hop.file", device="cpu")
    assert isinstance(model, HopSupSup)
    check_facts(model, expected)
    assert model.rule == expected["rule"]
    assert model.recovery == type(model.recovery)(**expected["recovery"])
    for tensors, values in ((model.psi, expected["psi"]), (model.mean, expected["mean"])):
        assert all(torch.equal(mine, torch.tensor(theirs)) for mine, theirs in zip(tensors, values, strict=True))
    check_answers(model, waves(12, 0.5), expected["answers"])
    model.save(tmp_path / "again")
    with ModelFile(BEFORE / "hop.file") as old, ModelFile(tmp_path / "again") as new:
        check_headers(old.header, new.header)
        assert old.state() == new.state()


def test_the_file_room_knows_no_learner() -> None:
    """Otherwise a server or a cluster could not read a file without all of training."""
    for path in Path(convert.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("supsup.model.supsup", "supsup.model.state", "supsup.hopfield.learner"), (
                    path.name
                )


def test_blocks_are_what_a_bank_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_BLOCK", 3)
    model = SupSup(nets.FullyConnected((20, 10, 4)), device="cpu")
    for number in range(7):
        chance = torch.Generator().manual_seed(number)
        mask = {key: torch.rand(shape, generator=chance) < 0.3 for key, shape in state_of(model).net.shapes.items()}
        state_of(model).add({f"task-{number}": 4}, state_of(model).bank.pack(mask)[:, None], {}, (20,))
    model.save(tmp_path / "m")
    with ModelFile(tmp_path / "m") as file:
        blocks = list(convert.blocks(file, state_of(model).net))
    assert [len(block.tasks) for block in blocks] == [3, 3, 1]
    assert torch.equal(
        torch.cat([block.packed for block in blocks], 1), torch.cat(list(state_of(model).bank.blocks()), 1)
    )
    assert state_of(load(tmp_path / "m", device="cpu")).tasks.unsaved() == []


def test_a_task_is_packed_alone_as_among_others() -> None:
    model = SupSup(nets.FullyConnected((20, 10, 4)), device="cpu")
    ones = {key: torch.ones(shape) for key, shape in state_of(model).net.shapes.items()}
    for mask in (ones, {key: value * 0 for key, value in ones.items()}):
        state_of(model).bank.add(mask)
    tasks = TaskTable([LearnedTask("all", 2, "now", {"x": torch.ones(3)}), LearnedTask("none", 3, "later")])
    together = list(convert.packed_tasks(tasks, state_of(model).bank))
    for index, (task, packed) in enumerate(zip(tasks, together, strict=True)):
        alone = convert.packed_task(task, state_of(model).bank, index)
        assert np.array_equal(alone.packed, packed.packed)
        assert (alone.name, alone.classes, alone.created, alone.extras) == (
            packed.name, packed.classes, packed.created, packed.extras,
        )  # fmt: skip
    assert convert.from_bytes(together[0].extras, "extras")["x"].tolist() == [1, 1, 1]
    assert together[1].extras == b""


def test_settings_of_a_later_version_are_named() -> None:
    for error in (TypeError("no such field"), KeyError("rule")):
        with pytest.raises(SupSupError, match="not known to this version"), convert.settings_of_a_file():
            raise error


def test_tensors_that_cannot_be_read_are_damage() -> None:
    with pytest.raises(SupSupError, match="the model's state cannot be read"):
        convert.from_bytes(b"\x00" * 40, "the model's state")


def test_another_network_is_refused() -> None:
    net = FrozenNet(nets.FullyConnected((20, 10, 4)), 0, torch.device("cpu"))
    other = FrozenNet(nets.FullyConnected((20, 10, 4)), 1, torch.device("cpu"))
    header = convert.header_of(net, {}, None, {}, "now")
    convert.check_weights(net, header)
    with pytest.raises(SupSupError, match="checksum"):
        convert.check_weights(other, header)
    assert convert.image_shape_of(header) is None
    assert isinstance(convert.network_of(header), nets.FullyConnected)


def test_settings_of_a_stranger_do_not_speak_to_the_terminal() -> None:
    with pytest.raises(SupSupError, match="not known to this version") as refused, settings_of_a_file():
        UnitRecipe(**{"\x1b[2J": 1})
    assert "\x1b" not in str(refused.value)
