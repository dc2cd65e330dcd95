"""Which residual tasks go together, and that the kernels see the very batches that every executor sees."""

import pytest
import torch

from supsup import SupSupError, data, nets
from supsup.data import Augmentation, Source, Stream
from supsup.frozen import FrozenNet
from supsup.scores import initial_scores
from supsup.training import Recipe
from supsup.training.order import batch_positions

pytest.importorskip("triton")

from supsup.training.residual import Job, groups, supports, takes, train_together
from supsup.training.residual.many import bytes_per_task, image_feed
from supsup.training.residual.trainer import ResidualTrainer

CPU = torch.device("cpu")
RECIPE = Recipe("adam", 1e-2, epochs=2, batch_size=4, selection="edge-popup", budget=2)


@pytest.fixture(scope="module")
def net() -> FrozenNet:
    return FrozenNet(nets.ResNet(3, (1,), (4,), channels=2), 0, CPU)


@pytest.fixture(scope="module")
def stream() -> Stream:
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(256, (40, 2, 8, 8), dtype=torch.uint8, generator=chance)
    labels = torch.arange(40) % 4
    gain, offset = torch.tensor([0.01, 0.02]), torch.tensor([-1.0, 0.5])
    source = Source("small", images, labels, images, labels, gain, offset, 4, Augmentation(padding=2, flip=True))
    return data.split(source, 2)


def test_the_kernels_see_the_batches_that_every_executor_sees(net: FrozenNet, stream: Stream) -> None:
    tasks = [stream[1], stream[0], stream[1]]
    steps = RECIPE.steps_for(len(stream[0].train))
    kept = [[RECIPE.kept(shape) for shape in net.shapes.values()] for _ in tasks]
    trainer = ResidualTrainer(net, (2, 8, 8), kept, RECIPE, 4, steps, torch.float32)
    trainer.step = lambda: None  # type: ignore[method-assign]
    feed = image_feed(net, tasks, steps, 4)
    expected = [
        list(task.train.training_batches(batch_positions(0, task.name, len(task.train), 4, steps), 0, task.name))
        for task in tasks
    ]
    for step in range(steps):
        trainer.step_from(feed)
        trainer.step_count += 1
        for i, batches in enumerate(expected):
            x, y = batches[step]
            assert torch.allclose(trainer.x[i, :, 1:-1, 1:-1, :2].permute(0, 3, 1, 2), x)
            assert torch.equal(trainer.y[i].long(), y)


def test_groups_share_images_and_fit_into_memory(net: FrozenNet, stream: Stream) -> None:
    each = bytes_per_task(net, stream[0].train, RECIPE)
    assert [len(group) for group in groups(net, list(stream) * 3, RECIPE, int(4.5 * each / 0.7))] == [4, 2]
    other = data.split(data.arrays(torch.zeros(8, 2, 8, 8), [0, 1] * 4, torch.zeros(2, 2, 8, 8), [0, 1]), 2)
    assert [len(group) for group in groups(net, [stream[0], other[0], stream[1]], RECIPE, 1 << 40)] == [1, 1, 1]


def test_what_the_kernels_cannot_do_is_left_to_autograd(net: FrozenNet, stream: Stream) -> None:
    assert supports(net, RECIPE)
    assert takes(stream[0].train)
    assert not supports(net, Recipe("sgd"))
    assert not supports(FrozenNet(nets.resnet50(3), 0, CPU), RECIPE)
    assert not supports(FrozenNet(nets.FullyConnected((8, 3)), 0, CPU), RECIPE)
    assert not takes(
        data.permuted(data.arrays(torch.zeros(4, 1, 8, 8), [0] * 4, torch.zeros(1, 1, 8, 8), [0]), 1)[0].train
    )


def test_jobs_with_other_recipes_do_not_go_together(net: FrozenNet, stream: Stream) -> None:
    scores = initial_scores(0, "any", net.shapes)
    jobs = [Job(stream[0], RECIPE, scores), Job(stream[1], Recipe("adam", 1e-2, epochs=3, batch_size=4), scores)]
    with pytest.raises(SupSupError, match=f"task {stream[1].name!r} has another recipe or length"):
        train_together(net, jobs)
