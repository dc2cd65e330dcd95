"""Questions asked together are answered as each alone, by the library's own answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import supsup
from supsup import Recipe, SupSup, data, nets
from supsup.model.state import state_of
from supsup.runtime.errors import SupSupError
from supsup.serve.requests import PredictRequest
from supsup.serve.service import ModelService, scores

KINDS = [(None, None), ("shapes", None), ("negatives", None), (None, ("shapes",)), (None, ("negatives", "shapes"))]


@pytest.fixture(scope="module")
def served(_learned: Path) -> ModelService:
    return ModelService.open(_learned, read_only=True, device="cpu")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3), st.booleans(), st.integers(0, 99)), max_size=12))
def test_together_as_alone(served: ModelService, shapes: Any, asked: list[Any]) -> None:
    questions = []
    for (task, among), count, negative, number in asked:
        images = [shapes.drawn(shapes.KINDS[(number + each) % 3], number + each, negative) for each in range(count)]
        questions.append(PredictRequest(np.stack(images), task, among, scores=number % 3 == 0))
    together = served.predict(questions)
    for question, answer in zip(questions, together, strict=True):
        (alone,) = served.predict([question])
        assert not isinstance(alone, Exception)
        assert not isinstance(answer, Exception)
        assert answer["among"] == alone["among"]
        assert len(answer["answers"]) == len(question)
        for one, other in zip(answer["answers"], alone["answers"], strict=True):
            assert (one["task"], one["label"], one["name"]) == (other["task"], other["label"], other["name"])
            assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
            assert ("scores" in one) == (question.scores and question.task is None)


def test_a_question_that_cannot_be_answered_spoils_no_other(served: ModelService, shapes: Any) -> None:
    good = np.stack([shapes.drawn("box", 5)])
    bad = np.full((1, 1, 12, 12), np.nan, np.float32)
    floats = np.zeros((1, 1, 12, 12), np.float32)
    questions = [
        PredictRequest(good),
        PredictRequest(bad),
        PredictRequest(floats),
        PredictRequest(good, "nobody"),
        PredictRequest(good),
    ]
    answers = served.predict(questions)
    assert [isinstance(answer, SupSupError) for answer in answers] == [False, True, False, True, False]
    assert answers[0] == answers[4]


def test_the_mask_that_answers_is_the_one_that_scores_highest(served: ModelService, shapes: Any) -> None:
    for negative in (False, True):
        for kind in shapes.KINDS:
            (answer,) = served.predict([PredictRequest(np.stack([shapes.drawn(kind, 40, negative)]), scores=True)])
            assert not isinstance(answer, Exception)
            found = answer["answers"][0]
            assert found["scores"]["best"][0][0] == found["task"]
            assert found["scores"]["values"][["shapes", "negatives"].index(found["task"])] == max(
                found["scores"]["values"]
            )


def test_scores_of_thousands_are_gathered(learned: Any, images: Any) -> None:
    """A plot has room for some hundred; the best of its neighbours stands for them."""
    (found,) = scores(learned, images[:1], learned.tasks)
    assert found["each"] == 1
    assert len(found["values"]) == 4
    assert found["best"][0] == (learned.infer_task(images[:1])[0], max(found["values"]))
    assert abs(sum(found["values"])) < 0.01


def test_a_network_of_one_s_own_is_served(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))

    path = tmp_path / "own.supsup"
    model = SupSup(make(), device="cpu", recipe=Recipe(steps=2, batch_size=4))
    model.learn((torch.rand(8, 1, 4, 4), torch.arange(8) % 2), task="first")
    model.save(path)
    with pytest.raises(SupSupError, match="net"):
        ModelService.open(path, device="cpu")
    served = ModelService.open(path, make(), device="cpu")
    (answer,) = served.predict([PredictRequest(np.zeros((1, 1, 4, 4), np.uint8))])
    assert not isinstance(answer, Exception)
    assert answer["answers"][0]["task"] == "first"
    served.close()


def test_another_way_of_finding_tasks_is_the_server_s_own(path: Path, shapes: Any) -> None:
    """The file keeps the model's way, and what is learned meanwhile leaves what that way needs."""
    usual = ModelService.open(path, device="cpu")
    kept, image = usual.model.inference, np.stack([shapes.drawn("box", 31)])
    (by_features,) = usual.predict([PredictRequest(image)])
    usual.close()
    served = ModelService.open(path, device="cpu", method="exhaustive")
    (tried,) = served.predict([PredictRequest(image)])
    assert not isinstance(tried, Exception)
    assert not isinstance(by_features, Exception)
    assert abs(tried["answers"][0]["task_confidence"] - by_features["answers"][0]["task_confidence"]) > 1e-3
    served.learn(shapes.lesson("more"), lambda share: None)
    served.close()
    again = supsup.load(path, device="cpu")
    assert again.inference == kept
    assert [task.profile is not None for task in state_of(again).tasks] == [True] * 3


class Stream:
    """Pictures of shapes as a stream has them: bytes, with a normalisation that is nobody else's."""

    @staticmethod
    def source(shapes: Any, colours: int = 1) -> data.Source:
        """Shapes as a source; more colours: the same in each."""
        lesson = shapes.lesson("any", count=12)
        images = torch.from_numpy(lesson.images).expand(-1, colours, -1, -1).contiguous()
        labels = torch.tensor([shapes.KINDS.index(label) for label in lesson.labels])
        gain, offset = torch.tensor([1 / 90.0, 1 / 80, 1 / 70][:colours]), torch.tensor([-0.2, -2.0, 1.5][:colours])
        return data.Source("shapes", images, labels, images, labels, gain, offset, 3)

    @staticmethod
    def model(source: data.Source, path: Path) -> SupSup:
        """A model that has learned two permutations of it, saved."""
        recipe = Recipe(steps=60, learning_rate=1e-3, batch_size=16)
        model = SupSup(nets.FullyConnected((source.train_images[0].numel(), 48, 3)), recipe=recipe, device="cpu")
        model.learn_many(data.permuted(source, 2), show_progress=False)
        model.save(path)
        return model


@pytest.mark.parametrize("colours", [1, 3])
def test_pictures_are_normalised_as_the_stream_was(tmp_path: Path, shapes: Any, colours: int) -> None:
    """A guess (grey: MNIST, colour: CIFAR) would answer from other inputs than those learned."""
    source = Stream.source(shapes, colours)
    model = Stream.model(source, tmp_path / "stream.supsup")
    served = ModelService.open(tmp_path / "stream.supsup", device="cpu")
    pictures = source.train_images[::3]
    inputs = pictures.float() * source.gain.view(-1, 1, 1) + source.offset.view(-1, 1, 1)
    for task, among in ((None, None), ("permutation-1", None), (None, ("permutation-0",))):
        (answer,) = served.predict([PredictRequest(pictures.numpy(), task, among)])
        expected = model.predict(inputs, task=task, among=among)
        assert not isinstance(answer, Exception)
        assert [each["task"] for each in answer["answers"]] == expected.tasks
        assert [each["label"] for each in answer["answers"]] == expected.labels.tolist()
        assert [each["confidence"] for each in answer["answers"]] == pytest.approx(
            expected.confidence.tolist(), abs=1e-5
        )
    served.close()


def without_normalisation(model: SupSup) -> None:
    """As files of earlier versions are."""
    for task in state_of(model).tasks:
        task.info = replace(task.info, normalisation=None)


def test_pictures_are_refused_where_their_normalisation_is_unknown(tmp_path: Path, shapes: Any) -> None:
    """Old files and tasks learned from normalised numbers: no guess, but a reason; arrays are answered."""
    path = tmp_path / "stream.supsup"
    source = Stream.source(shapes)
    model = Stream.model(source, path)
    without_normalisation(model)
    path.unlink()
    model.save(path)
    served = ModelService.open(path, device="cpu")
    pictures, arrays = source.train_images[:2], data.permuted(source, 2)[0].test.batch(torch.arange(2))[0]
    refused, answered = served.predict([PredictRequest(pictures.numpy()), PredictRequest(arrays.numpy())])
    assert isinstance(refused, SupSupError)
    assert "does not say how images of task 'permutation-0' were normalised" in str(refused)
    assert not isinstance(answered, Exception)
    with pytest.raises(SupSupError, match="does not say how images of task 'permutation-0' were normalised"):
        served.learn(shapes.lesson("more"), lambda share: None)
    served.close()


def test_pictures_are_refused_where_tasks_normalise_them_differently(tmp_path: Path, shapes: Any) -> None:
    """One picture cannot be given to both; with the task named it can."""
    path = tmp_path / "stream.supsup"
    source = Stream.source(shapes)
    model = Stream.model(source, path)
    model.learn(replace(data.permuted(replace(source, offset=source.offset + 1), 1)[0], name="shifted"))
    served = ModelService(model, path)
    pictures = source.train_images[:2].numpy()
    refused, named = served.predict([PredictRequest(pictures), PredictRequest(pictures, "shifted")])
    assert isinstance(refused, SupSupError)
    assert "tasks 'permutation-0' and 'shifted' normalise images differently" in str(refused)
    assert not isinstance(named, Exception)
