"""The documentation site builds where mkdocs is installed, says what the program says, and needs no other host."""

import html
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import supsup
from supsup.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a broken link or anchor is a warning, and mkdocs.yml makes warnings fail."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install 'supsup[docs]'")
    into = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(into)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(part) for part in ("src", *sys.path) if part)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into


def words(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
        assert f'href="{page.stem}.html"' in (site / "index.html").read_text(), f"{page.name} is missing in the menu"


def test_the_references_have_every_command_and_name(site: Path) -> None:
    commands, api = words(site / "commands.html"), words(site / "api.html")
    for name, place in COMMANDS.items():
        assert f"supsup {name}" in commands
        assert place.help.split(";")[0].split(":")[0] in commands
    assert "supsup bench infer" in commands
    assert "--task-column" in commands
    for name in supsup.__all__:
        assert f"supsup.{name}" in api
    assert "SupSup.forget(" in api
    assert "supsup.evaluation.promises.check_learner" in api


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.search(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="(?:https?:)?//', text), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name
