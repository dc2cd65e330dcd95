"""Steps, launches and the pace of an optimiser."""

from collections.abc import Callable

import pytest
import torch

from supsup import Recipe
from supsup.training.fast import captured as loop
from supsup.training.fast.captured import ScheduledOptimiser, StepLoop, whole_launches


@pytest.mark.parametrize("steps", [1, 7, 1000, 5000, 997, 120])
def test_launches_make_up_all_steps(steps: int) -> None:
    at_once = whole_launches(steps, 50)
    assert steps % at_once == 0
    assert 1 <= at_once <= 50


def test_a_loop_runs_its_steps() -> None:
    done: list[int] = []
    StepLoop(lambda: done.append(1), 7, torch.device("cpu")).run()
    assert len(done) == 7


@pytest.mark.parametrize("optimiser", ["rmsprop", "adam", "sgd"])
def test_a_restarted_optimiser_is_a_new_one(optimiser: str) -> None:
    """What keeps one task's moments out of the next."""
    recipe = Recipe(optimiser, 0.1, schedule="cosine", momentum=0.9 if optimiser == "sgd" else 0.0)  # type: ignore[arg-type]

    def path(scheduled: ScheduledOptimiser, value: torch.Tensor) -> list[float]:
        found = []
        for _ in range(4):
            value.grad = 2 * value.detach()
            scheduled.step()
            found.append(float(value.detach()))
        return found

    value = torch.ones((), requires_grad=True)
    scheduled = ScheduledOptimiser(recipe, [value], 4)
    first = path(scheduled, value)
    with torch.no_grad():
        value.fill_(1)
    scheduled.restart()
    assert path(scheduled, value) == pytest.approx(first)
    plain = torch.ones((), requires_grad=True)
    reference = recipe.build([plain])
    for step, expected in enumerate(first):
        for group in reference.param_groups:
            group["lr"] = recipe.rate(step, 4)
        plain.grad = 2 * plain.detach()
        reference.step()
        assert float(plain.detach()) == pytest.approx(expected, rel=1e-5)


def test_launches_are_the_longest_that_make_up_all_steps() -> None:
    assert [whole_launches(steps, 50) for steps in (1, 7, 50, 1000, 997, 120, 102)] == [1, 7, 50, 50, 1, 40, 34]


@pytest.mark.parametrize(("steps", "launches", "captured"), [(1000, 20, (50, 2)), (1, 1, (1, 1)), (53, 53, (1, 2))])
def test_on_a_gpu_a_launch_is_many_steps(
    steps: int, launches: int, captured: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    launched: list[None] = []

    def repeated(step: Callable[[], None], at_once: int, warm_up: int) -> Callable[[], None]:
        asked.append((at_once, warm_up))
        return lambda: launched.append(None)

    monkeypatch.setattr(loop, "repeated", repeated)
    made = StepLoop(lambda: None, steps, torch.device("cuda"))
    made.run()
    assert (made.steps, len(launched), asked) == (steps, launches, [captured])
