"""What lies in a folder is told from a few of its pictures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from supsup.data.files import ReadOptions, TaskFile, find_tasks


def folder(at: Path, colours: float, side: int = 40) -> Path:
    """Two classes of noise whose colours differ by so much."""
    chance = np.random.default_rng(0)
    for name in ("one", "two"):
        (at / name).mkdir(parents=True)
        for number in range(3):
            grey = chance.integers(40, 200, (side, side, 1)).repeat(3, 2)
            pixels = (grey + chance.uniform(0, colours, (side, side, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(at / name / f"{number}.png")
    return at


@pytest.mark.parametrize(("colours", "side", "photographs"), [(55, 40, True), (0, 40, False), (55, 20, False)])
def test_photographs_are_told_from_drawings_and_icons(
    tmp_path: Path, colours: float, side: int, photographs: bool
) -> None:
    """A pretrained network is slow and no better for these."""
    (found,) = find_tasks(folder(tmp_path / "pictures", colours, side), ReadOptions())
    assert found.has_photographs() is photographs


def test_what_is_no_folder_of_images_shows_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert not TaskFile("rows", lambda _: pytest.fail("it need not be read")).has_photographs()
    assert not TaskFile("empty", lambda _: pytest.fail("it need not be read"), tmp_path / "empty").has_photographs()


def test_large_images_get_the_usual_size_of_the_network(tmp_path: Path) -> None:
    """Images that are small and of one size stay as they are, whatever the network's."""
    (large,) = find_tasks(folder(tmp_path / "large", 0, 80), ReadOptions())
    assert large.read(ReadOptions()).train.shape == (3, 32, 32)
    assert large.read(ReadOptions(default_size=64)).train.shape == (3, 64, 64)
    assert large.read(ReadOptions(size=48, default_size=64)).train.shape == (3, 48, 48)
    (small,) = find_tasks(folder(tmp_path / "small", 0, 40), ReadOptions())
    assert small.read(ReadOptions(default_size=64)).train.shape == (3, 40, 40)
