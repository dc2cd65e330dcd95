"""How the time of a lone image grows: the table as a user sees it, and banks larger than what was learned."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from supsup import Inference, SupSup
from supsup.cli import app
from supsup.data import Stream
from supsup.model.state import state_of
from supsup_paper.bench import Machine, bench_growth
from supsup_paper.bench.bare_masks import infer_indices
from supsup_paper.bench.inference import first_of

FIGURES = ("query ms", "exact ms", "floor, exact ms", "short ms", "floor, short ms", "short as exact %")


def test_the_table_fits_into_80_columns(tmp_path: Path, learned: SupSup) -> None:
    """All figures of all numbers of tasks, more of them than have room side by side; and the same as JSON and plot."""
    model, target = tmp_path / "model.supsup", tmp_path / "growth.json"
    learned.save(model)
    counts = "2,4,40,1000,1001,1002,1003"
    size = ("--model", str(model), "--tasks", counts, "--images", "3", "--coordinates", "4096", "--device", "cpu")
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["bench", "infer", *size, "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    for word in (*FIGURES, *(f"{int(count):,}" for count in counts.split(","))):
        assert word in done.output
    record = json.loads(target.read_text())
    assert [row["k"] for row in record["rows"]] == [int(count) for count in counts.split(",")]
    assert all(row[figure] > 0 for row in record["rows"] for figure in FIGURES)
    assert record["tasks learned"] == 4
    assert "<svg" in target.with_suffix(".svg").read_text()


def test_tasks_are_learned_where_no_model_is_given() -> None:
    size = ("--tasks", "1,3", "--steps", "2", "--images", "2", "--outputs", "20", "--device", "cpu")
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["bench", "infer", *size])
    assert done.exit_code == 0, done.output
    assert "a lone image among k tasks" in done.output


def test_answers_are_counted_against_the_exact_search(
    learned: SupSup, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search from few coordinates that is right half the time is seen to be."""
    asked = [0]

    def half_right(*given: object) -> torch.Tensor:
        answer: torch.Tensor = infer_indices(*given)  # type: ignore[arg-type]
        how = given[-1]
        assert isinstance(how, Inference)
        asked[0] += how.coordinates is not None
        return answer if how.coordinates is None or asked[0] % 2 else (answer + 1) % 4

    monkeypatch.setattr("supsup_paper.bench.inference.infer_indices", half_right)
    how = Inference(layers="first", coordinates=4096)
    (row,) = bench_growth(learned, stream[:4], [4], 8, Machine(1e9, 1e9), how)
    assert (row.images, row.exact_right, row.agreement) == (8, 100, 50)


def test_a_bank_beyond_what_was_learned(learned: SupSup) -> None:
    """Random in the first layer, where tasks are told apart; as a learned one beyond it, where they are alike."""
    bank = state_of(learned).bank
    fewer, more = first_of(bank, 2), first_of(bank, 11)
    assert (len(fewer), len(more)) == (2, 11)
    for index in range(4):
        assert torch.equal(more.packed(index), bank.packed(index))
    beyond = next(iter(bank.spans.values()))[1]
    for index in range(4, 11):
        assert torch.equal(more.packed(index)[beyond:], bank.packed(index % 4)[beyond:])
        assert 0.49 < float(more.mask(index)[next(iter(bank.shapes))].float().mean()) < 0.51
