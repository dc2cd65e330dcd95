"""Images in four rotations, each a class of its own; all but the training knows that the task has its own classes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import AutoRecipe, Recipe, SupSup, SupSupError, data, nets
from supsup.data import Augmentation, Stream, Task
from supsup.data.rotations import check_can_rotate, mean_over_rotations, with_rotations
from supsup.masks.frozen import FrozenNet
from supsup.model.state import state_of
from supsup.training import Job, train_mask, train_masks
from supsup.training.fast.captured import CapturedTraining, run_captured
from supsup.training.plain import TrainableMask
from supsup_paper.baselines import LowerBound

CPU = torch.device("cpu")
RECIPE = Recipe("adam", 3e-3, steps=60, batch_size=64, schedule="cosine", self_labels="rotations")


@pytest.fixture(scope="module")
def pairs() -> Stream:
    """Real digits, two a task."""
    return data.split(data.digits(), 2, tasks=3)


@pytest.fixture(scope="module")
def model(pairs: Stream) -> SupSup:
    """Three tasks learned in rotations; tests must not change it."""
    model = SupSup(nets.lenet_300_100(outputs=10), recipe=RECIPE, device="cpu")
    model.learn_many(pairs)
    return model


def answers(model: SupSup, task: Task) -> Tensor:
    return model.predict(task.test.tensors()[0], task=task.name).probabilities


def test_a_turned_task_shows_every_rotation(pairs: Stream) -> None:
    """Class c turned by r quarters has the label r · classes + c; the task still has its own classes."""
    made = with_rotations(pairs[0])
    count = len(pairs[0].train)
    assert (len(made.train), made.classes) == (4 * count, 2)
    x, y = pairs[0].train.batch(torch.tensor([7]))
    for quarter in range(4):
        image, label = made.train.batch(torch.tensor([7 + quarter * count]))
        assert torch.equal(image, x.rot90(quarter, (-2, -1)))
        assert int(label) == int(y) + 2 * quarter
    assert with_rotations(pairs[0]).train.images is made.train.images  # tasks of a stream share them


def test_pixels_are_rearranged_before_images_are_turned() -> None:
    """`predict` turns what it is shown, so training must turn what the task shows."""
    pixels = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8)
    colours = data.arrays(pixels, torch.arange(20) % 2, pixels, torch.arange(20) % 2)
    assert colours.offset.unique().numel() == 3
    tasks = [data.permuted(data.digits(), tasks=2)[1], data.rotated(data.digits(), tasks=3)[1]]
    for task in (*tasks, data.rotated(colours, 2, 45)[1], data.rotated(colours, 2, 45, "grey")[1]):
        part = with_rotations(task).train
        x, _ = task.train.batch(torch.tensor([3]))
        image, _ = part.batch(torch.tensor([3 + len(task.train)]))
        assert torch.allclose(image, x.rot90(1, (-2, -1)), atol=1e-5)


def test_mirrors_swap_left_and_right(pairs: Stream) -> None:
    """Else a quarter to the left, mirrored, would bear the label of one to the right."""
    task = replace(pairs[0], train=replace(pairs[0].train, augmentation=Augmentation(flip=True)))
    part = with_rotations(task).train
    order = [torch.arange(0, len(part), 97)]
    ((x, y),) = part.training_batches(order, 0, "t")
    raw, before = part.batch(order[0])
    mirrored = (x != raw).flatten(1).any(1)
    assert bool(mirrored.any())
    assert not bool(mirrored.all())
    quarter, swapped = before // 2, torch.tensor([0, 3, 2, 1])
    assert torch.equal(y[~mirrored], before[~mirrored])
    assert torch.equal(y[mirrored] // 2, swapped[quarter[mirrored]])
    assert torch.equal(y % 2, before % 2)


def test_fast_executors_train_the_plain_masks(pairs: Stream) -> None:
    """By hand on a CPU, and as lanes with mirror images."""
    net, recipe = FrozenNet(nets.FullyConnected((784, 30, 8)), 0, CPU), replace(RECIPE, steps=8)
    task = with_rotations(pairs[0])
    ((_, _, _, scores, *_),) = train_masks(net, [Job(task, recipe, keep_scores=True)])
    assert scores is not None
    for name, value in train_mask(net, task.name, task.train, recipe).scores.items():
        assert torch.allclose(scores[name][0], value, atol=1e-4)
    mirrored = replace(task, train=replace(task.train, augmentation=Augmentation(padding=1, flip=True)))
    layers = (nn.Conv2d(1, 6, 5, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(864, 8))
    other = FrozenNet(nn.Sequential(*layers), 0, CPU)
    trainable = TrainableMask(other, recipe)
    lane = CapturedTraining(
        trainable, {**other.statistics, **Job(mirrored, recipe).first_scores(other)}, recipe, mirrored.train
    )
    lane.start(lane.ended(), mirrored)
    run_captured([lane])
    for name, value in train_mask(other, task.name, mirrored.train, recipe).state.items():
        assert torch.allclose(lane.state[name], value, atol=2e-4), name


def test_answers_are_the_mean_over_the_views(model: SupSup, pairs: Stream) -> None:
    """Among the task's own classes, by the outputs of each view's own rotation."""
    task = pairs[1]
    x, y = task.test.tensors()
    found = model.predict(x, task=task.name, outputs="all")  # of the mask alone
    views = []
    for quarter in range(4):
        p = state_of(model).net.run(x.rot90(quarter, (-2, -1)), model.subnetwork(task.name)).softmax(-1)
        views.append(p[:, 2 * quarter : 2 * quarter + 2])
    mean = torch.stack(views).mean(0)
    assert torch.allclose(found.probabilities, mean / mean.sum(1, keepdim=True), atol=1e-5)
    assert float((found.labels == y).float().mean()) > 0.9
    assert model.classes(task.name) == 2


def test_one_view_of_its_own_is_the_plain_answer() -> None:
    """Outputs that do not depend on the image stay what they are, in size too."""
    outputs = torch.randn(3, 2)
    assert torch.allclose(
        mean_over_rotations(lambda _: outputs.repeat(1, 4), 2, torch.zeros(3, 1, 4, 4))[:, :2], outputs, atol=1e-5
    )


def test_the_file_knows(model: SupSup, pairs: Stream, tmp_path: Path) -> None:
    """Saved, loaded, forgotten and evaluated: other tasks answer to the bit as they did."""
    model.save(tmp_path / "model.supsup")
    again = supsup.load(tmp_path / "model.supsup", device="cpu")
    before = answers(model, pairs[2])
    assert torch.equal(answers(again, pairs[2]), before)
    again.forget(pairs[0].name)
    assert torch.equal(answers(again, pairs[2]), before)
    graded = supsup.evaluate(model, pairs, scenario="GG")
    assert graded.average_accuracy > 0.9
    supsup.export(model, pairs[2].name, tmp_path / "out.safetensors")


def test_every_method_finds_tasks(model: SupSup, pairs: Stream) -> None:
    """Trying every mask looks at all views; the gradients' ways run as they do."""
    right = 0
    for task in pairs:
        x, _ = task.test.batch(torch.arange(60))
        names = model.infer_task(x, method="exhaustive", objective="G")
        right += sum(name == task.name for name in names)
    assert right > 0.7 * 180
    x = pairs[0].test.batch(torch.arange(2))[0]
    for method in ("one-shot", "binary"):
        assert set(model.infer_task(x, method=method, objective="G")) <= set(model.tasks)


def test_without_a_recipe(pairs: Stream) -> None:
    """The recipe that is chosen says so, and tasks with and without live in one model."""
    model = SupSup(nets.lenet_300_100(outputs=8), recipe=AutoRecipe(rounds=1, self_labels="rotations"), device="cpu")
    model.learn(pairs[0])
    model.recipe = AutoRecipe(rounds=1)
    model.learn(pairs[1])
    assert [model.task_info(task.name).rotated for task in pairs[:2]] == [True, False]
    for task in pairs[:2]:
        x, y = task.test.tensors()
        assert float((model.predict(x, task=task.name).labels == y).float().mean()) > 0.9


def test_what_cannot_be_turned_is_refused(pairs: Stream) -> None:
    """With a reason, and nothing is learned."""
    small = SupSup(nets.lenet_300_100(outputs=7), recipe=RECIPE, device="cpu")
    with pytest.raises(SupSupError, match="build it with outputs=8 or more"):
        small.learn(pairs[0])
    with pytest.raises(SupSupError, match="build it with outputs=8 or more"):
        small.learn_many(pairs)
    assert small.tasks == []
    flat = SupSup(nets.FullyConnected((12, 9, 20)), recipe=RECIPE, device="cpu")
    x, y = torch.randn(20, 12), torch.arange(20) % 2
    with pytest.raises(SupSupError, match=r"not \[channels, height, width\]"):
        flat.learn((x, y), task="table")
    with pytest.raises(SupSupError, match="not square"):
        flat.learn((x.view(20, 1, 3, 4), y), task="oblong")
    with pytest.raises(SupSupError, match="cannot use self_labels"):
        SupSup(nets.lenet_300_100(8), recipe=Recipe(self_labels="rotations"), device="cpu").observe(
            *pairs[0].train.batch(torch.arange(8))
        )
    with pytest.raises(SupSupError, match="self_labels and crops are for masks"):
        LowerBound(nets.lenet_300_100(8), recipe=RECIPE)
    with pytest.raises(SupSupError, match="self_labels"):
        Recipe(self_labels="colours")  # type: ignore[arg-type]


def test_images_that_are_cropped_can_be_turned_unless_their_pixels_are_rearranged(pairs: Stream) -> None:
    varied = Augmentation(padding=2)
    permuted = data.permuted(data.digits(), 1)[0]
    check_can_rotate(replace(pairs[0], train=replace(pairs[0].train, augmentation=varied)), 8)
    check_can_rotate(permuted, 40)
    with pytest.raises(SupSupError, match="cropped before their pixels are rearranged"):
        check_can_rotate(replace(permuted, train=replace(permuted.train, augmentation=varied)), 40)
    with pytest.raises(SupSupError, match="build it with outputs=8 or more"):
        check_can_rotate(pairs[0], 7)
