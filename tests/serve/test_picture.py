"""A digit drawn on the page: the answer is the library's own, and the picture of it is the one in the README."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import supsup
from supsup import Recipe, SupSup, data, nets
from supsup.serve.requests import LearnRequest
from supsup.serve.service import ModelService

PICTURE = Path(__file__).parents[2] / "docs" / "page.png"
TASKS, SIZE, HEIGHT = 20, (1000, 760), 572
PIXELS = """(() => {
  const seen = document.querySelector('#sent'), canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [seen.naturalWidth, seen.naturalHeight];
  canvas.getContext('2d').drawImage(seen, 0, 0);
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return Array.from(data).filter((_, number) => number % 4 === 0);
})()"""


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A model of digits as they are and of 19 scrambles of their pixels, each learned for a moment."""
    path, source = tmp_path / "digits.supsup", data.digits()
    recipe = Recipe(steps=60, learning_rate=1e-3, batch_size=64)
    SupSup(nets.lenet_300_100(outputs=100), recipe=recipe, device="cpu").save(path)
    served, chance = ModelService.open(path, device="cpu"), np.random.default_rng(0)
    images, labels = source.train_images[:1500].numpy(), [str(label) for label in source.train_labels[:1500].tolist()]
    for number in range(TASKS):
        order = chance.permutation(784) if number else np.arange(784)
        name = f"scramble {number}" if number else "digits"
        served.learn(
            LearnRequest(name, images.reshape(-1, 784)[:, order].reshape(images.shape), labels), lambda share: None
        )
    served.close()
    return path


def test_the_page_answers_a_drawing_as_the_library_does(
    digits: Path, serving: Any, browser: Any, tmp_path: Path
) -> None:
    """SUPSUP_PICTURE=1 puts the picture into docs/ as well."""
    with serving(digits, read_only=True) as running:
        browser.open(running.url, *SIZE)
        browser.until(f"document.querySelector('#summary').innerText.includes('{TASKS} tasks')")
        browser.drag(
            "#canvas", [(0.3, 0.2), (0.45, 0.2), (0.6, 0.2), (0.7, 0.2), (0.6, 0.45), (0.5, 0.65), (0.4, 0.88)]
        )
        browser.until("document.querySelector('#sent').naturalWidth === 28")
        browser.until("!document.querySelector('#found').hidden")
        drawn = np.array(browser.run(PIXELS), np.uint8).reshape(1, 1, 28, 28)
        answer = supsup.load(digits, device="cpu").predict(drawn)
        assert answer.tasks == ["digits"]
        assert browser.text("#label") == answer.names[0] == "7"
        assert f"task: digits (inferred from {TASKS} tasks" in browser.text("#task")
        assert browser.text("#percent") == f"{100 * float(answer.confidence[0]):.1f} %"
        made = browser.picture(tmp_path / "page.png")
    made = made.crop((0, 0, made.width, HEIGHT))
    if os.environ.get("SUPSUP_PICTURE"):
        made.quantize(64).save(PICTURE, optimize=True)
    assert PICTURE.stat().st_size < 100_000
    with Image.open(PICTURE) as shown:
        apart = np.abs(coarse(shown) - coarse(made)).mean()  # fonts and milliseconds may differ, the layout may not
    assert apart < 5, "the page has changed: SUPSUP_PICTURE=1 pytest tests/serve/test_picture.py"


def coarse(image: Image.Image) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Fifty by thirty grey levels."""
    return np.asarray(image.convert("L").resize((50, 30), Image.Resampling.BOX), np.float64)
