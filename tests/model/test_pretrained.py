"""Networks that bring trained weights: every weight is kept at first, and each task has a last layer of its own."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.data import Stream, Task
from supsup.file.repair import repair
from supsup.masks.frozen import FrozenNet
from supsup.model.export import plain_network
from supsup.model.state import ModelState, state_of
from supsup.training import Job, train_mask, train_masks
from supsup.training.fast.captured import CapturedTraining, run_captured
from supsup.training.plain import TrainableMask

CPU = torch.device("cpu")
RECIPE = Recipe("adam", 1e-3, steps=30, batch_size=50, score_bound=0.005)


def trained_network(task: Task) -> nn.Module:
    """A small network that knows digits, whose last layer does not."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(192, 5),
    )
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for start in range(0, 800, 80):
        x, y = task.train.batch(torch.arange(start, start + 80))
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    for value in net[-1].parameters():
        nn.init.zeros_(value)
    return net.eval()


@pytest.fixture(scope="module")
def net(split: Stream) -> nn.Module:
    return trained_network(split[0])


@pytest.fixture(scope="module")
def model(net: nn.Module, split: Stream) -> SupSup:
    """Two tasks on it; tests must not change it."""
    model = SupSup(net, pretrained=True, recipe=RECIPE, device="cpu")
    model.learn_many(split[:2])
    return model


def answers(model: SupSup, task: Task) -> Tensor:
    return model.predict(task.test.tensors()[0], task=task.name).probabilities


def right(model: SupSup, task: Task) -> float:
    x, y = task.test.tensors()
    return float((model.predict(x, task=task.name).labels == y).float().mean())


def test_every_weight_is_kept_at_first(net: nn.Module, split: Stream) -> None:
    """A random half of trained weights would be worth little: masks start from what the network knows."""
    model = SupSup(net, pretrained=True, recipe=Recipe("adam", 1e-9, steps=1), device="cpu")
    model.learn(split[0])
    assert all(bool(mask.all()) for mask in model.mask(split[0].name).values())
    random = SupSup(net, pretrained=True, recipe=Recipe("adam", 1e-9, steps=1, start="random"), device="cpu")
    random.learn(split[0])
    assert all(0.3 < float(mask.float().mean()) < 0.7 for mask in random.mask(split[0].name).values())


def test_edge_popup_cannot_keep_all() -> None:
    with pytest.raises(SupSupError, match="start 'kept' goes with selection 'threshold'"):
        Recipe(selection="edge-popup", density=0.5, start="kept")


def test_each_task_has_a_head_of_its_own(model: SupSup, split: Stream) -> None:
    """It is trained, not masked, and learning another task does not touch it."""
    assert "5.weight" not in model.mask(split[0].name)
    heads = [model.subnetwork(task.name)["5.weight"] for task in split[:2]]
    assert not torch.equal(heads[0], heads[1])
    assert all(right(model, task) > 0.75 for task in split[:2])


def test_a_head_is_saved_and_forgotten_with_its_task(
    model: SupSup, net: nn.Module, split: Stream, tmp_path: Path
) -> None:
    """The file gives the same answers to the bit, and forgetting one task leaves the other as it was."""
    model.save(tmp_path / "model.supsup")
    again = supsup.load(tmp_path / "model.supsup", net=net)
    before = answers(model, split[1])
    assert torch.equal(answers(again, split[1]), before)
    again.forget(split[0].name)
    assert torch.equal(answers(again, split[1]), before)
    exported = plain_network(model, split[1].name)
    with torch.no_grad():
        outputs = exported(split[1].test.tensors()[0])
    own = model.predict(split[1].test.tensors()[0], split[1].name, outputs="all").probabilities
    assert torch.allclose(outputs.softmax(-1), own, atol=1e-5)


def test_files_that_mask_the_last_layer_still_load(net: nn.Module, split: Stream, tmp_path: Path) -> None:
    """Models from before heads were the tasks' own answer as they did."""
    model = SupSup(net, pretrained=True, own_head=False, recipe=RECIPE, device="cpu")
    model.learn(split[0])
    assert "5.weight" in model.mask(split[0].name)
    model.save(tmp_path / "earlier.supsup")
    again = supsup.load(tmp_path / "earlier.supsup", net=net)
    assert state_of(again).net.head == []
    assert torch.equal(answers(again, split[0]), answers(model, split[0]))
    assert isinstance(state_of(again), ModelState)


@pytest.mark.parametrize("own_head", [True, False])
def test_tasks_are_rescued_without_a_header(net: nn.Module, split: Stream, tmp_path: Path, own_head: bool) -> None:
    """What a task has of its own says whether its last layer is masked, also in files from before heads were."""
    model = SupSup(net, pretrained=True, own_head=own_head, recipe=Recipe("adam", 1e-3, steps=2), device="cpu")
    model.learn(split[0])
    path = tmp_path / "model.supsup"
    model.save(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("model", "spare"):
            connection.execute(f"DELETE FROM {table}")
    repair(path, tmp_path / "rescued.supsup", net=net)
    again = supsup.load(tmp_path / "rescued.supsup", net=net)
    assert torch.equal(answers(again, split[0]), answers(model, split[0]))


def test_a_lane_trains_the_head_of_the_plain_path(net: nn.Module, split: Stream) -> None:
    """What runs on a GPU as graphs takes the same steps."""
    frozen, task = FrozenNet(net, 0, CPU, pretrained=True), split[0]
    trainable = TrainableMask(frozen, RECIPE)
    lane = CapturedTraining(
        trainable, {**frozen.statistics, **Job(task, RECIPE).first_scores(frozen)}, RECIPE, task.train
    )
    lane.start(lane.ended(), task)
    run_captured([lane])
    plain = train_mask(frozen, task.name, task.train, RECIPE)
    assert bool(plain.statistics["5.weight"].any())
    for name, value in plain.state.items():
        assert torch.allclose(lane.state[name], value, atol=2e-4), name


def test_a_fully_connected_network_starts_kept_too(stream: Stream) -> None:
    """The executor by hand starts where the plain one does."""
    frozen = FrozenNet(nets.FullyConnected((784, 30, 10)), 0, CPU)
    recipe = Recipe("adam", 1e-3, steps=10, score_bound=0.005, start="kept")
    ((_, _, _, scores, *_),) = train_masks(frozen, [Job(stream[0], recipe, keep_scores=True)])
    plain = train_mask(frozen, stream[0].name, stream[0].train, recipe)
    assert scores is not None
    for name, value in plain.scores.items():
        assert torch.allclose(scores[name][0], value, atol=1e-5)


def test_rounds_go_on_with_the_head(net: nn.Module, split: Stream) -> None:
    """Without a recipe a task is trained in rounds; each begins with the head that the last one ended with."""
    model = SupSup(net, pretrained=True, recipe=supsup.AutoRecipe(rounds=2), device="cpu")
    model.learn(split[0])
    assert right(model, split[0]) > 0.8
    chosen = model.recipe_of(split[0].name)
    assert isinstance(chosen, Recipe)
    assert (chosen.start, chosen.score_bound) == ("kept", 0.005)


def test_observing_trains_heads(net: nn.Module, split: Stream) -> None:
    """Tasks that nobody announces have heads of their own as well."""
    model = SupSup(net, pretrained=True, recipe=Recipe("adam", 1e-3, batch_size=50, score_bound=0.005), device="cpu")
    for start in range(0, 200, 50):
        name = model.observe(*split[0].train.batch(torch.arange(start, start + 50)))
    assert name is not None
    assert bool(model.subnetwork(name)["5.weight"].any())


def test_a_published_network_is_found_again_by_name(pretrained_net: nets.ImageNetwork, tmp_path: Path) -> None:
    """`SupSup` keeps its weights without being told, takes pictures as they are, and the file needs no module."""
    pictures = torch.randint(0, 256, (12, 40, 30, 3), dtype=torch.uint8)
    labels = [f"kind-{i % 3}" for i in range(12)]
    model = SupSup(pretrained_net, recipe=Recipe("adam", 3e-4, steps=2, batch_size=6, score_bound=0.005), device="cpu")
    assert state_of(model).net.pretrained
    model.learn((pictures, labels), task="noise")
    expected = torch.tensor([1 / (255 * each) for each in (0.229, 0.224, 0.225)])
    inputs = model.task_info("noise").inputs
    assert inputs is not None
    assert torch.allclose(inputs.gain, expected)
    model.save(tmp_path / "model.supsup")
    again = supsup.load(tmp_path / "model.supsup", device="cpu")
    assert torch.equal(again.predict(pictures).confidence, model.predict(pictures).confidence)
