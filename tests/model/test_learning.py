"""Learning announced tasks: where scores start, and several models that learn one task together."""

from collections.abc import Iterator

import pytest
import torch

from supsup import Recipe, SupSup, SupSupError, nets
from supsup.data import Part, Stream, Task
from supsup.masks.scores import initial_scores, transferred
from supsup.model import learning
from supsup.model.learning import Learning
from supsup.model.state import state_of
from supsup.training import Trained, train_masks
from supsup_paper.runs.cifar import learn_with_models


def model(density: float, transfer: str = "none") -> SupSup:
    recipe = Recipe("adam", 1e-2, 4, 16, selection="edge-popup", density=density, transfer=transfer)  # type: ignore[arg-type]
    return SupSup(nets.FullyConnected((784, 20, 10)), recipe=recipe, device="cpu")


@pytest.mark.parametrize("transfer", ["none", "masks", "scores"])
def test_models_that_learn_together_are_those_that_learn_alone(stream: Stream, transfer: str) -> None:
    together, alone = ([model(density, transfer) for density in (0.1, 0.4)] for _ in range(2))
    finished: list[float] = []
    for task in stream[:2]:
        learn_with_models(together, task, finished.append)
        for each in alone:
            each.learn(task)
    assert sum(finished) == 4
    for one, two in zip(together, alone):
        assert one.tasks == two.tasks == [task.name for task in stream[:2]]
        assert all(torch.equal(state_of(one).bank.packed(i), state_of(two).bank.packed(i)) for i in range(2))


def test_scores_that_are_not_there_any_more_are_missed(stream: Stream) -> None:
    learned = model(0.2, "scores")
    learned.learn_many(stream[:2])
    with pytest.raises(SupSupError, match="not saved with a model"):
        learned.to("cpu").learn(stream[2])
    learned.learn(stream[2])
    assert len(learned.tasks) == 3


def test_a_stream_has_images_of_one_shape(stream: Stream) -> None:
    """A model that learned two shapes would refuse to answer for one of them."""
    x, y = stream[0].train.tensors()
    flat = Task("flat", Part(x.flatten(1), y), Part(x.flatten(1), y), 10)
    learner = model(0.2)
    with pytest.raises(SupSupError, match=r"images have shape \(784,\)"):
        learner.learn_many([stream[1], flat])
    assert learner.tasks == []


def test_with_transfer_scores_start_from_the_mean_of_all_masks(stream: Stream) -> None:
    """Around 0 for masks that a threshold at 0 makes, else weights that were never kept would be kept at once."""
    plain = Recipe("adam", 1e-2, 4, 16, transfer="masks")
    for recipe, centred in ((plain, True), (state_of(model(0.2, "masks")).settings.recipe.stepwise, False)):
        learner = SupSup(nets.FullyConnected((784, 20, 10)), recipe=recipe, device="cpu")
        learning = Learning(state_of(learner))
        own = initial_scores(learner.seed, "next", state_of(learner).net.shapes)
        assert all(torch.equal(learning.first_scores("next", recipe)[name], scores) for name, scores in own.items())
        learner.learn_many(stream[:2])
        masks = [learner.mask(task) for task in learner.tasks]
        mean = {name: (masks[0][name].float() + masks[1][name].float()) / 2 for name in own}
        expected = transferred(mean, own, centred)
        assert all(
            torch.equal(learning.first_scores("next", recipe)[name], scores) for name, scores in expected.items()
        )


def test_what_many_tasks_are_found_by_is_made_a_few_at_a_time(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    net, recipe = nets.FullyConnected((784, 20, 10)), Recipe("adam", 1e-2, 4, 16)
    together, apart = (SupSup(net, recipe=recipe, device="cpu") for _ in range(2))
    together.learn_many(stream[:5])
    add, sizes = Learning.add, []

    def in_one_group(*arguments: object) -> Iterator[Trained]:
        groups = list(train_masks(*arguments))  # type: ignore[arg-type]
        yield Trained([task for group in groups for task in group.tasks], torch.cat([g.packed for g in groups], 1), {})

    def counted(self: Learning, trained: Trained) -> None:
        sizes.append(len(trained.tasks))
        add(self, trained)

    monkeypatch.setattr("supsup.training.recipe.train_masks", in_one_group)
    monkeypatch.setattr(learning, "_PROFILED", 2)
    monkeypatch.setattr(Learning, "add", counted)
    apart.learn_many(stream[:5])
    assert sizes == [2, 2, 1]
    assert together.tasks == apart.tasks
    for index in range(5):
        one, other = (state_of(model).tasks.at(index).profile for model in (together, apart))
        assert one is not None
        assert other is not None
        assert all(torch.equal(value, other.tensors()[name]) for name, value in one.tensors().items())
        assert torch.equal(state_of(together).bank.packed(index), state_of(apart).bank.packed(index))


def test_one_model_may_learn_together_with_nobody(stream: Stream) -> None:
    together, alone = model(0.1), model(0.1)
    learn_with_models([together], stream[0], lambda share: None)
    alone.learn(stream[0])
    assert torch.equal(state_of(together).bank.packed(0), state_of(alone).bank.packed(0))
