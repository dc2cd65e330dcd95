"""How training goes: figures that are those of the batch, a callback that can stop it, a bar only for who looks."""

import io
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from supsup import Recipe, SupSup, nets
from supsup.data import Stream
from supsup.model.state import state_of
from supsup.runtime import progress
from supsup.runtime.progress import Step

Net = Callable[[], nn.Module]
NETS: list[Net] = [lambda: nets.FullyConnected((784, 20, 12)), lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 12))]


class Stop(Exception):
    pass


@pytest.mark.parametrize("make", NETS, ids=["by hand", "plain"])
def test_a_callback_hears_of_the_batches(make: Net, stream: Stream) -> None:
    heard: list[Step] = []
    model = SupSup(make(), recipe=Recipe("adam", 1e-2, steps=120, batch_size=32), device="cpu")
    model.learn(stream[0], callback=heard.append)
    assert [(each.task, each.step, each.steps) for each in heard] == [
        ("permutation-0", at, 120) for at in (50, 100, 120)
    ]
    assert all(each.loss is not None and each.accuracy is not None for each in heard)
    assert heard[-1].loss < 1.5  # type: ignore[operator]
    assert heard[-1].accuracy > 0.6  # type: ignore[operator]
    assert model.tasks == ["permutation-0"]


@pytest.mark.parametrize("make", NETS, ids=["by hand", "plain"])
def test_loss_and_accuracy_are_those_of_the_batch(make: Net, stream: Stream) -> None:
    """Of the last batch before its step: with one step, of the first masks."""
    from supsup.masks.scores import initial_scores
    from supsup.training.executors import batch_positions

    heard: list[Step] = []
    model = SupSup(make(), recipe=Recipe(steps=1, batch_size=64), device="cpu")
    model.learn(stream[0], callback=heard.append)
    scores = initial_scores(0, "permutation-0", state_of(model).net.shapes, torch.device("cpu"))
    x, y = stream[0].train.batch(next(batch_positions(0, "permutation-0", len(stream[0].train), 64, 1)))
    outputs: Tensor = state_of(model).net.run(
        x, state_of(model).net.masked({name: (value >= 0).float() for name, value in scores.items()})
    )
    assert heard[0].loss == pytest.approx(float(cross_entropy(outputs, y)), rel=1e-4)
    assert heard[0].accuracy == pytest.approx(float((outputs.argmax(1) == y).float().mean()))


@pytest.mark.parametrize("make", NETS, ids=["by hand", "plain"])
def test_what_a_callback_raises_stops_the_training(make: Net, stream: Stream) -> None:
    def stop(step: Step) -> None:
        raise Stop

    model = SupSup(make(), recipe=Recipe(steps=200), device="cpu")
    with pytest.raises(Stop):
        model.learn(stream[0], callback=stop)
    assert model.tasks == []
    assert model.learn(stream[0]) == "permutation-0"


@pytest.mark.parametrize("make", NETS, ids=["by hand", "plain"])
def test_listening_changes_no_mask(make: Net, stream: Stream) -> None:
    silent, heard = (SupSup(make(), recipe=Recipe(steps=60), device="cpu") for _ in range(2))
    silent.learn(stream[0])
    heard.learn(stream[0], callback=lambda step: None, show_progress=False)
    for name, bits in silent.mask("permutation-0").items():
        assert torch.equal(bits, heard.mask("permutation-0")[name])


def test_shares_are_steps_where_nobody_reports() -> None:
    """An executor that says only how far it is still moves the bar and lets a callback stop it."""
    heard: list[Step] = []
    advance = progress.Steps("t", 100, heard.append, progress.ProgressBar())
    for _ in range(10):
        advance(0.1)
    assert heard == [Step("t", 50, 100), Step("t", 100, 100)]


def test_a_bar_for_who_looks(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    model = SupSup(NETS[0](), recipe=Recipe(steps=50), device="cpu")
    model.learn(stream[0])
    assert written.getvalue() == ""
    model.learn(stream[1], show_progress=True)
    assert "learning permutation-1" in written.getvalue()
    assert "loss" in written.getvalue()
    assert "accuracy" in written.getvalue()


def test_a_line_every_few_seconds_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = progress.Lines("learning", 20, "tasks", clock=lambda: now[0])
    for second in range(1, 41):
        now[0] = second
        lines(0.5)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"learning: {5 * n} of 20 tasks, {40 - 10 * n} s left" for n in (1, 2, 3, 4)]


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("learning", 2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""
