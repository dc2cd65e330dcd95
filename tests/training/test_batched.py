"""Training by hand against training by autograd: the same masks."""

import pytest
import torch

from supsup import Recipe, nets
from supsup.bank import pack_columns
from supsup.data import Stream
from supsup.frozen import FrozenNet
from supsup.scores import initial_scores
from supsup.training import Job, train_mask, train_masks
from supsup.training.batched import BatchedTrainer, bytes_per_task, start_jobs


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(steps=200),
        Recipe("adam", 1e-3, steps=60, weight_decay=1e-4),
        Recipe("sgd", 2.0, steps=20, momentum=0.9),
        Recipe("adam", 1e-3, steps=60, schedule="cosine", warm_up=0.2),
        Recipe("adam", 1e-3, epochs=2, schedule="cosine"),
    ],
)
def test_the_masks_agree_with_the_plain_path(stream: Stream, recipe: Recipe) -> None:
    """At least 99.9 % of the bits; what differs is rounding."""
    net = FrozenNet(nets.lenet_300_100(outputs=50), 0, torch.device("cpu"))
    ((_, packed, _, _),) = train_masks(net, [Job(stream[0], recipe)])
    plain = train_mask(net, stream[0].name, stream[0].train, recipe).mask()
    start = train_mask(net, stream[0].name, stream[0].train, Recipe("sgd", 1e-30, steps=1)).mask()
    differing, moved = ((pack_columns(one(m)) ^ packed) for m in (plain, start))
    bits = sum(weight.numel() for weight in net.weights.values())
    assert count(differing) <= 0.001 * bits
    assert count(moved) > 0.01 * bits, "the recipe must change the mask for this test to mean anything"


def one(mask: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: bits[None] for name, bits in mask.items()}


def count(packed: torch.Tensor) -> int:
    return int(sum(((packed >> bit) & 1).sum() for bit in range(8)))


def test_every_job_of_a_group_starts_from_its_own_scores(stream: Stream) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 3, torch.device("cpu"))
    trainer = BatchedTrainer(net, 3, Recipe(), 8)
    names = [task.name for task in stream[:3]]
    own = [initial_scores(3, name, net.shapes) for name in names]
    given = [initial_scores(4, name, net.shapes) for name in names]
    for expected, jobs in (
        (own, [Job(task, Recipe()) for task in stream[:3]]),
        (given, [Job(task, Recipe(), scores) for task, scores in zip(stream[:3], given)]),
    ):
        start_jobs(trainer, jobs)
        for i, scores in enumerate(expected):
            for layer, values in zip(trainer.layers, scores.values()):
                rows, columns = values.shape
                assert torch.equal(layer.scores[i, :rows, :columns], values)


def test_a_mask_is_the_same_to_the_bit_alone_and_beside_others(stream: Stream) -> None:
    """What makes a resumed run end with the masks of one that was never interrupted."""
    net, recipe = FrozenNet(nets.FullyConnected((784, 20, 12)), 3, torch.device("cpu")), Recipe(steps=30)
    jobs = [Job(task, recipe) for task in stream[:3]]
    together = {task.name: packed for (task,), packed, *_ in train_masks(net, jobs)}
    for job in jobs:
        ((_, alone, _, _),) = train_masks(net, [job])
        assert torch.equal(together[job.task.name], alone)


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_products_are_taken_in_the_precision_asked_for(stream: Stream, precision: torch.dtype) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 3, torch.device("cpu"))
    trainer = BatchedTrainer(net, 1, Recipe(), 8, precision)
    assert {trainer.x.dtype, *(layer.masked.dtype for layer in trainer.layers)} == {precision}
    ((_, packed, _, _),) = train_masks(net, [Job(stream[0], Recipe(steps=50))], precision)
    ((_, usual, _, _),) = train_masks(net, [Job(stream[0], Recipe(steps=50))])
    bits = sum(weight.numel() for weight in net.weights.values())
    assert count(packed ^ usual) < 0.02 * bits


@pytest.mark.parametrize(
    ("recipe", "moments"), [(Recipe(steps=7), 1), (Recipe("adam", steps=7), 2), (Recipe("sgd", steps=7), 0)]
)
def test_what_a_task_takes_is_counted_in_bytes(stream: Stream, recipe: Recipe, moments: int) -> None:
    """Groups that are too large run out of memory on a GPU; counted by hand for 784 × 20 and 20 × 10 weights."""
    net = FrozenNet(nets.FullyConnected((784, 20, 10)), 0, torch.device("cpu"))
    scores, steps, masked, gradient = 4, 4 * moments, 4, 2
    of_weights = (784 * 20 + 20 * 10) * (scores + steps + masked + gradient)
    of_a_batch, order = 8 * (784 + 20 + 10) * 128, 8 * 7 * 128
    assert bytes_per_task(net, Job(stream[0], recipe)) == of_weights + of_a_batch + order
