"""Who may ask and who may change the model, as browsers and other programs come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supsup.runtime.errors import SupSupError
from supsup.serve.server import ServerSettings

TOKEN = "a-long-secret"


def test_without_a_token_only_this_machine_is_served() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with pytest.raises(SupSupError, match="--token"):
            ServerSettings(host=host)
        assert not ServerSettings(host=host, token=TOKEN).local
        assert not ServerSettings(host=host, read_only=True).local
    for host in ("127.0.0.1", "localhost", "::1"):
        assert ServerSettings(host=host).local
    for token in ("short", "ünicode-token"):
        with pytest.raises(SupSupError, match="at least 8 characters"):
            ServerSettings(token=token)


def test_the_token_guards_what_changes_the_model(path: Path, serving: Any, shapes: Any) -> None:
    upload = shapes.upload(shapes.lesson("new", count=2))
    with serving(path, token=TOKEN) as running:
        client = running.client
        assert client.get("/tasks").status_code == 200
        assert client.post("/predict", files={"image": upload[0][1]}).status_code == 200
        assert client.get("/health").json()["needs_token"] is True
        for shown in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {TOKEN}",
            TOKEN,
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
        ):
            for answer in (
                client.post("/tasks/new", files=upload, headers={"Authorization": shown}),
                client.delete("/tasks/shapes", headers={"Authorization": shown}),
            ):
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert running.ended(client.post("/tasks/new", files=upload, headers=right).json())["state"] == "done"
        assert client.delete("/tasks/new", headers=right).json()["state"] == "done"
        assert TOKEN not in client.get("/metrics").text + client.get("/health").text


def test_a_page_of_another_site_can_change_nothing(running: Any, shapes: Any) -> None:
    """Its requests say where they come from; and a name that was made to point here is not ours."""
    client = running.client
    upload = shapes.upload(shapes.lesson("new", count=2))
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": running.url + "0"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert client.delete("/tasks/shapes", headers=headers).status_code == 403
        assert client.post("/tasks/new", files=upload, headers=headers).status_code == 403
        assert client.post("/predict", files={"image": upload[0][1]}, headers=headers).status_code == 403
    for host in ("evil.example", f"evil.example:{running.url.rpartition(':')[2]}", "127.0.0.1.evil.example", ""):
        assert client.get("/tasks", headers={"Host": host}).status_code == 421
        assert client.delete("/tasks/shapes", headers={"Host": host}).status_code == 421
    for host in ("localhost", "LOCALHOST:80", "[::1]:8000", "127.0.0.1"):
        assert client.get("/tasks", headers={"Host": host}).status_code == 200
    own = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/predict", files={"image": upload[0][1]}, headers=own).status_code == 200
    assert client.get("/health").json()["tasks"] == 2


@pytest.mark.parametrize("route", ["/", "/script.js", "/tasks", "/nowhere", "/metrics"])
def test_browsers_are_told_to_run_nothing_but_the_page(running: Any, route: str) -> None:
    headers = running.client.get(route).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers or "uvicorn" in headers["server"]
