"""Every route: answers as the library's own, tasks learned and forgotten in the file, and refusals with a reason."""

from __future__ import annotations

import base64
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import torch

import supsup
from supsup import Recipe, SupSup, data, nets
from supsup.serve.requests import RequestLimits

PNG, JSON = {"Content-Type": "image/png"}, {"Content-Type": "application/json"}
NAMES = [
    "a/b",
    "?",
    "#x",
    "50 %",
    "%2F",
    "ä ö 猫",
    "a/../b",
    "/start",
    "end/",
    "<b>bold</b>",
    "'\"",
    "..x",
    "a\nb",
    " ",
]


@pytest.fixture
def asked(shapes: Any) -> Any:
    """Images of both tasks that were not learned from, [6, 1, 12, 12]."""
    return np.stack([shapes.drawn(kind, 31, negative) for negative in (False, True) for kind in shapes.KINDS])


def test_an_image_may_come_in_every_form(running: Any, shapes: Any, asked: Any) -> None:
    """The file itself, a form, base64 and arrays give one answer, and it is the library's own."""
    client = running.client
    for image in asked:
        content = shapes.png(image)
        text = base64.b64encode(content).decode()
        answers = [
            client.post("/predict", content=content, headers=PNG),
            client.post("/predict", content=content, headers={"Content-Type": "application/octet-stream"}),
            client.post("/predict", files={"image": ("x.png", content)}),
            client.post("/predict", json={"image": text}),
            client.post("/predict", json={"images": [f"data:image/png;base64,{text}"]}),
        ]
        assert {answer.status_code for answer in answers} == {200}
        assert len({str(answer.json()["answers"]) for answer in answers}) == 1
        assert answers[0].json()["among"] == 2
        (direct,) = running.server.service.predict([running.question(image[None])])
        assert answers[0].json()["answers"] == direct["answers"]


def test_the_task_may_be_known_or_one_of_some(running: Any, shapes: Any, asked: Any) -> None:
    client = running.client
    content = shapes.png(asked[1])
    known = client.post("/predict?task=shapes", content=content, headers=PNG).json()
    assert (known["among"], known["answers"][0]["task"], known["answers"][0]["name"]) == (1, "shapes", "box")
    some = client.post("/predict?among=negatives", content=content, headers=PNG).json()
    assert (some["among"], some["answers"][0]["task"]) == (1, "negatives")
    form = client.post("/predict", files={"image": content}, data={"among": ["shapes", "negatives"], "scores": "1"})
    scores = form.json()["answers"][0]["scores"]
    assert scores["best"][0][0] == form.json()["answers"][0]["task"]
    assert len(scores["values"]) == 2
    text = base64.b64encode(content).decode()
    both = client.post("/predict", json={"images": [text, text], "task": "shapes"}).json()
    assert [each["name"] for each in both["answers"]] == ["box", "box"]


def test_tasks_are_listed_page_by_page_and_found(running: Any) -> None:
    client = running.client
    listed = client.get("/tasks").json()
    assert (listed["total"], listed["matching"]) == (2, 2)
    assert [task["name"] for task in listed["tasks"]] == ["shapes", "negatives"]
    assert [task["name"] for task in client.get("/tasks?offset=1&limit=1").json()["tasks"]] == ["negatives"]
    found = client.get("/tasks?search=NEGA").json()
    assert (found["total"], found["matching"], len(found["tasks"])) == (2, 1, 1)
    for query in ("limit=-1", "limit=x", "limit=10000", "offset=1e3"):
        assert client.get(f"/tasks?{query}").status_code == 400


def test_a_task_says_what_it_is(running: Any, path: Path) -> None:
    said = running.client.get("/tasks/shapes").json()
    assert said["class_names"] == ["bar", "box", "cross"]
    assert said["classes"] == 3
    assert said["learned_at"] == supsup.load(path, device="cpu").learned_at("shapes")
    assert 144 * 64 / 8 / 2 < said["bytes"] < 11_000
    assert len(said["examples"]) == 6
    assert all(example.startswith("data:image/png;base64,") for example in said["examples"])
    assert running.client.get("/tasks/nobody").status_code == 404


def test_a_task_of_any_name_is_learned_shown_asked_and_forgotten(running: Any, shapes: Any, path: Path) -> None:
    client, upload = running.client, shapes.upload(shapes.lesson("any", count=2))
    image = shapes.png(shapes.drawn("box", 1))
    for name in NAMES:
        at = f"{running.url}/tasks/{quote(name, safe='')}"
        answer = client.post(at, files=upload)
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
        assert client.post(at, files=upload).status_code == 409
        assert running.ended(answer.json())["state"] == "done"
        assert client.get(at).json()["name"] == name
        assert client.get("/tasks", params={"search": name}).json()["matching"] >= 1
        said = client.post("/predict", params={"task": name}, content=image, headers=PNG)
        assert said.json()["answers"][0]["task"] == name
    assert supsup.load(path, device="cpu").tasks == ["shapes", "negatives", *NAMES]
    for name in NAMES:
        at = f"{running.url}/tasks/{quote(name, safe='')}"
        assert client.delete(at).json()["state"] == "done"
        assert client.delete(at).status_code == 404
    assert supsup.load(path, device="cpu").tasks == ["shapes", "negatives"]


def test_a_model_that_learned_normalised_digits_takes_images(tmp_path: Path, serving: Any, shapes: Any) -> None:
    """Its tasks, from a stream, say how pixels were normalised; so does a task that is learned from pictures then."""
    source, recipe = data.digits(), Recipe(steps=150, learning_rate=1e-3)
    model = SupSup(nets.FullyConnected((784, 100, 20)), recipe=recipe, device="cpu")
    model.learn(data.split(source, 10)[0])
    model.save(tmp_path / "digits.supsup")
    (name,) = model.tasks
    with serving(tmp_path / "digits.supsup") as running:
        files = [("images", shapes.png(image.numpy())) for image in source.test_images[:100]]
        said = running.client.post("/predict", files=files).json()["answers"]
        expected = model.predict(data.split(source, 10)[0].test.batch(torch.arange(100))[0]).labels.tolist()
        assert [answer["label"] for answer in said] == expected
        negatives = [
            ("images", (f"{label}/{number}.png", shapes.png(255 - image.numpy())))
            for number, (image, label) in enumerate(zip(source.train_images[:60], source.train_labels.tolist()))
        ]
        assert running.ended(running.client.post("/tasks/negatives", files=negatives).json())["state"] == "done"
        again = running.client.post(f"/predict?task={name}", content=files[0][1], headers=PNG).json()["answers"]
        assert again[0]["label"] == expected[0]
        taught = running.client.post("/predict?task=negatives", content=negatives[0][1][1], headers=PNG)
        assert taught.status_code == 200
    images = 255 - source.train_images[:60].float()
    answers = supsup.load(tmp_path / "digits.supsup").predict(images * source.gain + source.offset, task="negatives")
    assert answers.names[0] == taught.json()["answers"][0]["name"]


def test_a_task_may_be_learned_from_json(running: Any, shapes: Any) -> None:
    lesson = shapes.lesson("x", count=3)
    texts = [base64.b64encode(shapes.png(image)).decode() for image in lesson.images]
    job = running.client.post("/tasks/base64", json={"images": texts, "labels": lesson.labels}).json()
    assert running.ended(job)["state"] == "done"
    numbers = (lesson.images / 255.0).reshape(len(lesson.images), -1).tolist()
    job = running.client.post("/tasks/arrays", json={"arrays": numbers, "labels": [1, 7, 9] * 3}).json()
    assert running.ended(job)["state"] == "done"
    assert running.client.get("/tasks/arrays").json()["class_names"] == [1, 7, 9]
    assert running.client.get("/tasks/arrays").json()["examples"] == []


def test_a_task_that_cannot_be_learned_is_a_job_that_failed(running: Any, shapes: Any) -> None:
    """More classes than outputs: only the model knows."""
    images = [shapes.png(shapes.drawn("bar", number)) for number in range(13)]
    files = [("images", (f"{number}/1.png", content)) for number, content in enumerate(images)]
    job = running.ended(running.client.post("/tasks/many", files=files).json())
    assert job["state"] == "failed"
    assert "12 outputs" in job["error"]
    assert running.client.get("/tasks/many").status_code == 404


BAD: list[tuple[int, str, Callable[[httpx.Client, bytes], httpx.Response]]] = [
    (400, "cannot be read", lambda c, i: c.post("/predict", content=b"x", headers=PNG)),
    (400, "no image", lambda c, i: c.post("/predict", files={"note": (None, "x")})),
    (400, "not valid JSON", lambda c, i: c.post("/predict", content=b"{", headers=JSON)),
    (400, "not valid JSON", lambda c, i: c.post("/predict", content=b"[" * 9999, headers=JSON)),
    (400, "JSON object", lambda c, i: c.post("/predict", json=[1])),
    (400, "send an image", lambda c, i: c.post("/predict", json={})),
    (400, "send an image", lambda c, i: c.post("/predict", json={"images": "x"})),
    (400, "not valid base64", lambda c, i: c.post("/predict", json={"image": "@@"})),
    (400, "of one shape", lambda c, i: c.post("/predict", json={"arrays": [[1], [2, 3]]})),
    (400, "the model expects", lambda c, i: c.post("/predict", json={"arrays": [[1, 2]]})),
    (400, "NaN or infinite", lambda c, i: c.post("/predict", content=b'{"arrays": [[' + b"NaN," * 143 + b"0.5]]}",
                                                 headers=JSON)),
    (400, "unknown task", lambda c, i: c.post("/predict?task=nobody", content=i, headers=PNG)),
    (400, "unknown task", lambda c, i: c.post("/predict?among=nobody", content=i, headers=PNG)),
    (400, "task must be", lambda c, i: c.post("/predict", json={"image": base64.b64encode(i).decode(), "task": 7})),
    (400, "among must be", lambda c, i: c.post("/predict", json={"image": base64.b64encode(i).decode(), "among": []})),
    (415, "send an image", lambda c, i: c.post("/predict", content=i, headers={"Content-Type": "text/plain"})),
    (413, "too many", lambda c, i: c.post("/predict", json={"images": [""] * 257})),
    (400, "Too many files", lambda c, i: c.post("/predict", files=[("image", i)] * 257)),
    (413, "bytes", lambda c, i: c.post("/predict", content=bytes(1 << 20), headers=PNG)),
    (400, "boundary", lambda c, i: c.post("/predict", content=i, headers={"Content-Type": "multipart/form-data"})),
    (409, "already", lambda c, i: c.post("/tasks/shapes", files=[("a", ("a/1.png", i)), ("a", ("b/1.png", i))])),
    (400, "has no class", lambda c, i: c.post("/tasks/new", files=[("a", ("1.png", i))])),
    (400, "two classes", lambda c, i: c.post("/tasks/new", files=[("a", ("a/1.png", i)), ("a", ("a/2.png", i))])),
    (400, "b/1.png cannot", lambda c, i: c.post("/tasks/new", files=[("a", ("a/1.png", i)), ("a", ("b/1.png", b"x"))])),
    (400, "no image", lambda c, i: c.post("/tasks/new", files=[("a", ("a/notes.txt", b"x"))])),
    (400, "labels must", lambda c, i: c.post("/tasks/new", json={"arrays": [[0.0] * 144], "labels": [True]})),
    (400, "2 labels", lambda c, i: c.post("/tasks/new", json={"arrays": [[0.0] * 144], "labels": ["a", "b"]})),
    (415, "multipart", lambda c, i: c.post("/tasks/new", content=i, headers=PNG)),
    (400, "characters", lambda c, i: c.post(f"/tasks/{'x' * 1001}", json={})),
    (400, "NUL", lambda c, i: c.post("/tasks/%00", json={})),
    (400, "browsers cannot", lambda c, i: c.post("/tasks/%2E%2E", json={})),
    (404, "no task", lambda c, i: c.delete("/tasks/nobody")),
    (404, "no such job", lambda c, i: c.get("/jobs/nobody")),
    (404, "Not Found", lambda c, i: c.get("/nowhere")),
    (404, "Not Found", lambda c, i: c.get("/../../etc/passwd")),
    (405, "Not Allowed", lambda c, i: c.put("/tasks/new")),
]  # fmt: skip


def test_every_mistake_is_refused_with_a_reason_and_changes_nothing(path: Path, serving: Any, shapes: Any) -> None:
    image = shapes.png(shapes.drawn("box", 1))
    limits = RequestLimits(predict_bytes=1 << 19)
    with serving(path, limits=limits) as running:
        for status, reason, send in BAD:
            answer = send(running.client, image)
            assert (answer.status_code, reason in answer.json().get("error", "")) == (status, True), (
                reason,
                answer.text,
            )
        assert running.client.get("/health").json()["tasks"] == 2
        counted = running.client.get("/metrics").text
        assert 'supsup_requests_total{route="predict",status="413"}' in counted
        assert "nobody" not in counted
    assert supsup.load(path, device="cpu").tasks == ["shapes", "negatives"]


def test_a_body_without_a_length_is_held_to_the_limit_too(path: Path, serving: Any) -> None:
    def endless() -> Any:
        while True:
            yield bytes(1 << 16)

    with serving(path, limits=RequestLimits(predict_bytes=1 << 18)) as running:
        try:
            answer = running.client.post("/predict", content=endless(), headers=PNG)
            assert answer.status_code == 413
        except httpx.TransportError:  # the server hangs up on who goes on sending
            pass
        assert running.client.get("/health").status_code == 200


def test_read_only_answers_and_changes_nothing(path: Path, serving: Any, shapes: Any) -> None:
    before = path.read_bytes()
    image = shapes.png(shapes.drawn("box", 31))
    with serving(path, read_only=True) as first, serving(path, read_only=True) as second:
        for running in (first, second):  # nobody locks the file
            assert running.client.post("/predict", files={"image": image}).json()["answers"][0]["name"] == "box"
            for answer in (
                running.client.delete("/tasks/shapes"),
                running.client.post("/tasks/new", files=shapes.upload(shapes.lesson("new", count=2))),
            ):
                assert answer.status_code == 403
                assert "--read-only" in answer.json()["error"]
    assert path.read_bytes() == before


def test_answers_go_on_while_tasks_come_and_go(running: Any, shapes: Any, asked: Any) -> None:
    """Each answer is that of one state: of the two tasks that stay, or of a new one while it was there."""
    upload, stop, problems = shapes.upload(shapes.lesson("coming", count=2)), threading.Event(), []
    image = shapes.png(asked[0])
    alone = running.client.post("/predict?among=shapes&among=negatives", content=image, headers=PNG)

    def answered(response: Any) -> list[dict[str, Any]]:
        """Without the confidence in the task: all tasks that are there say how images of a task vary."""
        return [{key: each[key] for key in each if key != "task_confidence"} for each in response.json()["answers"]]

    def ask() -> None:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            while not stop.is_set():
                said = client.post("/predict?among=shapes&among=negatives", content=image, headers=PNG)
                every = client.post("/predict", content=image, headers=PNG)
                if answered(said) != answered(alone) or every.json()["among"] not in (2, 3):
                    problems.append(said.text + every.text)
                if every.json()["among"] == 2 and answered(every) != answered(alone):
                    problems.append(every.text)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        job = running.ended(running.client.post("/tasks/coming", files=upload).json())
        assert job["state"] == "done"
        assert running.ended(running.client.delete("/tasks/coming").json())["state"] == "done"
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    sizes = [
        line
        for line in running.client.get("/metrics").text.splitlines()
        if line.startswith("supsup_batch_images_count")
    ]
    assert float(sizes[0].split()[1]) > 6


def test_a_server_that_ends_leaves_the_file_whole_and_free(path: Path, serving: Any, shapes: Any) -> None:
    with serving(path) as running:
        jobs = [
            running.client.post(f"/tasks/{number}", files=shapes.upload(shapes.lesson("x", count=2))).json()
            for number in range(5)
        ]
        assert running.ended(jobs[0])["state"] == "done"
    with supsup.load(path, in_place=True, device="cpu") as model:
        assert model.tasks[:3] == ["shapes", "negatives", "0"]
    shutil.copy(path, path.with_suffix(".copy"))


def test_health_and_metrics(running: Any) -> None:
    said = running.client.get("/health").json()
    assert (said["status"], said["tasks"], said["image_shape"], said["model"]) == (
        "ok",
        2,
        [1, 12, 12],
        "shapes.supsup",
    )
    assert (said["read_only"], said["needs_token"], said["version"]) == (False, False, supsup.__version__)
    answer = running.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "supsup_tasks 2" in answer.text
