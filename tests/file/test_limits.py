"""A file is believed only as far as it can be held to: memory, settings, depth; a variable raises the memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import supsup
from supsup import HopSupSup, Recipe, SupSup, SupSupError, nets
from supsup.file import limits
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup.nets.architecture import Architecture
from supsup.runtime.errors import Damaged


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)


def test_a_variable_says_how_much_a_file_may_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SupSup(nets.FullyConnected((300, 100, 10)), device="cpu")
    model.save(tmp_path / "m")
    monkeypatch.setenv(limits.VARIABLE, "1000000")
    with pytest.raises(SupSupError, match=r"m: the network in the file would take 1,240,000 bytes .* SUPSUP_MAX_BYTES"):
        supsup.load(tmp_path / "m", device="cpu")
    supsup.load(tmp_path / "m", nets.FullyConnected((300, 100, 10)), device="cpu")  # whose memory the caller has given
    monkeypatch.setenv(limits.VARIABLE, "1240000")
    supsup.load(tmp_path / "m", device="cpu")
    for text in ("much", "-5", "1e9", "9" * 30):
        monkeypatch.setenv(limits.VARIABLE, text)
        with pytest.raises(SupSupError, match="must be a number of bytes"):
            supsup.load(tmp_path / "m", device="cpu")


def test_masks_take_no_more_than_their_bytes_account_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "1000")
    limits.check_masks(1000, weights=800, stored=2000)
    limits.check_masks(10, weights=800, stored=0)
    with pytest.raises(SupSupError, match="its masks"):
        limits.check_masks(11, weights=800, stored=0)


def test_thousands_of_empty_masks_of_ours_are_read(tmp_path: Path) -> None:
    model = SupSup(nets.lenet_300_100(), device="cpu")
    nothing = {name: torch.zeros(shape) for name, shape in state_of(model).net.shapes.items()}
    columns = state_of(model).bank.pack(nothing)[:, None].expand(-1, 2000)
    state_of(model).add([LearnedTask(f"task-{n}", 2) for n in range(2000)], columns, {}, (784,))
    model.save(tmp_path / "m")
    assert len(supsup.load(tmp_path / "m", device="cpu").tasks) == 2000


@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": Recipe(batch_size=1 << 21)},
    ],
)
def test_what_would_not_be_read_is_not_written(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(SupSupError, match="in a file it may be"):
        SupSup(nets.FullyConnected((5, 4)), device="cpu", **settings).save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_the_same_for_a_memory(tmp_path: Path) -> None:
    model = HopSupSup(nets.HopMLP((5, 6, 4)), device="cpu")
    model.psi[0][0, 0] = torch.nan
    with pytest.raises(SupSupError, match="not finite"):
        model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    recipe = Recipe(steps=np.int64(3), learning_rate=np.float32(0.5), batch_size=np.int32(7))  # type: ignore[arg-type]
    model = SupSup(nets.FullyConnected((5, 4)), np.int64(11), recipe=recipe, device="cpu")  # type: ignore[arg-type]
    model.notes["counts"] = (np.int64(3), {"share": np.float64(0.25)})
    model.save(tmp_path / "m")
    again = supsup.load(tmp_path / "m", device="cpu")
    assert (again.seed, type(again.seed)) == (11, int)
    assert again.recipe == Recipe(steps=3, learning_rate=0.5, batch_size=7)
    assert again.notes == {"counts": [3, {"share": 0.25}]}


def test_a_network_without_end_stops_early() -> None:
    endless = Architecture("ResNet", {"outputs": 2, "blocks": [9_999], "widths": [1]})
    with pytest.raises(SupSupError, match="more than 50 parameters"):
        endless.build_on_meta(50)
    assert len(list(Architecture("FullyConnected", {"widths": [9, 8, 7]}).build_on_meta(50).parameters())) == 2
    nets.FullyConnected([1] * 100)  # nothing is counted any more


def test_depth_and_shapes() -> None:
    limits.check_depth(json.loads("[" * 40 + "]" * 40))
    with pytest.raises(Damaged, match="deep"):
        limits.check_depth(json.loads("[" * 100 + "]" * 100))
    wrong: list[dict[str, Any]] = [
        {},
        {"a": []},
        {"a": [0]},
        {"a": [True]},
        {"a": [1 << 50]},
        {"a": [1] * 50},
        {"a": 5},
    ]
    for shapes in wrong:
        with pytest.raises(Damaged):
            limits.check_shapes(shapes, None)
    with pytest.raises(limits.TooLarge, match="more than 10¹⁸"):
        limits.check_shapes({"a": [1 << 39] * 16}, None)
