"""A small model in a file, servers over it in a thread, and a real browser driven by its own protocol."""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image

from supsup import Recipe, SupSup, nets
from supsup.serve.app import ModelServer
from supsup.serve.requests import LearnRequest, PredictRequest
from supsup.serve.server import ServerSettings, listen, url_of
from supsup.serve.service import ModelService

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Files = list[tuple[str, tuple[str, bytes]]]


class Shapes:
    """Bars, boxes and crosses, white on black or black on white: two tasks of three classes."""

    KINDS = ("bar", "box", "cross")

    @staticmethod
    def drawn(kind: str, number: int, negative: bool = False, side: int = 12) -> Pixels:
        """One of them, [1, side, side], a little different for each number."""
        image = np.random.default_rng(number).integers(0, 40, (side, side)).astype(np.uint8)
        at = 4 + number % 4
        if kind == "bar":
            image[:, at : at + 2] = 230
        elif kind == "box":
            image[2:10, [2, 9]] = 230
            image[[2, 9], 2:10] = 230
        else:
            image[at, :] = 230
            image[:, at] = 230
        return 255 - image[None] if negative else image[None]

    @classmethod
    def lesson(cls, task: str, negative: bool = False, count: int = 8) -> LearnRequest:
        """All kinds, `count` of each."""
        labels = [kind for kind in cls.KINDS for _ in range(count)]
        images = [cls.drawn(kind, number % count, negative) for number, kind in enumerate(labels)]
        return LearnRequest(task, np.stack(images), labels)

    @staticmethod
    def png(pixels: Pixels) -> bytes:
        """The bytes of a PNG file."""
        content = io.BytesIO()
        Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(content, "PNG")
        return content.getvalue()

    @classmethod
    def upload(cls, lesson: LearnRequest) -> Files:
        """The same as a browser uploads a folder of class folders."""
        pairs = enumerate(zip(lesson.images, lesson.labels))
        return [("images", (f"folder/{label}/{number}.png", cls.png(image))) for number, (image, label) in pairs]

    @classmethod
    def folder(cls, lesson: LearnRequest, into: Path) -> Path:
        """The same on disk."""
        for _, (name, content) in cls.upload(lesson):
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return into / "folder"


@pytest.fixture(scope="session")
def shapes() -> type[Shapes]:
    return Shapes


@pytest.fixture(scope="session")
def _learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "shapes.supsup"
    recipe = Recipe(steps=80, learning_rate=1e-3, batch_size=32)
    SupSup(nets.FullyConnected((144, 64, 12)), seed=2, recipe=recipe, device="cpu").save(path)
    served = ModelService.open(path, device="cpu")
    served.learn(Shapes.lesson("shapes"), lambda share: None)
    served.learn(Shapes.lesson("negatives", negative=True), lambda share: None)
    served.close()
    return path


@pytest.fixture
def path(_learned: Path, tmp_path: Path) -> Path:
    """A model of one's own that has learned two tasks, in a file."""
    return Path(shutil.copy(_learned, tmp_path / "shapes.supsup"))


class Running:
    """A server that runs, and a client for it."""

    def __init__(self, server: ModelServer, url: str) -> None:
        self.server, self.url = server, url
        self.client = httpx.Client(base_url=url, timeout=60)

    @staticmethod
    def question(images: Pixels) -> PredictRequest:
        """What a request with these images asks."""
        return PredictRequest(images)

    def ended(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job once it has ended."""
        while job["state"] in ("waiting", "running"):
            time.sleep(0.02)
            job = self.client.get(f"/jobs/{job['id']}").json()
        return job


class Serving(Protocol):
    """What the fixture `serving` looks like to a test."""

    def __call__(self, path: Path, **settings: Any) -> AbstractContextManager[Running]: ...


@contextmanager
def _serving(path: Path, **settings: Any) -> Iterator[Running]:
    chosen = ServerSettings(**({"port": 0} | settings))
    server = ModelServer(ModelService.open(path, read_only=chosen.read_only, device="cpu"), chosen)
    listening = listen(chosen)
    running = uvicorn.Server(uvicorn.Config(server.app(), log_level="warning", ws="none"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not running.started:
            time.sleep(0.01)
        found = Running(server, url_of(listening))
        with found.client:
            yield found
    finally:
        running.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def serving() -> Serving:
    """A function that serves a file in this process, with a client."""
    return _serving


@pytest.fixture
def running(path: Path) -> Iterator[Running]:
    """A server over the two tasks."""
    with _serving(path) as found:
        yield found


class Chromium:
    """A headless browser, told what to do by the DevTools protocol over a pair of pipes."""

    def __init__(self, program: str, profile: Path) -> None:
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
        ]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        replaced, telling = self._pipe()
        listening, answered = self._pipe()
        # The browser reads from descriptor 3 and writes to 4; both are beyond them here.
        command = f"import os, sys; os.dup2({replaced}, 3); os.dup2({answered}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        arguments = [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", command, *arguments], pass_fds=(replaced, answered), stderr=subprocess.DEVNULL
        )
        os.close(replaced)
        os.close(answered)
        self._telling, self._listening = telling, listening
        self._buffer, self._count, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """A pipe whose ends are not among the lowest numbers, which others are put in place of."""
        ends = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in ends]
        for end in ends:
            os.close(end)
        return high[0], high[1]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol and what it gave."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._telling, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._noted(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._listening], [], [], 60)
            assert ready, "the browser says nothing"
            piece = os.read(self._listening, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        content, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(content))

    def _noted(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])

    def open(self, url: str, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        """Show a page in a window of a size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """What a script gives on the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait for something to be so."""
        for _ in range(600):
            if self.run(f"!!({script})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; the page says {self.run('document.body.innerText')!r}")

    def text(self, selector: str) -> str:
        """The text that is shown in an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """A real click into the middle of an element, once it is there."""
        self.until(f"document.querySelector({json.dumps(selector)})")
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, selector: str, points: list[tuple[float, float]]) -> None:
        """Press the mouse on an element and move it through points, given as shares of its width and height."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        left, top, width, height = self._box(selector)
        for number, (x, y) in enumerate(points):
            kind = "mousePressed" if number == 0 else "mouseMoved"
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=left + x * width,
                y=top + y * height,
                button="left",
                buttons=1,
                clickCount=1,
            )
        self.call(
            "Input.dispatchMouseEvent",
            type="mouseReleased",
            x=left + x * width,
            y=top + y * height,
            button="left",
            clickCount=1,
        )

    def drop(self, selector: str, *paths: Path) -> None:
        """Drop files or folders on an element, as from a file manager."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y = self._middle(selector)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, selector: str, *paths: Path) -> None:
        """Choose files in a field for files."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key of the keyboard."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        typed = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, target: Path) -> Image.Image:
        """A screenshot of the whole page, also written to a file."""
        content = base64.b64decode(
            self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        )
        target.write_bytes(content)
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB")

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        try:
            self.call("Browser.close")
        except AssertionError:
            self._process.kill()
        self._process.wait(20)
        os.close(self._telling)
        os.close(self._listening)

    def _box(self, selector: str) -> tuple[float, float, float, float]:
        found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        box = self.run(f"(r => [r.left, r.top, r.width, r.height])({found})")
        return box[0], box[1], box[2], box[3]

    def _middle(self, selector: str) -> tuple[float, float]:
        left, top, width, height = self._box(selector)
        return left + width / 2, top + height / 2


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Chromium where it is found; tests that need it are skipped where it is not."""
    names = [os.environ.get("CHROME", ""), "chromium", "chromium-browser", "google-chrome"]
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH; $CHROME may name one")
    started = Chromium(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()
