"""Captured trainings take the plain path's steps, for masks and for baselines; on a CPU they are run one by one."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from supsup import Recipe, evaluate, nets
from supsup.data import Augmentation, Stream, Task
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores
from supsup.training import Job, train_mask, train_masks
from supsup.training.executors import CannotTrain
from supsup.training.fast.captured import (
    CapturedTraining,
    ScheduledOptimiser,
    run_captured,
    step_launches,
)
from supsup.training.plain import TrainableMask
from supsup_paper.baselines import BatchE, LowerBound, SeparateHeads, UpperBound
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.training import can_capture, learn_captured, learn_plain

Make = Callable[..., Baseline]
RIVALS: dict[str, Make] = {
    "lower": lambda net, recipe, device="cpu": LowerBound(net, recipe=recipe, device=device),
    "upper": lambda net, recipe, device="cpu": UpperBound(net, recipe=recipe, device=device),
    "heads": lambda net, recipe, device="cpu": SeparateHeads(net, recipe=recipe, device=device),
    "batche": lambda net, recipe, device="cpu": BatchE(net, base="random", last="head", recipe=recipe, device=device),
}
CPU = torch.device("cpu")


def lane_of(net: FrozenNet, task: Task, recipe: Recipe) -> CapturedTraining:
    trainable = TrainableMask(net, recipe)
    state = net.statistics | initial_scores(net.seed, task.name, net.shapes, net.device)
    return CapturedTraining(trainable, state, recipe, task.train)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(steps=6, batch_size=50),
        Recipe("adam", 1e-2, steps=6, batch_size=50, schedule="cosine", selection="edge-popup", density=0.4),
        Recipe("sgd", 0.1, steps=6, batch_size=50, momentum=0.9, warm_up=0.3),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "augmented", "permuted"])
def test_lanes_train_the_masks_of_the_plain_path(
    convolutional: nn.Module, split: Stream, recipe: Recipe, kind: str
) -> None:
    """Several tasks at a time, each with its own batches."""
    tasks = list(split[:2])
    if kind == "permuted":
        tasks = [replace(task, train=replace(task.train, pixels=torch.randperm(784))) for task in tasks]
    if kind == "augmented":
        shifted = Augmentation(padding=2, flip=True)
        tasks = [replace(task, train=replace(task.train, augmentation=shifted)) for task in tasks]
    net = FrozenNet(convolutional, 0, CPU)
    lanes = [lane_of(net, task, recipe) for task in tasks]
    for lane, task in zip(lanes, tasks):
        lane.start(lane.ended(), task)
    heard: list[float] = []
    run_captured(lanes, heard.append)
    assert sum(heard) == pytest.approx(2)
    for lane, task in zip(lanes, tasks):
        plain = train_mask(net, task.name, task.train, recipe)
        for name, value in plain.state.items():
            assert torch.allclose(lane.state[name], value, atol=2e-4), name


@pytest.mark.parametrize("make", RIVALS.values(), ids=RIVALS.keys())
def test_a_lane_takes_the_plain_steps_of_a_rival(make: Make, convolutional: nn.Module, split: Stream) -> None:
    recipe = Recipe("adam", 1e-3, batch_size=100, epochs=1, schedule="cosine", weight_decay=1e-4)
    fast, slow = make(convolutional, recipe), make(convolutional, recipe)
    for task in split:
        learn_captured(fast, [task])
        learn_plain(slow, task)
    for task in split:
        for name, value in slow.state_of(task.name).items():
            assert torch.allclose(value, fast.state_of(task.name)[name], atol=2e-4), (task.name, name)


def test_a_lane_is_used_again_for_the_next_task(convolutional: nn.Module, split: Stream, brief: Recipe) -> None:
    """Capturing it anew would take longer than some tasks."""
    rival = RIVALS["upper"](convolutional, brief)
    learn_captured(rival, [split[0]])
    (lane,) = rival.lanes
    learn_captured(rival, [split[1]])
    assert rival.lanes == [lane]
    assert not lane.fits(lane.state, replace(brief, steps=brief.steps + 1), split[0].train)
    shifted = replace(split[0].train, augmentation=Augmentation(padding=1))
    assert not lane.fits(lane.state, brief, shifted)
    assert not lane.fits(lane.state, brief, replace(split[0].train, gain=torch.tensor(7.0)))


class Own(nn.Module):
    """A network that does something besides computing."""

    def __init__(self, besides: Callable[[nn.Module], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)
        self.besides, self.calls = besides, 0

    def forward(self, x: Tensor) -> Tensor:
        self.besides(self)
        out: Tensor = self.linear(x.flatten(1))
        return out


def _count(module: nn.Module) -> None:
    module.calls += 1  # type: ignore[operator, assignment]


@pytest.mark.parametrize("besides", [lambda _: torch.rand(1), lambda _: random.random(), _count])
def test_what_python_decides_is_not_captured(besides: Callable[[nn.Module], object], stream: Stream) -> None:
    """A graph would repeat the first decision for ever: a layer that is skipped by chance would always be skipped."""
    lane = lane_of(FrozenNet(Own(besides), 0, CPU), stream[0], Recipe())
    assert isinstance(lane.trainable, TrainableMask)
    with pytest.raises(CannotTrain, match="draws random numbers on the host or changes the network"):
        lane.rehearse()
    with pytest.warns(UserWarning, match="cannot be captured"):
        assert not can_capture(lane)


class Viewing(nn.Module):
    """What a layer that uses `view` is given where images lie channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4 * 26 * 26, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = self.convolution(x).contiguous(memory_format=torch.channels_last)
        answer: Tensor = self.head(found.view(len(x), -1))
        return answer


def test_a_network_that_wants_another_layout_is_not_captured_and_told(split: Stream) -> None:
    net = FrozenNet(Viewing(), 0, CPU)
    with pytest.warns(UserWarning, match="use `reshape` or `nn.Flatten`"):
        assert not can_capture(lane_of(net, split[0], Recipe(steps=2, batch_size=8)))


def test_a_rehearsal_leaves_no_trace(convolutional: nn.Module, split: Stream) -> None:
    net, recipe = FrozenNet(convolutional, 0, CPU), Recipe(steps=2)
    before, lane = torch.get_rng_state(), lane_of(net, split[0], recipe)
    state = lane.ended()
    assert not lane.rehearse()
    lane.start(state, split[0])
    run_captured([lane])
    plain = train_mask(net, split[0].name, split[0].train, recipe)
    assert all(torch.allclose(lane.state[name], value, atol=1e-4) for name, value in plain.state.items())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["upper", "batche"])
def test_captured_steps_learn_what_plain_ones_learn(kind: str, convolutional: nn.Module, split: Stream) -> None:
    """In bfloat16, so answers are compared, not weights; tasks of BatchE go on streams of their own."""
    recipe = Recipe("adam", 1e-2, batch_size=100, epochs=4, schedule="cosine", weight_decay=1e-4)
    found = []
    for device in ("cuda", "cpu"):
        model = RIVALS[kind](convolutional, recipe, device)
        model.learn_many(split)
        found.append(evaluate(model, split, "GG").average_accuracy)
    assert found[1] > 0.5
    assert found[0] == pytest.approx(found[1], abs=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("selection", [{}, {"selection": "edge-popup", "density": 0.5}])
def test_captured_masks_are_those_of_the_plain_path(
    convolutional: nn.Module, split: Stream, selection: dict[str, object]
) -> None:
    net = FrozenNet(convolutional, 0, torch.device("cuda"))
    recipe = Recipe("adam", 1e-2, steps=12, batch_size=100, schedule="cosine", **selection)  # type: ignore[arg-type]
    jobs = [Job(task, recipe) for task in split]
    for trained in train_masks(net, jobs, torch.float32):
        plain = train_mask(net, trained.tasks[0].name, trained.tasks[0].train, recipe)
        assert trained.scores is not None
        for name, value in plain.scores.items():
            near = torch.isclose(trained.scores[name][0], value, atol=1e-3).float().mean()
            assert near > 0.98, name


@pytest.mark.gpu
def test_random_layers_draw_from_seed_and_name_alone(split: Stream) -> None:
    """Alone and beside others, today and tomorrow: the same mask."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 10))
    net, recipe = FrozenNet(module, 0, torch.device("cuda")), Recipe("adam", 1e-2, steps=20)
    together = [trained.packed for trained in train_masks(net, [Job(task, recipe) for task in split])]
    torch.cuda.manual_seed(5)
    ((_, alone, *_),) = train_masks(net, [Job(split[1], recipe)])
    assert torch.equal(together[1], alone)


@pytest.mark.gpu
def test_a_network_that_waits_for_the_device_is_trained_plainly(split: Stream) -> None:
    net = FrozenNet(Own(lambda module: float(module.linear.weight.detach().sum())), 0, torch.device("cuda"))  # type: ignore[union-attr, operator]
    with pytest.warns(UserWarning, match="waits for the device"):
        ((tasks, *_),) = train_masks(net, [Job(split[0], Recipe(steps=3))])
    assert [task.name for task in tasks] == [split[0].name]


@pytest.mark.gpu
def test_images_read_from_files_are_captured_too(convolutional: nn.Module, split: Stream) -> None:
    """Batches come from the host, one for each step."""
    task = split[0]
    task = replace(task, train=replace(task.train, augmentation=Augmentation(padding=128)))
    net, recipe = FrozenNet(convolutional, 0, torch.device("cuda")), Recipe("adam", 1e-2, steps=8, batch_size=50)
    ((_, _, _, scores, *_),) = train_masks(net, [Job(task, recipe)], torch.float32)
    plain = train_mask(net, task.name, task.train, recipe)
    assert scores is not None
    for name, value in plain.scores.items():
        assert torch.isclose(scores[name][0], value, atol=1e-3).float().mean() > 0.98, name


def test_nets_of_ours_can_be_lanes_too(split: Stream) -> None:
    """Whatever a faster executor refuses."""
    lane = lane_of(FrozenNet(nets.FullyConnected((784, 8, 10)), 0, CPU), split[0], Recipe(steps=2))
    assert not lane.rehearse()


def test_on_a_cpu_a_launch_is_a_step() -> None:
    done: list[int] = []
    launch, launches = step_launches(lambda: done.append(1), 7, torch.device("cpu"))
    launch()
    assert (len(done), launches) == (1, 7)


@pytest.mark.parametrize("optimiser", ["rmsprop", "adam", "sgd"])
def test_a_restarted_optimiser_is_a_new_one(optimiser: str) -> None:
    """What keeps one task's moments out of the next."""
    recipe = Recipe(optimiser, 0.1, schedule="cosine", momentum=0.9 if optimiser == "sgd" else 0.0)  # type: ignore[arg-type]

    def path(scheduled: ScheduledOptimiser, value: torch.Tensor) -> list[float]:
        found = []
        for _ in range(4):
            value.grad = 2 * value.detach()
            scheduled.step()
            found.append(float(value.detach()))
        return found

    value = torch.ones((), requires_grad=True)
    scheduled = ScheduledOptimiser(recipe, [value], 4)
    first = path(scheduled, value)
    with torch.no_grad():
        value.fill_(1)
    scheduled.restart()
    assert path(scheduled, value) == pytest.approx(first)
    plain = torch.ones((), requires_grad=True)
    reference = recipe.build([plain])
    for step, expected in enumerate(first):
        for group in reference.param_groups:
            group["lr"] = recipe.rate(step, 4)
        plain.grad = 2 * plain.detach()
        reference.step()
        assert float(plain.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "at_once"), [(1000, 50), (1, 1), (53, 1), (7, 7), (50, 50), (997, 1), (120, 40), (102, 34), (5000, 50)]
)
def test_on_a_gpu_a_launch_is_many_steps(steps: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are the longest that make up all steps; at most two steps are taken one by one before."""
    asked: list[tuple[int, int]] = []
    launched: list[None] = []

    def repeated(step: Callable[[], None], at_once: int, warm_up: int) -> Callable[[], None]:
        asked.append((at_once, warm_up))
        return lambda: launched.append(None)

    monkeypatch.setattr("supsup.training.fast.captured.repeat_in_graph", repeated)
    launch, launches = step_launches(lambda: None, steps, torch.device("cuda"))
    launch()
    assert (launches * at_once, len(launched), asked) == (steps, 1, [(at_once, min(steps, 2))])
