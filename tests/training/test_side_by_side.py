"""Small networks side by side on a CPU: the plain path's masks, the same to the bit whatever is trained beside them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from supsup import Recipe
from supsup.data import Part, Stream, Task
from supsup.masks.frozen import FrozenNet
from supsup.training import Job, MaskTraining, train_mask, train_masks
from supsup.training.executors import CannotTrain, Trained, executors_for, first_scores
from supsup.training.fast import side_by_side
from supsup.training.fast.batched import ThreadsOfOne, in_threads_of_one
from supsup.training.fast.side_by_side import FlatTraining, SideBySide, step_layout

CPU = torch.device("cpu")
RECIPES = [
    Recipe(batch_size=32),
    Recipe(batch_size=32, weight_decay=1e-3),
    Recipe("adam", 1e-2, batch_size=32, schedule="cosine", warm_up=0.2, weight_decay=1e-3),
    Recipe("sgd", 0.1, batch_size=32, momentum=0.9),
    Recipe("sgd", 0.1, batch_size=32),
]


def convolutions(norm: Callable[[int], nn.Module]) -> nn.Module:
    first = (nn.Conv2d(1, 8, 3, 2, 1), norm(8), nn.ReLU(), nn.AvgPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(8, 8, 3), norm(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 5))


class Viewed(nn.Module):
    """Written for one layout: `view` refuses any other."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 4, 5, 4), nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.convolution(x).relu().view(len(x), -1))
        return out


class Attending(nn.Module):
    """Attention over the lines of an image."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(28, 4, 32, dropout=dropout, batch_first=True)
        self.linear = nn.Linear(28, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.encoder(x[:, 0]).mean(1))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.linear = nn.GRU(28, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.layer(x[:, 0])[0][:, -1])
        return out


class LeavesOut(nn.Module):
    """A weight that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(784, 5), nn.Linear(784, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1))
        return out


NETS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: convolutions(nn.BatchNorm2d),
    "group norm": lambda: convolutions(lambda width: nn.GroupNorm(2, width)),
    "viewed": Viewed,
    "attending": Attending,
    "recurrent": Recurrent,
    "connected": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 5)),
}
EVERY_NET = pytest.mark.parametrize("name", NETS)


@EVERY_NET
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.optimiser} {recipe.weight_decay}")
def test_a_step_is_that_of_the_plain_path(name: str, recipe: Recipe, split: Stream) -> None:
    """Of scores and statistics, up to rounding, compiled and not; three steps, so that moments count."""
    net = FrozenNet(NETS[name](), 0, CPU)
    start = first_scores(net, "t", recipe)
    plain = MaskTraining(net, start, recipe, 10)
    layout = step_layout(net, recipe, split[0].train)
    assert layout is not None
    flat, compiled = (FlatTraining(net, recipe, 10, layout) for _ in range(2))
    flat.start(start)
    compiled.start(start)
    for positions in torch.arange(96).split(32):
        x, y = split[0].train.batch(positions)
        plain.step(x, y)
        flat.step(x, y)
        with ThreadsOfOne(1) as thread:
            thread.submit(compiled.step, x, y).result()
    for found in (flat, compiled):
        assert found.figures() == pytest.approx(plain.figures(), rel=1e-3)
        for weight, value in found.scores().items():
            near = torch.isclose(value, plain.scores[weight], rtol=1e-3, atol=1e-5).float().mean()
            assert near > 0.97, weight  # gradients of next to nothing have no certain sign, and Adam steps by signs
            assert not torch.equal(value, start[weight])
        for statistic, value in found.statistics.items():
            assert torch.allclose(value, plain.statistics[statistic], rtol=1e-3, atol=1e-4), statistic


@EVERY_NET
def test_masks_are_those_of_the_plain_path(name: str, split: Stream) -> None:
    """At least 99 % of the bits after 40 steps; what differs is rounding."""
    net, recipe = FrozenNet(NETS[name](), 0, CPU), Recipe("adam", 1e-2, steps=40, batch_size=32, score_bound=1.0)
    ((_, _, _, scores, *_),) = train_masks(net, [Job(split[0], recipe, keep_scores=True)])
    plain = train_mask(net, split[0].name, split[0].train, recipe)
    start = first_scores(net, split[0].name, recipe)
    assert scores is not None
    same = torch.cat([((scores[weight][0] >= 0) == bits).flatten() for weight, bits in plain.mask().items()])
    moved = torch.cat([((start[weight] >= 0) != bits).flatten() for weight, bits in plain.mask().items()])
    assert float(same.float().mean()) > 0.99
    assert float(moved.float().mean()) > 0.02, "the recipe must change the mask for this test to mean anything"


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@EVERY_NET
def test_a_mask_is_the_same_to_the_bit_alone_and_beside_others(name: str, split: Stream, threads: None) -> None:
    """And however many threads there are: what makes a resumed run end with the masks of one never interrupted."""
    net, recipe = FrozenNet(NETS[name](), 0, CPU), Recipe("adam", 1e-2, steps=8, batch_size=32)
    jobs = [Job(Task(f"{task.name}-{again}", task.train, task.test, 5), recipe) for task in split for again in "ab"]
    torch.set_num_threads(3)
    together = [(packed, statistics) for _, packed, statistics, *_ in train_masks(net, jobs)]
    torch.set_num_threads(1)
    for job, (packed, statistics) in zip(jobs, together, strict=True):
        ((_, alone, own, *_),) = train_masks(net, [job])
        assert torch.equal(packed, alone)
        assert all(torch.equal(statistics[each], own[each]) for each in own)


def test_what_cannot_be_done_exactly_is_left_to_others(split: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, part = Recipe(steps=2, batch_size=16), split[0].train

    def trained(module: nn.Module, how: Recipe = recipe, pretrained: bool = False) -> bool:
        net, jobs = FrozenNet(module, 0, CPU, pretrained), [Job(split[0], how)]
        if not SideBySide().takes(net, jobs, None):
            return False
        try:
            return len(list(SideBySide().train(net, jobs, None, lambda _: None))) == 1
        except CannotTrain:
            (found,) = train_masks(net, jobs)  # by the next executor
            assert found.tasks[0].name == split[0].name
            return False

    assert all(trained(make()) for make in NETS.values())
    drawing = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(784, 5))
    for refused in (drawing, Attending(dropout=0.1), LeavesOut()):
        assert not trained(refused)
    assert not trained(NETS["batch norm"](), pretrained=True)  # the head of a task's own is trained as it is
    assert not trained(NETS["batch norm"](), Recipe(selection="edge-popup", density=0.5, steps=2))
    assert step_layout(FrozenNet(Viewed(), 0, CPU), recipe, part) == torch.contiguous_format
    assert step_layout(FrozenNet(NETS["batch norm"](), 0, CPU), recipe, part) == torch.channels_last
    monkeypatch.setattr(side_by_side, "_SMALL", 16 * 14 * 14 * 8 * 4)
    assert not trained(NETS["batch norm"]())
    with pytest.raises(ValueError, match="precision"):
        next(executors_for(FrozenNet(Viewed(), 0, CPU), [Job(split[0], recipe)], torch.float64))


def test_words_are_tried_as_words() -> None:
    """Whole numbers reach the network as they are."""
    words = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(48, 3))
    part = Part(torch.randint(30, (60, 6)), torch.arange(60) % 3)
    net, recipe = FrozenNet(words, 0, CPU), Recipe("adam", 1e-2, steps=5, batch_size=16)
    job = Job(Task("words", part, part, 3), recipe, keep_scores=True)
    assert next(executors_for(net, [job])).name == "side by side on a CPU"
    ((_, _, _, scores, *_),) = train_masks(net, [job])
    assert scores is not None
    for name, value in train_mask(net, "words", part, recipe).scores.items():
        assert torch.allclose(scores[name][0], value, atol=1e-4)


def test_nobody_s_random_numbers_or_gradients_are_touched(split: Stream) -> None:
    net, recipe = FrozenNet(Attending(), 0, CPU), Recipe(steps=3, batch_size=16)
    before = torch.get_rng_state()
    with torch.no_grad():
        (*_,) = train_masks(net, [Job(task, recipe) for task in split])
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in net.weights.values())


def test_progress_is_told_step_by_step_and_stops_with_the_asker(split: Stream) -> None:
    """Who closes the generator, as an interruption does, waits for a step and not for a task."""
    net, replaced = FrozenNet(NETS["connected"](), 0, CPU), list[float]()
    short = [Job(task, Recipe(steps=4, batch_size=16)) for task in split]
    assert len(list(train_masks(net, short, advance=replaced.append))) == 2
    assert len(replaced) == 8
    assert sum(replaced) == pytest.approx(2)
    replaced.clear()
    long = Job(split[1], Recipe(steps=200_000, batch_size=16))
    with closing(train_masks(net, [short[0], long], advance=replaced.append)) as finished:
        next(finished)
    assert sum(replaced) < 2


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def jobs(count: int) -> list[Job]:
    return cast(list[Job], list(range(count)))


@pytest.mark.usefixtures("two_threads")
def test_few_trainings_are_begun_before_they_are_asked_for() -> None:
    """What was trained and not yet kept is lost when somebody interrupts, and takes the cores of who keeps it."""
    begun: list[int] = []

    def train(job: Any, stop: threading.Event) -> Trained:
        begun.append(job)
        time.sleep(0.001)
        return cast(Trained, job)

    finished = cast(Iterator[int], in_threads_of_one(train, jobs(20)))
    for taken, trained in enumerate(finished, 1):
        time.sleep(0.02)
        assert trained == taken - 1
        assert len(begun) <= taken + 4
    assert sorted(begun) == list(range(20))


@pytest.mark.usefixtures("two_threads")
def test_what_fails_stops_the_others() -> None:
    stopped: list[bool] = []

    def train(job: Any, stop: threading.Event) -> Trained:
        if job == 2:
            raise ValueError("no such image")
        stopped.append(stop.wait(5 if job == 3 else 0))
        return cast(Trained, job)

    finished = cast(Iterator[int], in_threads_of_one(train, jobs(20)))
    assert [next(finished), next(finished)] == [0, 1]
    with pytest.raises(ValueError, match="no such image"):
        next(finished)
    assert stopped[-1], "the one under way was told to give up"
    assert len(stopped) < 8
