"""Baselines on residual networks, many states at once, are the plain ones; kernels run in Triton's interpreter here."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSupError, data, nets
from supsup.data import Augmentation, Source, Stream
from supsup_paper.baselines import PSP, BatchE, SeparateHeads, UpperBound, learn_side_by_side
from supsup_paper.baselines import training as networks
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.training import StackedFullyConnected, learn_plain, most_at_once, stacked_network, stacks

pytest.importorskip("triton")

Make = Callable[..., Baseline]
RECIPE = Recipe("sgd", 0.05, steps=2, batch_size=4, momentum=0.5, weight_decay=1e-2, schedule="cosine")


def net() -> nets.ResNet:
    return nets.ResNet(3, (1,), (4,), channels=2)


def _source() -> Source:
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(256, (80, 2, 6, 6), dtype=torch.uint8, generator=chance)
    labels = torch.arange(80) % 8
    gain, offset = torch.tensor([0.01, 0.02]), torch.tensor([-1.0, 0.5])
    return Source("small", images, labels, images, labels, gain, offset, 8, Augmentation(padding=1, flip=True))


SOURCE = _source()
METHODS: dict[str, Make] = {
    "upper": lambda seed=0, device="cpu": UpperBound(net(), seed, recipe=RECIPE, device=device),
    "batche": lambda seed=0, device="cpu": BatchE(net(), seed, recipe=RECIPE, device=device),
    "batche, random, head": lambda seed=0, device="cpu": BatchE(
        net(), seed, base="random", last="head", recipe=RECIPE, device=device
    ),
    "heads": lambda seed=0, device="cpu": SeparateHeads(net(), seed, recipe=RECIPE, device=device),
    "heads, random": lambda seed=0, device="cpu": SeparateHeads(
        net(), seed, trunk="random", recipe=RECIPE, device=device
    ),
}


def stream_of(seed: int = 0) -> Stream:
    """Four tasks of cropped and mirrored images in memory."""
    return data.split(SOURCE, 2, seed=seed)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels also for networks on the CPU, in float32."""
    monkeypatch.setattr(networks, "_KERNELS", {"cpu": torch.float32})


def same(fast: Baseline, slow: Baseline, near: float = 1e-4) -> None:
    """Weights and statistics of all tasks, to what sums in another order may differ by."""
    assert fast.tasks == slow.tasks
    for task in slow.tasks:
        ours, theirs = fast.state_of(task), slow.state_of(task)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.allclose(ours[name].cpu(), value, rtol=10 * near, atol=near), (task, name)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["upper", "batche"])
def test_two_seeds_in_step_are_two_plain_baselines(kind: str) -> None:
    fast, slow = ([METHODS[kind](seed) for seed in (0, 1)] for _ in range(2))
    for tasks in zip(*(stream_of(seed)[:2] for seed in (0, 1))):
        learn_side_by_side(fast, tasks)
        for baseline, task in zip(slow, tasks):
            learn_plain(baseline, task)
    for one, other in zip(fast, slow):
        same(one, other)
    states = [baseline.state_of(baseline.tasks[0]) for baseline in fast]
    assert all(not torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["batche, random, head", "heads", "heads, random"])
def test_tasks_at_once_are_the_plain_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "TOGETHER", 2)
    fast, slow, stream = METHODS[kind](), METHODS[kind](), stream_of()[:3]
    pieces = list(fast.learning(stream))
    assert pieces == ([1, 2] if kind == "heads" else [2, 1])
    for task in stream:
        learn_plain(slow, task)
    same(fast, slow)


@pytest.mark.usefixtures("kernels")
def test_tasks_of_other_lengths_go_in_groups_of_their_own() -> None:
    model, stream = METHODS["heads, random"](), stream_of()
    rows = stream[2].train.rows
    assert rows is not None
    shorter = replace(stream[2].train, rows=rows[:-1], labels=stream[2].train.labels[:-1])
    tasks = [stream[0], stream[1], replace(stream[2], train=shorter), stream[3]]
    assert list(model.learning(tasks)) == [2, 1, 1]
    assert model.tasks == [task.name for task in tasks]


@pytest.mark.usefixtures("kernels")
def test_a_frozen_trunk_is_not_trained_and_statistics_begin_afresh() -> None:
    model, stream = METHODS["heads, random"](), stream_of()[:2]
    before = {name: value.clone() for name, value in model.shared.items()}
    model.learn_many(stream, show_progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.shared.items())
    first, second = (model.state_of(task) for task in model.tasks)
    for name in model.statistics:
        assert not torch.equal(first[name], before[name])
        assert not torch.equal(first[name], second[name])


@pytest.mark.usefixtures("kernels")
def test_a_stack_is_used_again_only_for_images_shown_in_the_same_way() -> None:
    """Capturing takes its time; but a stack's crops and normalisation are those of its first task."""
    model, stream = METHODS["upper"](), stream_of()
    model.recipe = model.first = replace(RECIPE, steps=1)
    model.learn(stream[0])
    stack = model.stack
    assert stack is not None
    model.learn(stream[1])
    assert model.stack is stack
    model.learn(replace(stream[2], train=replace(stream[2].train, augmentation=Augmentation(padding=2))))
    assert model.stack is not stack
    stack = model.stack
    model.learn(replace(stream[3], train=replace(stream[3].train, augmentation=None, gain=torch.tensor(0.02))))
    assert model.stack is not stack


def test_residual_networks_go_through_kernels_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    task, baselines = stream_of()[0], [make() for make in METHODS.values()]
    assert all(baseline.residual for baseline in baselines)
    assert not any(stacks(baseline, task) for baseline in baselines)
    with pytest.raises(SupSupError, match="on a GPU"):
        learn_side_by_side(baselines[:1], [task])
    assert most_at_once(baselines[0], task.train) == 1
    monkeypatch.setattr(networks, "_KERNELS", {"cpu": torch.float32})
    assert all(stacks(baseline, task) for baseline in baselines)
    assert most_at_once(baselines[0], task.train) > 1


@pytest.mark.usefixtures("kernels")
def test_what_the_kernels_do_not_know_is_left_to_others() -> None:
    stream, upper = stream_of(), METHODS["upper"]()
    part = stream[0].train
    assert stacked_network(upper, part) is not None
    assert stacked_network(upper, replace(part, images=part.images.float())) is None, "images are bytes"
    upper.first = replace(RECIPE, batch_size=1 << 23)
    assert stacked_network(upper, part) is None, "numbers would run over"
    assert not stacks(PSP(net(), recipe=RECIPE, device="cpu"), stream[0]), "its contexts are for one state"
    changed = net()
    changed.conv.bias = nn.Parameter(torch.ones(4))
    assert not stacks(UpperBound(changed, recipe=RECIPE, device="cpu"), stream[0])
    averaging = net()
    averaging.norm.momentum = None
    assert not stacks(UpperBound(averaging, recipe=RECIPE, device="cpu"), stream[0]), "over all batches"
    chain = UpperBound(nets.FullyConnected((72, 3)), recipe=RECIPE, device="cpu")
    assert stacked_network(chain, replace(part, augmentation=None)) is StackedFullyConnected
    assert stacked_network(chain, part) is None


@pytest.mark.usefixtures("kernels")
def test_seeds_must_see_their_images_in_the_same_way() -> None:
    pair, stream = [METHODS["upper"](seed) for seed in (0, 1)], stream_of()
    other = replace(stream[1], train=replace(stream[1].train, augmentation=Augmentation(padding=2)))
    with pytest.raises(SupSupError, match="same images"):
        learn_side_by_side(pair, [stream[0], other])


@pytest.mark.gpu
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "0", reason="compile the kernels: TRITON_INTERPRET=0")
@pytest.mark.parametrize("kind", METHODS)
def test_captured_steps_are_the_plain_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, so that nothing but the order of sums differs."""
    monkeypatch.setattr(networks, "_KERNELS", {"cuda": torch.float32})
    gpu, slow, stream = METHODS[kind](device="cuda"), METHODS[kind](), stream_of()
    gpu.learn_many(stream, show_progress=False)
    assert not gpu.lanes
    for task in stream:
        learn_plain(slow, task)
    same(gpu, slow, near=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "0", reason="compile the kernels: TRITON_INTERPRET=0")
@pytest.mark.parametrize("kind", METHODS)
def test_in_bfloat16_weights_go_where_the_plain_ones_go(kind: str) -> None:
    gpu, slow, task = METHODS[kind](device="cuda"), METHODS[kind](), stream_of()[0]
    start = {name: value.clone() for name, value in slow.begin(task).items()}
    gpu.learn(task)
    learn_plain(slow, task)
    ours, theirs = gpu.state_of(task.name), slow.state_of(task.name)
    moved = [
        name for name, value in theirs.items() if name not in slow.statistics and not torch.equal(value, start[name])
    ]
    went, goes = (torch.cat([(each[name].cpu() - start[name]).flatten() for name in moved]) for each in (theirs, ours))
    assert torch.cosine_similarity(went, goes, 0) > 0.98
    for name in slow.statistics:
        assert torch.allclose(ours[name].cpu(), theirs[name], rtol=0.05, atol=0.05), name
