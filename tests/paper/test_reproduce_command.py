"""`supsup reproduce` as a user types it."""

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supsup import SupSupError
from supsup.cli import app, main
from supsup_paper.catalogue.entries import ENTRIES
from supsup_paper.catalogue.experiments import HopfieldExperiment, HopfieldTraining
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.reproduction import CallResult


def run(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["reproduce", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_list_names_everything() -> None:
    output = run("--list")
    for name in (*ENTRIES, "all-mnist"):
        assert name in output


def test_list_shows_verdicts(tmp_path: Path) -> None:
    """Of the results that lie there; without any, everything has still to be run."""
    output = run("--list", "--out", str(Path(__file__).parents[2] / "results"))
    assert re.search(r"permuted-2500 .*2 reproduced", output)
    assert re.search(r"\d+ reproduced, \d+ better, \d+ worse, \d+ measured, \d+ not run\.", " ".join(output.split()))
    output = " ".join(run("--list", "--out", str(tmp_path)).split())
    assert "0 reproduced, 0 better, 0 worse, 0 measured, 103 not run. 10 more rows repeat one of these" in output


def test_mistakes_are_answered_with_what_there_is() -> None:
    with pytest.raises(SupSupError, match="permuted-lenet, permuted-fc"):
        run("permuted-lent")
    with pytest.raises(SupSupError, match="say what to reproduce: permuted-lenet"):
        run()
    with pytest.raises(SupSupError, match="quick or full"):
        run("gamma", "--scale", "huge")
    with pytest.raises(SupSupError, match="1 or more"):
        run("gamma", "--seeds", "0")


def test_an_interruption_is_answered_with_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("supsup_paper.commands.reproduce"), "reproduce_entries", interrupted)
    monkeypatch.setattr("sys.argv", ["supsup", "reproduce", "gamma", "--device", "cpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert "interrupted: finished rows are saved; run the same command again to resume" in capsys.readouterr().err


def test_a_cluster_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nothing would be wrong but the time that a run takes."""
    given: list[Environment] = []

    def watched(*arguments: Any) -> CallResult:
        given.append(arguments[4])
        return CallResult(0, 0, 0, 0.0)

    monkeypatch.setattr(importlib.import_module("supsup_paper.commands.reproduce"), "reproduce_entries", watched)
    run("gamma", "--device", "cpu", "--out", str(tmp_path), "--cluster", "local:2")
    run("gamma", "--device", "cpu", "--out", str(tmp_path))
    assert [environment.cluster for environment in given] == ["local:2", None]


def test_quick_prints_ours_beside_the_published_and_keeps_apart(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick figure among full ones would be taken for a reproduction."""
    monkeypatch.setattr(
        HopfieldExperiment, "quick", lambda self: replace(self, training=HopfieldTraining(units=48, starts=2))
    )
    output = run("hopfield", "--scale", "quick", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path))
    assert "97.43" in output
    assert "fewer tasks and steps" in output
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]
    assert len(list((tmp_path / "quick" / "hopfield").glob("*.json"))) == 3
    assert "3 of 3 rows and seeds are there already" in run("hopfield", "--seeds", "1", "--out", str(tmp_path))
    one_row = run("hopfield", "--row", "own", "--seeds", "1", "--out", str(tmp_path))
    assert "masks as learned" in one_row
    assert "descent" not in one_row, "rows that were not asked for are neither shown nor called wrong"
    assert run("hopfield", "--bytes", "--out", str(tmp_path)) == ""
