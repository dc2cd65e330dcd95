"""The command: what it refuses, how it ends, and what a kill -9 leaves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import supsup
from supsup import Inference
from supsup.cli import main
from supsup.file.repair import verify
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup.runtime.errors import SupSupError
from supsup.serve.server import ServerSettings, listen
from supsup.serve.service import ModelService

ENVIRONMENT = os.environ | {"COLUMNS": "400", "OMP_NUM_THREADS": "1"}


@contextmanager
def command(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`supsup serve` in a process of its own, and its address."""
    arguments = [sys.executable, "-m", "supsup", "serve", str(path), "--port", "0", "--device", "cpu", *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, line
            yield process, line.split()[-1]
        finally:
            process.kill()


def test_ctrl_c_ends_it_in_order(path: Path, shapes: Any) -> None:
    with command(path) as (process, url), httpx.Client(base_url=url) as client:
        assert process.stdout is not None
        assert "reachable from this machine only; no token" in process.stdout.readline()
        image = shapes.png(shapes.drawn("box", 31))
        assert client.post("/predict", files={"image": image}).json()["answers"][0]["name"] == "box"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "stopped" in process.stdout.read()
    assert os.listdir(path.parent) == [path.name]


def test_the_method_that_is_asked_for_finds_the_tasks(path: Path, shapes: Any) -> None:
    image = shapes.drawn("box", 31)
    with command(path, "--read-only", "--method", "exhaustive") as (_, url), httpx.Client(base_url=url) as client:
        said = client.post("/predict", files={"image": shapes.png(image)}).json()["answers"][0]
    model = supsup.load(path, device="cpu")
    usual = model.predict(image[None])
    model.inference = Inference("exhaustive")
    answer = model.predict(image[None])
    assert (said["task"], said["name"]) == (answer.tasks[0], answer.names[0])
    assert abs(said["task_confidence"] - float(answer.task_confidence[0])) < 1e-5
    assert abs(said["task_confidence"] - float(usual.task_confidence[0])) > 1e-3


def test_several_serve_one_file_from_the_disk(path: Path, shapes: Any) -> None:
    options, image = ("--read-only", "--masks", "disk"), shapes.png(shapes.drawn("box", 31))
    with supsup.load(path, in_place=True, device="cpu") as model:  # enough for a block
        packed, shape = state_of(model).bank.packed(0)[:, None], model.image_shape
        assert shape is not None
        info = model.task_info(model.tasks[0])
        copies = [LearnedTask(f"copy-{number}", 2, info=info) for number in range(4096)]
        state_of(model).add(copies, packed.expand(-1, 4096), {}, shape)
        model.save()
    with command(path, *options) as (_, one), command(path, *options) as (_, two):
        answers = [httpx.post(f"{url}/predict", files={"image": image}).json()["answers"] for url in (one, two)]
    assert answers[0] == answers[1]
    assert path.with_name(f"{path.name}-masks").is_dir()


def test_sigterm_stops_the_job_that_runs_and_keeps_what_is_learned(path: Path, shapes: Any) -> None:
    with supsup.load(path, in_place=True, device="cpu") as model:
        model.recipe = replace(model.recipe.stepwise, steps=1_000_000)
    with command(path) as (process, url), httpx.Client(base_url=url) as client:
        job = client.post("/tasks/endless", files=shapes.upload(shapes.lesson("x", count=4))).json()["id"]
        while not client.get(f"/jobs/{job}").json()["progress"]:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert os.listdir(path.parent) == [path.name]
    assert supsup.load(path, device="cpu").tasks == ["shapes", "negatives"]


def test_kill_9_while_it_learns_loses_nothing_that_was_reported(path: Path, shapes: Any) -> None:
    upload = shapes.upload(shapes.lesson("x", count=4))
    with command(path) as (process, url), httpx.Client(base_url=url) as client:
        jobs = [client.post(f"/tasks/{number}", files=upload).json()["id"] for number in range(40)]
        done: list[str] = []
        while len(done) < 4:
            info = [client.get(f"/jobs/{job}").json() for job in jobs[: len(done) + 3]]
            done = [job["task"] for job in info if job["state"] == "done"]
        process.kill()
        process.wait()
    assert verify(path).clean
    with supsup.load(path, in_place=True, device="cpu") as model:
        assert set(done) <= set(model.tasks)
        assert len(model.tasks) < 42  # it was killed while it learned


def test_a_second_server_on_one_file_is_refused(path: Path, running: Any) -> None:
    with pytest.raises(SupSupError, match="being written"):
        ModelService.open(path, device="cpu")


def test_what_is_typed_wrong_is_said_in_one_line(path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPSUP_TOKEN", raising=False)
    for words, said in (
        (["serve", str(path), "--host", "0.0.0.0"], "set --token"),
        (["serve", str(path), "--token", "short"], "at least 8 characters"),
        (["serve", "nowhere.supsup", "--port", "0"], "there is no file"),
        (["serve", str(path), "--port", "99999"], "at most 65,535"),
    ):
        monkeypatch.setattr(sys, "argv", ["supsup", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code
        error = capsys.readouterr().err
        assert said in " ".join(error.split())
        assert "Traceback" not in error


def test_answers_do_not_wait_for_packets_to_be_acknowledged() -> None:
    """asyncio sets TCP_NODELAY only where a socket names its protocol; a lone request took 50 ms for 6 without."""
    with listen(ServerSettings(port=0)) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SupSupError, match=f"port {port} of 127.0.0.1 is in use by another program; choose another"):
            listen(ServerSettings(port=port))
    with pytest.raises(SupSupError, match="is not an address of this machine"):
        listen(ServerSettings(host="192.0.2.1", token="a-long-secret", port=0))


IMPORTS = """
import sys
import supsup, supsup.cli
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"starlette", "uvicorn", "multipart", "python_multipart", "PIL", "prometheus_client"}, loaded
sys.modules["starlette"] = None
from supsup.cli.serve import serve_command
from pathlib import Path
try:
    serve_command(Path("model.supsup"))
except supsup.SupSupError as error:
    assert "pip install 'supsup[serve]'" in str(error), error
else:
    raise AssertionError
"""


def test_nothing_of_the_extra_is_needed_but_to_serve() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, env=ENVIRONMENT)
