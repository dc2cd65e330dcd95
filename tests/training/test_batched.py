"""Training by hand against training by autograd: the same masks."""

from dataclasses import replace

import pytest
import torch

from supsup import Recipe, nets
from supsup.data import Augmentation, Stream
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores
from supsup.training import Job, train_mask, train_masks
from supsup.training.fast import batched
from supsup.training.fast.batched import BatchedOnCPU, BatchedOnGPU, BatchedTrainer, bytes_per_task, start_jobs


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
    ((_, packed, *_),) = train_masks(net, [Job(stream[0], recipe)])
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
    trainer = BatchedTrainer(net, 3, Recipe(batch_size=8))
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
        ((_, alone, *_),) = train_masks(net, [job])
        assert torch.equal(together[job.task.name], alone)


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_products_are_taken_in_the_precision_asked_for(stream: Stream, precision: torch.dtype) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 3, torch.device("cpu"))
    trainer = BatchedTrainer(net, 1, Recipe(batch_size=8), precision)
    assert {trainer.x.dtype, *(layer.masked.dtype for layer in trainer.layers)} == {precision}
    ((_, packed, *_),) = train_masks(net, [Job(stream[0], Recipe(steps=50))], precision)
    ((_, usual, *_),) = train_masks(net, [Job(stream[0], Recipe(steps=50))])
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


@pytest.mark.parametrize("keep_scores", [False, True])
def test_the_gpus_loop_trains_what_the_cpus_does(
    stream: Stream, keep_scores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its graph and its memory taken away it runs anywhere: the same masks, and all is reported."""
    monkeypatch.setattr(batched, "free_memory", lambda device: 10**9)
    monkeypatch.setattr(batched, "repeat_in_graph", lambda step: step)
    monkeypatch.setattr(batched, "_TOGETHER", 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, torch.device("cpu"))
    jobs = [Job(task, Recipe("adam", 1e-2, 60, 16), keep_scores=keep_scores) for task in stream[:3]]
    done: list[float] = []
    groups = list(BatchedOnGPU().train(net, jobs, None, done.append))
    alone = list(BatchedOnCPU().train(net, jobs, None, lambda share: None))
    assert [[task.name for task in group.tasks] for group in groups] == [
        ["permutation-0", "permutation-1"],
        ["permutation-2"],
    ]
    assert done == pytest.approx([2 * 50 / 60, 2 * 10 / 60, 50 / 60, 10 / 60])
    packed = torch.cat([group.packed for group in groups], 1)
    differing = packed ^ torch.cat([each.packed for each in alone], 1)
    assert count(differing) <= 0.005 * 8 * packed.numel()  # rounding differs between kinds of CPU
    for group in groups:
        assert (group.scores is not None) == keep_scores
    if keep_scores:
        ended = {name: torch.cat([group.scores[name] for group in groups if group.scores]) for name in net.shapes}
        assert torch.equal(pack_columns({name: scores >= 0 for name, scores in ended.items()}), packed)


def test_who_takes_what(stream: Stream) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, torch.device("cpu"))
    recipe, other = Recipe(steps=3), Recipe(steps=4)
    alike = [Job(task, recipe) for task in stream[:2]]
    scores = initial_scores(0, "x", net.shapes)
    cpu, gpu = BatchedOnCPU(), BatchedOnGPU()
    for precision in (None, torch.bfloat16, torch.float32, torch.float64):
        assert cpu.takes(net, alike, precision)
    assert not cpu.takes(net, alike, torch.float16)
    assert not gpu.takes(net, alike, None)
    for unlike in (
        [alike[0], Job(stream[1], other)],
        [alike[0], Job(stream[1], recipe, scores)],
        [alike[0], Job(stream[1], recipe, keep_scores=True)],
        [Job(stream[0], Recipe(selection="edge-popup", density=0.5))],
    ):
        assert not cpu.takes(net, unlike, None)
    net.device = torch.device("cuda")
    assert [gpu.takes(net, alike, precision) for precision in (None, torch.bfloat16, torch.float32)] == [True] * 3
    assert not gpu.takes(net, alike, torch.float64)
    assert not cpu.takes(net, alike, None)
    varied = replace(stream[1], train=replace(stream[1].train, augmentation=Augmentation(1)))
    assert not gpu.takes(net, [alike[0], Job(varied, recipe)], None)


def test_figures_are_those_of_the_batch_before_its_step(stream: Stream) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 0, torch.device("cpu"))
    trainer = BatchedTrainer(net, 1, Recipe(batch_size=32))
    start_jobs(trainer, [Job(stream[0], Recipe())])
    x, y = stream[0].train.batch(torch.arange(40))
    outputs = net.run(x, net.masked({name: bits[0] for name, bits in trainer.masks().items()}))
    trainer.load(x, y)
    trainer.step()
    loss, accuracy = trainer.figures()
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, y)), rel=1e-4)
    assert accuracy == pytest.approx(float((outputs.argmax(1) == y).float().mean()))
    assert int(trainer.step_count) == 1
    assert [batched.pad_width(width) for width in (1, 8, 9, 784)] == [8, 8, 16, 784]


def test_scores_are_drawn_piece_by_piece(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    net = FrozenNet(nets.FullyConnected((784, 20, 12)), 3, torch.device("cpu"))
    for recipe in (Recipe(score_bound=0.5), Recipe(score_bound=0.5, start="kept")):
        found = []
        for at_once in (1 << 26, 2 * 784 * 20):
            monkeypatch.setattr(batched, "_SCORES", at_once)
            trainer = BatchedTrainer(net, 3, replace(recipe, batch_size=8))
            start_jobs(trainer, [Job(task, recipe) for task in stream[:3]])
            found.append(trainer.scores())
        for name, one in found[0].items():
            assert torch.equal(one, found[1][name])
            assert one.abs().max() <= 0.5
            assert bool((one == 0.5).all()) == (recipe.start == "kept")


def test_weights_whose_score_is_zero_are_kept_from_the_start() -> None:
    net = FrozenNet(nets.FullyConnected((16, 8)), 0, torch.device("cpu"))
    trainer = BatchedTrainer(net, 2, Recipe(batch_size=4))
    trainer.start(lambda name: [torch.zeros(1, 8, 16), torch.full((1, 8, 16), -1.0)])
    (layer,), (weight,) = trainer.layers, net.weights.values()
    assert torch.equal(layer.masked[0], weight)
    assert not layer.masked[1].any()
    assert [bool(bits.all()) for bits in trainer.masks()["layers.0.weight"]] == [True, False]
