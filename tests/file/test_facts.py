"""What belongs to a task in a file: it comes back as it was, and nothing in it is believed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup import Inference, Recipe, SupSup, SupSupError, load, nets
from supsup.data.inputs import Inputs
from supsup.data.task_info import NO_INFO, TaskInfo
from supsup.file import limits
from supsup.file import task_info as info
from supsup.file.card import card_of, text_of, with_card, with_text
from supsup.file.convert import from_bytes, to_bytes
from supsup.file.modelfile import ModelFile
from supsup.runtime.errors import Damaged

NUMBERS = st.floats(-(2.0**90), 2.0**90, width=32)


@given(
    st.lists(st.one_of(st.text("aé→ 1", max_size=4), st.integers(-9, 9), st.booleans()), min_size=2, max_size=6),
    st.lists(NUMBERS, min_size=1, max_size=4),
    st.booleans(),
)
def test_facts_come_back_bit_for_bit(labels: list[Any], numbers: list[float], last: bool) -> None:
    names = tuple({(type(label), label): label for label in labels}.values())
    gain = torch.tensor(numbers)
    inputs = Inputs(gain, -gain, last) if len(numbers) > 1 else Inputs(gain[0], gain[0])
    own = TaskInfo(names, inputs, {"optimiser": "adam", "learning_rate": 1e-3, "epochs": None}, False, inputs)
    found = info.from_text(info.to_text(own, len(names)), len(names), [len(numbers), 2, 2])
    assert found.names == names
    assert [*map(type, found.names or ())] == [*map(type, names)]
    assert found.inputs is not None
    assert found.inputs.key == inputs.key
    assert (found.inputs.gain.shape, found.inputs.channels_last) == (inputs.gain.shape, inputs.channels_last)
    assert found.recipe == own.recipe
    assert found.normalisation is not None
    assert found.normalisation.key == inputs.key
    assert found.normalisation.gain.shape == inputs.gain.shape


def test_no_facts_take_no_byte() -> None:
    assert info.to_text(NO_INFO, 3) == ""
    assert info.from_text(None, 3, None) is NO_INFO


GOOD = json.loads(info.to_text(TaskInfo(("a", "b"), Inputs(torch.ones(3), torch.zeros(3))), 2))


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
        info.from_text(json.dumps(values), 2, [3, 4, 4])


def test_limits() -> None:
    with pytest.raises(Damaged, match="characters"):
        info.from_text(" " * (limits.LONGEST_INFO + 1), 2, None)
    with pytest.raises(Damaged, match="cannot be read"):
        info.from_text("[" * 100_000, 2, None)
    many = tuple(f"{'x' * 900}{number}" for number in range(6000))
    with pytest.raises(SupSupError, match="shorter names"):
        info.to_text(TaskInfo(many), len(many))


def test_the_text_stays_when_the_card_is_written_anew() -> None:
    bare = to_bytes({"numbers": torch.arange(3.0)})
    extras = with_card(with_text(bare, "task", "{}"), '{"seed":1}')
    extras = with_card(extras, '{"seed":2}')
    assert text_of(extras, "task") == "{}"
    assert card_of(extras) == {"seed": 2}
    assert torch.equal(from_bytes(extras, "extras")["numbers"], torch.arange(3.0))
    assert text_of(b"", "task") is None
    assert with_card(b"", "x") == with_text(b"", "network", "x")


def test_a_task_with_other_facts_is_damaged(tmp_path: Path) -> None:
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


def test_a_model_without_facts_has_the_bytes_it_had(tmp_path: Path) -> None:
    how = Inference("one-shot")  # tasks leave nothing to be found by
    model = SupSup(nets.FullyConnected((4, 8, 3)), recipe=Recipe(steps=1), inference=how, device="cpu")
    model.learn((torch.rand(6, 4), [0, 1] * 3), task="t", normalise=False)
    model.save(tmp_path / "m")
    with ModelFile(tmp_path / "m") as file:
        (record,) = file.records()
    assert text_of(record.extras, info.KEY) is None
    assert json.loads(record.extras[8:])["__metadata__"].keys() == {"network"}


def test_numbers_for_channels_need_images_that_have_channels() -> None:
    """A file may claim that its images have no sides at all."""
    text = info.to_text(TaskInfo(inputs=Inputs(torch.ones(3), torch.zeros(3))), 2)
    assert info.from_text(text, 2, [3, 8, 8]).inputs is not None
    for shape in (None, [], [1, 8, 8]):
        with pytest.raises(Damaged, match="normalisation"):
            info.from_text(text, 2, shape)
