"""What each record says of its network: beside the tensors, unseen by who reads them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from supsup import Inference, Recipe, SupSup, SupSupError, nets
from supsup.file.card import card, card_of, holds_tensors, with_card
from supsup.file.modelfile import ModelFile
from supsup.model.state import state_of

ABOUT = card(3, "abc", False, {"name": "Größe", "arguments": {"widths": [5, 4]}}, [1, 28, 28])


def test_tensors_come_back_as_they_were() -> None:
    tensors = {"größe": torch.randn(3, 5), "none": torch.empty(0, 7), "one": torch.tensor(3)}
    extras = with_card(save(tensors), ABOUT)
    found = load(extras)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert holds_tensors(extras)
    about = card_of(extras)
    assert about is not None
    assert (about["seed"], about["weights"], about["image_shape"]) == (3, "abc", [1, 28, 28])
    assert about["architecture"]["name"] == "Größe"


def test_a_card_alone_and_a_newer_one() -> None:
    alone = with_card(b"", ABOUT)
    assert not holds_tensors(alone)
    assert load(alone) == {}
    newer = with_card(alone, card(4, "def", True, None, None))
    about = card_of(newer)
    assert about == {"seed": 4, "weights": "def", "pretrained": True, "architecture": None, "image_shape": None}
    assert with_card(newer, ABOUT) == alone


def test_none_and_nonsense() -> None:
    assert card_of(b"") is None
    assert not holds_tensors(b"")
    assert card_of(save({"x": torch.ones(1)})) is None
    for garbage in (
        b"x",
        b"\xff" * 40,
        (2).to_bytes(8, "little") + b"[]",
        (50_000).to_bytes(8, "little") + b"[" * 50_000,
    ):
        assert card_of(garbage) is None if garbage != b"x" else True
        with pytest.raises(SupSupError, match="extras cannot be read"):
            holds_tensors(garbage)


def test_every_record_has_one_and_it_is_small(tmp_path: Path) -> None:
    model = SupSup(nets.lenet_300_100(outputs=100), seed=5, recipe=Recipe(steps=1), inference=Inference(), device="cpu")
    model.learn((torch.randn(8, 784), torch.arange(8)), task="a", normalise=False)
    model.save(tmp_path / "m")
    with ModelFile(tmp_path / "m") as file:
        (record,) = file.records()
    about = card_of(record.extras)
    assert about is not None
    assert (about["seed"], about["weights"]) == (5, state_of(model).net.checksum)
    assert len(record.extras) < 0.01 * len(record.mask)
