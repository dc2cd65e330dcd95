"""`supsup report`, run as a user would."""

import json
import subprocess
import sys
from pathlib import Path

from supsup_paper.catalogue.entries import ENTRIES


def supsup(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "from supsup.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)


def test_a_page_and_markdown_are_written_from_what_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "rotated"
    folder.mkdir(parents=True)
    record = {
        "entry": "rotated",
        "row": "supsup-binary-H",
        "seed": 0,
        "scale": "full",
        "settings": dict(ENTRIES["rotated"].rows[0].settings),
        "figures": {"accuracy %": {"": 96.2}},
        "made by": {"device": "a GPU"},
    }
    (folder / "supsup-binary-H-seed0.json").write_text(json.dumps(record))
    (folder / "psp-seed0.json").write_text("not JSON")
    (tmp_path / "README.md").write_text(
        "top\n<!-- reproduction: made by supsup report from results/ -->\n<!-- /reproduction -->\n"
    )
    done = supsup("report", "--out", "site/page.html", "--markdown", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 reproduced" in done.stdout
    assert "results/rotated/psp-seed0.json: damaged" in done.stdout
    page = (tmp_path / "site" / "page.html").read_text()
    assert "96.20" in page
    assert "rotated/psp-seed0.json" in page
    assert "96.20" in (tmp_path / "REPRODUCTION.md").read_text()
    assert "a GPU" in (tmp_path / "results" / "ROWS.md").read_text()
    assert (folder / "plot-1.svg").read_text().startswith("<?xml")
    assert "**96.20** | 96.13 | reproduced" in (tmp_path / "README.md").read_text()


def test_without_a_folder_it_says_what_to_do(tmp_path: Path) -> None:
    done = supsup("report", cwd=tmp_path)
    assert done.returncode == 2
    assert "results does not exist; run `supsup reproduce` first" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
