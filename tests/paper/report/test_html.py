"""The page shows every entry, table and plot, and reads well in a real browser, on a phone and in the dark."""

from __future__ import annotations

import html
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from supsup_paper.catalogue.rows import Entry
from supsup_paper.catalogue.tolerances import TOLERANCES
from supsup_paper.report.html import page
from supsup_paper.report.summary import summarise

VOID = {"meta", "br", "img"}
READING = """() => {
  document.querySelectorAll('details').forEach(one => { one.open = true });
  const root = document.documentElement;
  const box = one => { const r = one.getBoundingClientRect(); return Math.min(r.width, r.height) };
  const text = [...document.querySelectorAll('h1,h2,p,li,a,b,th,td,td small,caption,summary,dt,dd,.ours')];
  return {
    width: innerWidth, needed: root.scrollWidth, paper: getComputedStyle(root).backgroundColor,
    sections: [...document.querySelectorAll('main section')].map(one => one.id),
    plots: [...document.querySelectorAll('img')].map(box),
    tables: [...document.querySelectorAll('table')].map(box),
    inks: [...new Set(text.map(one => getComputedStyle(one).color))],
  };
}"""


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_everything_is_on_the_page(catalogue: dict[str, Entry], results: Path) -> None:
    text = page(summarise(catalogue, results))
    read = Reader(text)
    assert [attributes.get("id") for attributes in read.of("section")] == list(catalogue)
    assert all(attributes.get("scope") in ("row", "col") for attributes in read.of("th"))
    plots = read.of("img")
    assert len(plots) >= len(catalogue)
    assert all(plot["alt"] for plot in plots)
    assert "Rotations are drawn &lt;anew&gt; in each layer." in text
    worse = (
        "Worse: accuracy % (tasks learned: 100) is 60.00 (one seed), published 64.62, 4.62 below with a tolerance of"
    )
    assert f"{worse} 0.3." in text
    assert all(tolerance.source in html.unescape(text) for tolerance in TOLERANCES)
    assert '<td class="bad">worse</td><td>0.3</td>' in text
    assert "93.70 ± 0.10<small>paper 93.65 (+0.05)</small>" in text
    assert text.count("ours, not in the paper") >= 1
    assert "380,000" in text
    assert "408,432" in text


def test_the_page_needs_nothing_from_elsewhere(catalogue: dict[str, Entry], results: Path) -> None:
    text = page(summarise(catalogue, results))
    assert "http" not in text
    assert "<script" not in text
    assert not [a for tag, a in Reader(text).tags if tag != "a" and "href" in a]
    assert all(str(image["src"]).startswith("data:image/svg+xml;base64,") for image in Reader(text).of("img"))


def test_the_same_results_give_the_same_page(catalogue: dict[str, Entry], results: Path) -> None:
    assert page(summarise(catalogue, results)) == page(summarise(catalogue, results))


def test_a_damaged_file_is_named_and_the_rest_is_shown(catalogue: dict[str, Entry], results: Path) -> None:
    (results / "permuted" / "g-seed0.json").write_text('{"entry": "permuted", <')
    text = page(summarise(catalogue, results))
    assert "permuted/g-seed0.json: damaged" in text
    assert "93.70 ± 0.10" in text


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(
    width: int, scheme: str, browser: Any, catalogue: dict[str, Entry], results: Path
) -> None:
    """No sideways scrolling, nothing collapsed, text large enough, and contrast as accessibility guidelines ask."""
    text = page(summarise(catalogue, results))
    seen = browser.measured(text, width, READING, browser.DARK if scheme == "dark" else browser.LIGHT)
    assert seen["width"] == width
    assert seen["needed"] <= width
    assert seen["sections"] == list(catalogue)
    assert len(seen["plots"]) == text.count('<img class="plot"')
    assert len(seen["tables"]) == text.count("<table>")
    assert min(seen["plots"]) > 60
    assert min(seen["tables"]) > 40
    assert (luminance(seen["paper"]) < 0.1) == (scheme == "dark")
    assert min(contrast(ink, seen["paper"]) for ink in seen["inks"]) >= 4.5


def test_pictures_of_the_page(browser: Any, catalogue: dict[str, Entry], results: Path) -> None:
    """A desktop and a phone, light and dark: the background follows the reader's setting, and there is ink on it."""
    text = page(summarise(catalogue, results))
    for width in (1280, 390):
        for scheme in (browser.LIGHT, browser.DARK):
            with Image.open(browser.screenshot(text, width, 1400, scheme)) as opened:
                picture = opened.convert("L")
            assert picture.size == (width, 1400)
            corner = picture.tobytes()[0]
            assert (corner < 64) == (scheme == browser.DARK)
            inked = sum(count for value, count in enumerate(picture.histogram()) if abs(value - corner) > 80)
            assert inked > 0.01 * width * 1400


def test_the_browser_agrees_with_the_source(browser: Any, catalogue: dict[str, Entry], results: Path) -> None:
    text = page(summarise(catalogue, results))
    dom = browser.dom(text)
    for piece in ("<section ", "<img ", "<table>", "<tr>", '<th scope="row"', "<details>"):
        assert dom.count(piece) == text.count(piece)


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(…)" as accessibility guidelines define it."""
    channels = [int(word) / 255 for word in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
