"""A request passes through few files: those that docs/architecture.md lists."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.test_walks import Walk, check_walk


def test_a_request_visits_few_files(path: Path, serving: Any, shapes: Any) -> None:
    walk, content = Walk(), shapes.png(shapes.drawn(shapes.KINDS[0], 31))
    threading.setprofile(walk.watch)
    try:
        with serving(path) as running:
            png = {"Content-Type": "image/png"}
            running.client.post("/predict", content=content, headers=png)  # builds what is built once
            walk.start_again()
            assert running.client.post("/predict", content=content, headers=png).status_code == 200
            check_walk("`POST /predict`", walk.files())
    finally:
        threading.setprofile(None)
