"""Files of every earlier version are read as they were meant, and what is written now is what was written then.

The files in before/ and the commits that wrote them; expected.json holds what those models said of themselves then.

    model, alike, own  29e9dc7  format 1: plain, entropy- and mean-coded masks, user tensors, statistics; no metadata
    hop                29e9dc7  format 2: a HopSupSup model
    named              250c059  format 1 with metadata: which network it is, class names, how inputs are prepared
    profiled           7f2363d  … with the first profiles of tasks (int8 means, directions for each class)
    rotated, chosen    0c0752c  … with today's profiles; tasks learned in all rotations, recipes chosen by `AutoRecipe`
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

import supsup
from supsup import HopSupSup, SupSup
from supsup.file import codec
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile

BEFORE = Path(__file__).parent / "before"
EXPECTED: dict[str, dict[str, Any]] = json.loads((BEFORE / "expected.json").read_text())
needs_coder = pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")


def waves(count: int, shift: float) -> Tensor:
    """The images that the models learned and answered: no generator whose numbers may change."""
    grid = torch.arange(count * 16, dtype=torch.float64).view(count, 16)
    return torch.sin(grid * (0.37 + shift) + shift).float()


def own_module() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def check_model(model: SupSup | HopSupSup, expected: dict[str, Any]) -> None:
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
    check_model(model, expected)
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
    check_model(model, expected)
    assert model.rule == expected["rule"]
    assert model.recovery == type(model.recovery)(**expected["recovery"])
    for tensors, values in ((model.psi, expected["psi"]), (model.mean, expected["mean"])):
        assert all(torch.equal(mine, torch.tensor(theirs)) for mine, theirs in zip(tensors, values, strict=True))
    check_answers(model, waves(12, 0.5), expected["answers"])
    model.save(tmp_path / "again")
    with ModelFile(BEFORE / "hop.file") as old, ModelFile(tmp_path / "again") as new:
        check_headers(old.header, new.header)
        assert old.state() == new.state()


LATER = ("named", "profiled", "rotated", "chosen")


@pytest.mark.parametrize("name", LATER)
def test_a_file_with_metadata_is_the_same_model(name: str) -> None:
    expected = EXPECTED[name]
    model = supsup.load(BEFORE / f"{name}.file", device="cpu")
    assert [[task, model.classes(task), model.learned_at(task)] for task in model.tasks] == expected["tasks"]
    assert (model.seed, model.created) == (expected["seed"], expected["created"])
    x = waves(6, 0.25) * 3
    for task in model.tasks:
        info = model.task_info(task)
        assert list(info.names or ()) == expected["names"][task]
        recipe = None if info.recipe is None else dict(info.recipe)
        assert recipe == expected["recipe"][task]
        assert info.rotated == (name == "rotated")
        bits = {weight: "".join(map(str, kept.int().flatten().tolist())) for weight, kept in model.mask(task).items()}
        assert bits == expected["masks"][task]
        images = x.view(6, 1, 4, 4) if name == "rotated" else x
        assert list(model.predict(images, task=task).names) == expected["known"][task]
    extras = {task: {key: value.tolist() for key, value in tensors.items()} for task, tensors in model.extras.items()}
    assert extras == expected["extras"]


@pytest.mark.parametrize("name", LATER)
def test_a_record_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    """The format has not changed since: names, times, checksums, metadata and tensors of every task."""
    supsup.load(BEFORE / f"{name}.file", device="cpu").save(tmp_path / "again")
    with ModelFile(BEFORE / f"{name}.file") as old, ModelFile(tmp_path / "again") as new:
        assert list(old.records()) == list(new.records())
