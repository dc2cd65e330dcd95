"""The page in a real browser: ask, draw, learn and forget; light, dark and on a phone; by keyboard, and for readers."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

READING = """(() => {
  const root = document.documentElement;
  const shown = [...document.querySelectorAll('h1,h2,p,label,button,summary,span,figcaption')].filter(
    one => one.id !== 'hint' && one.getClientRects().length && one.innerText.trim() && !one.closest(':disabled'));
  const ground = one => { for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour } return 'rgb(255, 255, 255)' };
  return {
    width: innerWidth, needed: root.scrollWidth, paper: getComputedStyle(root).backgroundColor,
    pairs: [...new Set(shown.map(one => getComputedStyle(one).color + '|' + ground(one)))],
    nameless: [...document.querySelectorAll('input,button,canvas,svg,meter,progress')].filter(one =>
      one.getClientRects().length && !one.labels?.length && !one.getAttribute('aria-label') && !one.innerText?.trim()
    ).map(one => one.outerHTML),
  };
})()"""


def says(selector: str, text: str) -> str:
    return f"document.querySelector({selector!r}).innerText.includes({text!r})"


@pytest.fixture
def image(shapes: Any, tmp_path: Path) -> Path:
    """A box that was not learned from."""
    target = tmp_path / "box.png"
    target.write_bytes(shapes.png(shapes.drawn("box", 31)))
    return target


def test_drop_an_image_learn_a_folder_and_forget_it(
    running: Any, browser: Any, shapes: Any, image: Path, tmp_path: Path
) -> None:
    browser.open(running.url)
    browser.until(says("#summary", "2 tasks"))
    browser.drop("#drop", image)
    browser.until("!document.querySelector('#found').hidden")
    said = running.client.post("/predict", files={"image": image.read_bytes()}).json()["answers"][0]
    assert browser.text("#label") == said["name"] == "box"
    assert "task: shapes (inferred from 2 tasks" in browser.text("#task")
    assert browser.text("#percent") == f"{100 * said['confidence']:.1f} %"
    assert re.search(r"[0-9.]+ ms in the server", browser.text("#time"))
    assert browser.run("document.querySelectorAll('#plot circle').length") == 2
    assert browser.run("document.querySelector('#plot text.best').textContent") == "shapes"
    assert "shapes with" in browser.run("document.querySelector('#plot').getAttribute('aria-label')")

    name = "<img src=x onerror=document.title='hacked'> & <b>"
    browser.drop("#folder-drop", shapes.folder(shapes.lesson("x", negative=True, count=4), tmp_path / "new"))
    browser.until(says("#chosen", "12 images in 3 classes: bar, box, cross"))
    assert browser.run("document.querySelector('#name').value") == "folder"
    browser.run("document.querySelector('#name').value = ''")
    browser.type("#name", name)
    browser.click("#start")
    browser.until(says("#jobs", "was learned"))
    browser.until(says("#summary", "3 tasks"))
    assert running.client.get("/tasks").json()["tasks"][2]["name"] == name
    browser.click("#tasks li:nth-child(3) summary")
    browser.until("document.querySelectorAll('#tasks .examples img').length === 6")
    assert "Classes: bar, box, cross" in browser.text("#tasks li:nth-child(3)")
    assert name in browser.text("#tasks li:nth-child(3)")
    asked = browser.run("document.querySelector('#sent').src")
    browser.click("#tasks li:nth-child(3) .examples button")
    browser.until(f"document.querySelector('#sent').src !== {asked!r}")
    assert browser.text("#label") == "bar"

    browser.click("#tasks li:nth-child(3) .danger")
    browser.until("document.querySelector('#sure').open")
    assert name in browser.text("#sure-text")
    browser.click("#sure button[value=no]")
    browser.until("!document.querySelector('#sure').open")
    assert running.client.get("/health").json()["tasks"] == 3
    browser.click("#tasks li:nth-child(3) .danger")
    browser.until("document.querySelector('#sure').open")
    browser.click("#sure button[value=yes]")
    browser.until(says("#jobs", "was forgotten"))
    browser.until(says("#summary", "2 tasks"))
    assert browser.run("document.title") == "supsup"
    assert not browser.problems


def test_draw_choose_and_search(running: Any, browser: Any, shapes: Any, image: Path, tmp_path: Path) -> None:
    browser.open(running.url)
    browser.until(says("#summary", "2 tasks"))
    browser.drag("#canvas", [(0.5, 0.1), (0.5, 0.3), (0.5, 0.6), (0.5, 0.9)])
    browser.until("!document.querySelector('#found').hidden")
    assert browser.text("#label") in shapes.KINDS
    browser.until("document.querySelector('#sent').naturalWidth === 12")  # sent in the model's own size
    browser.choose("#file", image)
    browser.until(says("#label", "box"))
    browser.type("#known", "negatives")
    browser.choose("#file", image)
    browser.until(says("#task", "task: negatives (given)"))
    browser.run("document.querySelector('#known').value = ''")
    browser.type("#known", "nobody")
    browser.choose("#file", image)
    browser.until(says("#problem", "unknown task"))
    browser.type("#search", "NEG")
    browser.until(says("#count", "1 of 2 tasks match"))
    assert browser.text("#tasks").startswith("negatives")
    browser.choose("#folder", shapes.folder(shapes.lesson("x", count=2), tmp_path / "chosen"))
    browser.until(says("#chosen", "6 images in 3 classes"))
    browser.problems.clear()  # of the task that there is not


def test_by_keyboard(running: Any, browser: Any) -> None:
    """Tab leads through every control in order, and keys open a task and keep it."""
    browser.open(running.url)
    browser.until("document.querySelectorAll('#tasks summary').length === 2")
    reached = []
    for _ in range(9):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:6] == ["file", "clear", "dark-ink", "known", "search", "SUMMARY"]
    assert {"folder", "name"} <= set(reached)
    browser.run("document.querySelector('#tasks summary').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('#tasks .details .danger')")
    browser.press("Tab")
    browser.press("Enter")  # an example: it is asked about
    browser.until(says("#label", "bar"))
    while not browser.run("document.activeElement.matches('.danger')"):
        browser.press("Tab")
    browser.press("Enter")
    browser.until("document.querySelector('#sure').open")
    assert browser.run("document.activeElement.value") == "no"
    browser.press("Escape")
    browser.until("!document.querySelector('#sure').open")
    assert running.client.get("/health").json()["tasks"] == 2


def test_a_token_is_asked_for_and_read_only_has_no_forms(path: Path, serving: Any, browser: Any) -> None:
    with serving(path, token="a-long-secret") as running:
        browser.open(running.url)
        browser.until("!document.querySelector('#token-field').hidden")
        browser.click("#tasks summary")
        browser.until("document.querySelector('#tasks .details .danger')")
        for token, state in (("", "needs the server's token"), ("a-long-secret", "was forgotten")):
            browser.run("document.querySelector('#token').value = ''")
            browser.type("#token", token)
            browser.click("#tasks .details .danger")
            browser.until("document.querySelector('#sure').open")
            browser.click("#sure button[value=yes]")
            browser.until(says("#jobs", state))
        browser.problems.clear()  # of the answer 401
    with serving(path, read_only=True) as running:
        browser.open(running.url)
        browser.until(says("#summary", "read-only"))
        assert browser.run("document.querySelector('#learn-card').hidden")
        browser.click("#tasks summary")
        browser.until("document.querySelector('#tasks .details').innerText")
        assert browser.run("document.querySelectorAll('#tasks .details .danger').length") == 0


@pytest.mark.parametrize(("width", "dark"), [(360, False), (390, True), (1100, False), (1100, True)])
def test_it_fits_and_can_be_read(
    running: Any, browser: Any, image: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    """No sideways scrolling, contrast as accessibility guidelines ask, and a name for every control."""
    browser.open(running.url, width, dark=dark)
    browser.until(says("#summary", "2 tasks"))
    browser.choose("#file", image)
    browser.until("!document.querySelector('#found').hidden")
    browser.click("#tasks summary")
    browser.until("document.querySelector('#tasks .details .danger')")
    seen = browser.run(READING)
    assert seen["width"] == width
    assert seen["needed"] <= width
    assert not seen["nameless"]
    assert (luminance(seen["paper"]) < 0.1) == dark
    low = [pair for pair in seen["pairs"] if contrast(*pair.split("|")) < 4.5]
    assert not low
    picture = browser.picture(tmp_path / "page.png")
    assert picture.width == width
    assert len(picture.convert("L").getcolors(256) or []) > 20


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for file in files("supsup.serve").joinpath("page").iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert not re.search(r"\bon\w+=|<script>|style=|eval\(", text)


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(…)" as accessibility guidelines define it."""
    channels = [float(word) / 255 for word in re.findall(r"[0-9.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
