"""A task that was learned in all rotations is answered by the mean over them, wherever its network is run."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from supsup import Inference, Recipe, SupSup, data
from supsup.data.rotations import mean_over_rotations
from supsup.inference.candidates import Candidates, TaskNetworks, TaskView
from supsup.inference.gradient import Goal
from supsup.inference.objectives import entropy
from supsup.model.state import state_of
from supsup.serve.service import scores

EXHAUSTIVE = Inference("exhaustive")


@pytest.fixture(scope="module")
def rotated() -> SupSup:
    """Three tasks learned in rotations, without profiles."""
    net = nn.Sequential(nn.Conv2d(1, 6, 7, 3), nn.ReLU(), nn.Flatten(), nn.Linear(384, 16))
    recipe = Recipe("adam", 0.05, steps=30, self_labels="rotations")
    model = SupSup(net, recipe=recipe, inference=Inference(), device="cpu")
    model.learn_many(list(data.split(data.digits(), 2, tasks=3)), show_progress=False)
    return model


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.cat([task.test.tensors()[0][:20] for task in data.split(data.digits(), 2, tasks=3)])


@pytest.fixture(scope="module")
def expected(rotated: SupSup, images: Tensor) -> Tensor:
    """Minus the entropy of the mean over rotations under each mask: [images, tasks]."""
    state = state_of(rotated)
    found = []
    for index in range(3):
        weights = state.net.masked(state.bank.subnetwork(index))
        outputs = mean_over_rotations(partial(state.net.run, weights=weights), 2, images)
        found.append(-entropy(outputs, 2))
    upright = torch.stack(
        [-entropy(state.net.run(images, state.net.masked(state.bank.subnetwork(i))), 2) for i in range(3)], 1
    )
    assert (upright.argmax(1) != torch.stack(found, 1).argmax(1)).any(), "rotations matter here"
    return torch.stack(found, 1)


def test_scores_are_of_the_mean_over_rotations(rotated: SupSup, images: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(rotated.task_scores(images, inference=EXHAUSTIVE), expected)


def test_the_server_shows_the_mean_over_rotations(rotated: SupSup, images: Tensor, expected: Tensor) -> None:
    """Otherwise its plot has another peak than the task that answers."""
    shown = scores(rotated, images, rotated.tasks, EXHAUSTIVE)
    assert [each["best"][0][0] for each in shown] == rotated.predict(images, inference=EXHAUSTIVE).tasks
    deviations = (expected - expected.mean(1, keepdim=True)) / expected.std(1, correction=0, keepdim=True)
    torch.testing.assert_close(torch.tensor([each["values"] for each in shown]), deviations, atol=2e-3, rtol=0)


def test_without_profiles_every_mask_is_tried_in_all_rotations(
    rotated: SupSup, images: Tensor, expected: Tensor
) -> None:
    answer = rotated.predict(images, inference=Inference("auto"))
    assert answer.method_used == "exhaustive"
    assert answer.tasks == [rotated.tasks[index] for index in expected.argmax(1).tolist()]


def test_gradients_count_every_rotation_of_a_class_as_a_class(rotated: SupSup, images: Tensor) -> None:
    """The objective G must not punish outputs that a task uses: of 16 outputs two classes in four rotations take 8."""
    state = state_of(rotated)
    networks = TaskNetworks(state.net, state.bank, state.tasks)
    assert Candidates(networks, [TaskView(images[:, None])], Inference()).goal == Goal("H", 8)
