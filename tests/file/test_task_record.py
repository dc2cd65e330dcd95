"""A task's record: every part comes back as it was, and nothing in it is trusted."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save

from supsup import Inference, Recipe, SupSup, SupSupError, load, nets
from supsup.data.inputs import Inputs
from supsup.data.task import NO_INFO, TaskInfo
from supsup.file import limits
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import (
    INFO,
    NETWORK,
    LearnedTask,
    describe_network,
    holds_tensors,
    info_from_text,
    info_to_text,
    metadata,
    network_description,
    pack_task,
    pack_tasks,
    tensors_from_bytes,
    tensors_to_bytes,
    with_metadata,
)
from supsup.model.state import state_of
from supsup.runtime.errors import Damaged


def described(
    seed: int, weights: str, pretrained: bool, architecture: dict[str, Any] | None, image_shape: list[int] | None
) -> str:
    """The description of a network in a file with such a header."""
    header = Header(seed, weights, {}, architecture, {}, {}, {}, image_shape, {}, "", "", pretrained)
    return describe_network(header)


ABOUT = described(3, "abc", False, {"name": "Größe", "arguments": {"widths": [5, 4]}}, [1, 28, 28])
NUMBERS = st.floats(-(2.0**90), 2.0**90, width=32)


@given(
    st.lists(st.one_of(st.text("aé→ 1", max_size=4), st.integers(-9, 9), st.booleans()), min_size=2, max_size=6),
    st.lists(NUMBERS, min_size=1, max_size=4),
    st.booleans(),
)
def test_task_info_comes_back_bit_for_bit(labels: list[Any], numbers: list[float], last: bool) -> None:
    names = tuple({(type(label), label): label for label in labels}.values())
    gain = torch.tensor(numbers)
    inputs = Inputs(gain, -gain, last) if len(numbers) > 1 else Inputs(gain[0], gain[0])
    own = TaskInfo(names, inputs, {"optimiser": "adam", "learning_rate": 1e-3, "epochs": None}, False, inputs)
    found = info_from_text(info_to_text(own, len(names)), len(names), [len(numbers), 2, 2])
    assert found.names == names
    assert [*map(type, found.names or ())] == [*map(type, names)]
    assert found.inputs is not None
    assert found.inputs.key == inputs.key
    assert (found.inputs.gain.shape, found.inputs.channels_last) == (inputs.gain.shape, inputs.channels_last)
    assert found.recipe == own.recipe
    assert found.normalisation is not None
    assert found.normalisation.key == inputs.key
    assert found.normalisation.gain.shape == inputs.gain.shape


def test_every_field_of_task_info_is_written() -> None:
    """A field that is left out would be lost with the next save."""
    full = TaskInfo(("a", "b"), Inputs(), {"steps": 3}, True, Inputs())
    found = info_from_text(info_to_text(full, 2), 2, [1, 4, 4])
    for field in fields(TaskInfo):
        written, default = getattr(full, field.name), getattr(NO_INFO, field.name)
        assert written != default, f"give {field.name} a value here"
        assert getattr(found, field.name) != default


def test_no_task_info_takes_no_byte() -> None:
    assert info_to_text(NO_INFO, 3) == ""
    assert info_from_text(None, 3, None) is NO_INFO


GOOD = json.loads(info_to_text(TaskInfo(("a", "b"), Inputs(torch.ones(3), torch.zeros(3))), 2))


@pytest.mark.parametrize(
    "values",
    [
        [],
        "x",
        3,
        {"names": "ab"},
        {"normalisation": {}},
        {"normalisation": ["AAAAAA=="]},
        {"normalisation": ["AAAAAA==", 1]},
        {"normalisation": [["AAAAAAAAAAA="], ["AAAAAAAAAAA="]]},
        {"names": ["a"]},
        {"names": ["a", "a"]},
        {"names": ["a", None]},
        {"names": ["a", 1.5]},
        {"names": ["a", {"b": 1}]},
        {"names": ["a", "b" * 2000]},
        {"names": [["a"], [[[[[["deep"]]]]]]]},
        {"names": [1, 10**30]},
        {"inputs": []},
        {"inputs": {}},
        {"inputs": GOOD["inputs"] | {"gain": 3}},
        {"inputs": GOOD["inputs"] | {"gain": "AAAA"}},
        {"inputs": GOOD["inputs"] | {"gain": "not base64 at all"}},
        {"inputs": GOOD["inputs"] | {"gain": ["AACAPwAAgD8="]}},
        {"inputs": GOOD["inputs"] | {"gain": ["AADAfwAAwH8AAMB/"]}},  # not a number
        {"inputs": GOOD["inputs"] | {"gain": [], "offset": []}},
        {"inputs": GOOD["inputs"] | {"tokens": 1}},
        {"inputs": GOOD["inputs"] | {"channels_last": None}},
        {"recipe": 3},
        {"recipe": {"steps": 10**12}},
        {"recipe": {"steps": {"a": 1}}},
    ],
)
def test_what_cannot_be_is_refused(values: Any) -> None:
    with pytest.raises(SupSupError):
        info_from_text(json.dumps(values), 2, [3, 4, 4])


def test_limits() -> None:
    with pytest.raises(Damaged, match="characters"):
        info_from_text(" " * (limits.LONGEST_INFO + 1), 2, None)
    with pytest.raises(Damaged, match="cannot be read"):
        info_from_text("[" * 100_000, 2, None)
    many = tuple(f"{'x' * 900}{number}" for number in range(6000))
    with pytest.raises(SupSupError, match="shorter names"):
        info_to_text(TaskInfo(many), len(many))


def test_the_info_stays_when_the_network_is_described_anew() -> None:
    bare = tensors_to_bytes({"numbers": torch.arange(3.0)})
    extras = with_metadata(with_metadata(bare, INFO, "{}"), NETWORK, '{"seed":1}')
    extras = with_metadata(extras, NETWORK, '{"seed":2}')
    assert metadata(extras, INFO) == "{}"
    assert network_description(extras) == {"seed": 2}
    assert torch.equal(tensors_from_bytes(extras, "extras")["numbers"], torch.arange(3.0))
    assert metadata(b"", INFO) is None


def test_a_task_with_other_info_is_damaged(tmp_path: Path) -> None:
    """The checksum of a task covers what belongs to it."""
    model = SupSup(nets.FullyConnected((4, 8, 3)), recipe=Recipe(steps=1), device="cpu")
    model.learn((torch.rand(6, 4), ["left", "right"] * 3), task="t")
    path = tmp_path / "m"
    model.save(path)
    assert load(path, device="cpu").task_info("t").names == ("left", "right")
    content = path.read_bytes()
    assert content.count(b"right") == 1
    path.write_bytes(content.replace(b"right", b"wrong"))
    with pytest.raises(SupSupError, match="'t' is damaged"):
        load(path, device="cpu")


def test_a_model_without_task_info_has_the_bytes_it_had(tmp_path: Path) -> None:
    how = Inference("one-shot")  # tasks leave nothing to be found by
    model = SupSup(nets.FullyConnected((4, 8, 3)), recipe=Recipe(steps=1), inference=how, device="cpu")
    with patch.object(TaskInfo, "of", lambda *_: NO_INFO):
        model.learn((torch.rand(6, 4), [0, 1] * 3), task="t", normalise=False)
    model.save(tmp_path / "m")
    with ModelFile(tmp_path / "m") as file:
        (record,) = file.records()
    assert metadata(record.extras, INFO) is None
    assert json.loads(record.extras[8:])["__metadata__"].keys() == {"network"}


def test_numbers_for_channels_need_images_that_have_channels() -> None:
    """A file may claim that its images have no sides at all."""
    text = info_to_text(TaskInfo(inputs=Inputs(torch.ones(3), torch.zeros(3))), 2)
    assert info_from_text(text, 2, [3, 8, 8]).inputs is not None
    for shape in (None, [], [1, 8, 8]):
        with pytest.raises(Damaged, match="normalisation"):
            info_from_text(text, 2, shape)


def test_tensors_come_back_as_they_were() -> None:
    tensors = {"größe": torch.randn(3, 5), "none": torch.empty(0, 7), "one": torch.tensor(3)}
    extras = with_metadata(save(tensors), NETWORK, ABOUT)
    found = load_tensors(extras)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert holds_tensors(extras)
    about = network_description(extras)
    assert about is not None
    assert (about["seed"], about["weights"], about["image_shape"]) == (3, "abc", [1, 28, 28])
    assert about["architecture"]["name"] == "Größe"


def test_a_network_description_alone_and_a_newer_one() -> None:
    alone = with_metadata(b"", NETWORK, ABOUT)
    assert not holds_tensors(alone)
    assert load_tensors(alone) == {}
    newer = with_metadata(alone, NETWORK, described(4, "def", True, None, None))
    about = network_description(newer)
    assert about == {"seed": 4, "weights": "def", "pretrained": True, "architecture": None, "image_shape": None}
    assert with_metadata(newer, NETWORK, ABOUT) == alone


def test_missing_and_damaged_descriptions() -> None:
    assert network_description(b"") is None
    assert not holds_tensors(b"")
    assert network_description(save({"x": torch.ones(1)})) is None
    for garbage in (
        b"x",
        b"\xff" * 40,
        (2).to_bytes(8, "little") + b"[]",
        (50_000).to_bytes(8, "little") + b"[" * 50_000,
    ):
        assert network_description(garbage) is None if garbage != b"x" else True
        with pytest.raises(SupSupError, match="extras cannot be read"):
            holds_tensors(garbage)


def test_every_record_describes_its_network_in_few_bytes(tmp_path: Path) -> None:
    model = SupSup(nets.lenet_300_100(outputs=100), seed=5, recipe=Recipe(steps=1), inference=Inference(), device="cpu")
    model.learn((torch.randn(8, 784), torch.arange(8)), task="a", normalise=False)
    model.save(tmp_path / "m")
    with ModelFile(tmp_path / "m") as file:
        (record,) = file.records()
    about = network_description(record.extras)
    assert about is not None
    assert (about["seed"], about["weights"]) == (5, state_of(model).net.checksum)
    assert len(record.extras) < 0.01 * len(record.mask)


def test_a_task_is_packed_alone_as_among_others() -> None:
    model = SupSup(nets.FullyConnected((20, 10, 4)), device="cpu")
    ones = {key: torch.ones(shape) for key, shape in state_of(model).net.shapes.items()}
    for mask in (ones, {key: value * 0 for key, value in ones.items()}):
        state_of(model).bank.add(mask)
    tasks = [LearnedTask("all", 2, "now", {"x": torch.ones(3)}), LearnedTask("none", 3, "later")]
    header = state_of(model).header()
    together = list(pack_tasks(tasks, state_of(model).bank, header))
    for index, (task, packed) in enumerate(zip(tasks, together, strict=True)):
        assert pack_task(task, state_of(model).bank, index, header) == packed
        assert (packed.name, packed.classes, packed.created) == (task.name, task.classes, task.learned_at)
        assert np.array_equal(packed.decoded(header, None), state_of(model).bank.packed(index).numpy())
    assert tensors_from_bytes(together[0].extras, "extras")["x"].tolist() == [1, 1, 1]
    assert not holds_tensors(together[1].extras)


def test_tensors_that_cannot_be_read_are_damage() -> None:
    with pytest.raises(SupSupError, match="the model's state cannot be read"):
        tensors_from_bytes(b"\x00" * 40, "the model's state")
