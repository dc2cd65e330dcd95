from pathlib import Path
from typing import Any


def test_it(running: Any, browser: Any, shapes: Any, tmp_path: Path) -> None:
    image = tmp_path / "box.png"
    image.write_bytes(shapes.png(shapes.drawn("box", 30)))
    browser.open(running.url)
    browser.until("document.querySelector('#facts').innerText.includes('2 tasks')")
    browser.drop("#drop", image)
    browser.until("!document.querySelector('#found').hidden")
    print(browser.text("#answer"))
    folder = shapes.folder(shapes.lesson("x", count=4), tmp_path / "a")
    browser.drop("#folder-drop", folder)
    browser.until("document.querySelector('#chosen').innerText.includes('3 classes')")
    print(browser.text("#chosen"))
    browser.click("#start")
    browser.until("document.querySelector('#jobs').innerText.includes('is learned')")
    browser.click("#tasks li:nth-child(3) summary")
    browser.until("document.querySelector('#tasks .examples')")
    browser.picture(Path("/tmp/sv/light.png"))
    browser.open(running.url)
    browser.choose("#folder", folder)
    browser.until("document.querySelector('#chosen').innerText.includes('3 classes')")
    print(browser.text("#chosen"), browser.problems)
    browser.open(running.url, 390, 900, True)
    browser.drag("#canvas", [(0.3, 0.3), (0.7, 0.3), (0.5, 0.7), (0.5, 0.9)])
    browser.until("!document.querySelector('#found').hidden")
    browser.picture(Path("/tmp/sv/dark-phone.png"))
