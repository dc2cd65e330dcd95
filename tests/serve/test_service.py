"""Questions asked together are answered as each alone, by the library's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import supsup
from supsup import Recipe, SupSup
from supsup.runtime.errors import SupSupError
from supsup.serve.scoring import scores
from supsup.serve.service import Question, Served

KINDS = [(None, None), ("shapes", None), ("negatives", None), (None, ("shapes",)), (None, ("negatives", "shapes"))]


@pytest.fixture(scope="module")
def served(_learned: Path) -> Served:
    return Served.open(_learned, read_only=True, device="cpu")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3), st.booleans(), st.integers(0, 99)), max_size=12))
def test_together_as_alone(served: Served, shapes: Any, asked: list[Any]) -> None:
    questions = []
    for (task, among), count, negative, number in asked:
        images = [shapes.drawn(shapes.KINDS[(number + each) % 3], number + each, negative) for each in range(count)]
        questions.append(Question(np.stack(images), task, among, scores=number % 3 == 0))
    together = served.answers(questions)
    for question, answer in zip(questions, together, strict=True):
        (alone,) = served.answers([question])
        assert not isinstance(alone, Exception)
        assert not isinstance(answer, Exception)
        assert answer["among"] == alone["among"]
        assert len(answer["answers"]) == len(question)
        for one, other in zip(answer["answers"], alone["answers"], strict=True):
            assert (one["task"], one["label"], one["name"]) == (other["task"], other["label"], other["name"])
            assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
            assert ("scores" in one) == (question.scores and question.task is None)


def test_a_question_that_cannot_be_answered_spoils_no_other(served: Served, shapes: Any) -> None:
    good = np.stack([shapes.drawn("box", 5)])
    bad = np.full((1, 1, 12, 12), np.nan, np.float32)
    floats = np.zeros((1, 1, 12, 12), np.float32)
    questions = [Question(good), Question(bad), Question(floats), Question(good, "nobody"), Question(good)]
    answers = served.answers(questions)
    assert [isinstance(answer, SupSupError) for answer in answers] == [False, True, False, True, False]
    assert answers[0] == answers[4]


def test_the_mask_that_answers_is_the_one_that_scores_highest(served: Served, shapes: Any) -> None:
    for negative in (False, True):
        for kind in shapes.KINDS:
            (answer,) = served.answers([Question(np.stack([shapes.drawn(kind, 40, negative)]), scores=True)])
            assert not isinstance(answer, Exception)
            found = answer["answers"][0]
            assert found["scores"]["best"][0][0] == found["task"]
            assert found["scores"]["values"][["shapes", "negatives"].index(found["task"])] == max(
                found["scores"]["values"]
            )


def test_scores_of_thousands_are_gathered(learned: Any, images: Any) -> None:
    """A plot has room for some hundred; the best of its neighbours stands for them."""
    (found,) = scores(learned, images[:1], learned.tasks)
    assert found.each == 1
    assert len(found.values) == 4
    assert found.best[0] == (learned.infer_task(images[:1])[0], max(found.values))
    assert abs(sum(found.values)) < 0.01


def test_a_network_of_one_s_own_is_served(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))

    path = tmp_path / "own.supsup"
    model = SupSup(make(), device="cpu", recipe=Recipe(steps=2, batch_size=4))
    model.learn((torch.rand(8, 1, 4, 4), torch.arange(8) % 2), task="first")
    model.save(path)
    with pytest.raises(SupSupError, match="net"):
        Served.open(path, device="cpu")
    served = Served.open(path, make(), device="cpu")
    (answer,) = served.answers([Question(np.zeros((1, 1, 4, 4), np.uint8))])
    assert not isinstance(answer, Exception)
    assert answer["answers"][0]["task"] == "first"
    served.close()


def test_another_way_of_finding_tasks_is_the_server_s_own(path: Path, shapes: Any) -> None:
    """The file keeps the model's way, and what is learned meanwhile leaves what that way needs."""
    usual = Served.open(path, device="cpu")
    kept, image = usual.model.inference, np.stack([shapes.drawn("box", 31)])
    (by_features,) = usual.answers([Question(image)])
    usual.close()
    served = Served.open(path, device="cpu", method="exhaustive")
    (tried,) = served.answers([Question(image)])
    assert not isinstance(tried, Exception)
    assert not isinstance(by_features, Exception)
    assert abs(tried["answers"][0]["task_confidence"] - by_features["answers"][0]["task_confidence"]) > 1e-3
    served.learn(shapes.lesson("more"), lambda share: None)
    served.close()
    again = supsup.load(path, device="cpu")
    assert again.inference == kept
    assert [task.profile is not None for task in again.state.tasks] == [True] * 3
