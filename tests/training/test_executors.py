"""Which executor trains, and which jobs go together."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from supsup import AutoRecipe, Recipe, SupSup, SupSupError, data, nets
from supsup.data import Augmentation, Stream
from supsup.masks.frozen import FrozenNet
from supsup.model.state import state_of
from supsup.training import Job, Trained, train_mask, train_masks
from supsup.training.executors import CannotTrain, alike, count_fitting, executors, executors_for, grouped
from supsup.training.fast import batched

CPU = torch.device("cpu")


def with_bias() -> nets.FullyConnected:
    net = nets.FullyConnected((784, 20, 10))
    torch.manual_seed(0)
    net.layers[0].bias = nn.Parameter(3 * torch.randn(20))
    return net


def name_of(net: nn.Module, task: Stream, recipe: Recipe, pretrained: bool = False) -> str:
    return next(executors_for(FrozenNet(net, 0, CPU, pretrained), [Job(task[0], recipe)])).name


def test_the_plain_executor_is_the_last_resort(stream: Stream, split: Stream, convolutional: nn.Module) -> None:
    assert executors()[-1].name == "plain"
    lenet = nets.FullyConnected((784, 20, 10))
    assert name_of(lenet, stream, Recipe()) == "batched on a CPU"
    assert name_of(lenet, stream, Recipe(schedule="cosine", warm_up=0.1)) == "batched on a CPU"
    assert name_of(lenet, stream, Recipe(selection="edge-popup", density=0.5)) == "plain"
    assert name_of(convolutional, split, Recipe()) == "side by side on a CPU"
    assert name_of(convolutional, split, Recipe(selection="edge-popup", density=0.5)) == "plain"


def test_a_bias_is_not_left_out(stream: Stream) -> None:
    """The step by hand knows no biases: it used to train such a network as if it had none."""
    assert name_of(with_bias(), stream, Recipe(), pretrained=True) == "plain"
    net = FrozenNet(with_bias(), 0, CPU, pretrained=True)
    recipe = Recipe("adam", 1e-2, steps=20)
    ((_, packed, *_),) = train_masks(net, [Job(stream[0], recipe)])
    model = SupSup(with_bias(), pretrained=True, recipe=recipe, device="cpu")
    model.learn(stream[0])
    plain = train_mask(net, stream[0].name, stream[0].train, recipe).mask()
    assert all(torch.equal(model.mask(stream[0].name)[name], bits) for name, bits in plain.items())
    assert torch.equal(state_of(model).bank.packed(0), packed[:, 0])


def test_a_precision_that_nobody_honours_is_refused(stream: Stream, split: Stream, convolutional: nn.Module) -> None:
    """It used to be ignored on any network but a fully connected one."""
    model = SupSup(convolutional, recipe=Recipe(steps=2), device="cpu")
    with pytest.raises(SupSupError, match=r"precision=torch\.float64 is not known"):
        model.learn_many(split[:1], precision=torch.float64)
    assert model.tasks == []
    model.learn_many(split[:1], precision=torch.float32)
    connected = SupSup(nets.FullyConnected((784, 8, 10)), recipe=Recipe(steps=2), device="cpu")
    connected.learn_many(stream[:1], precision=torch.float64)
    assert connected.tasks == [stream[0].name]


@pytest.mark.parametrize("transfer", ["masks", "scores"])
def test_transfer_goes_by_the_fast_executor_too(stream: Stream, transfer: str) -> None:
    """It used to fall back to autograd, one task after the other."""
    recipe = Recipe("adam", 1e-3, steps=30, transfer=transfer)  # type: ignore[arg-type]
    assert name_of(nets.FullyConnected((784, 20, 10)), stream, recipe) == "batched on a CPU"
    model = SupSup(nets.FullyConnected((784, 20, 10)), recipe=recipe, device="cpu")
    model.learn_many(stream[:3])
    bits = sum(shape.numel() for shape in state_of(model).net.shapes.values())
    plain = SupSup(nets.FullyConnected((784, 20, 10)), recipe=recipe, device="cpu")
    original = executors()[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("supsup.training.executors.executors", lambda: (original,))
        plain.learn_many(stream[:3])
    for task in model.tasks:
        differing = sum(int((model.mask(task)[n] != bits).sum()) for n, bits in plain.mask(task).items())
        assert differing <= 0.01 * bits


class Counting(nn.Module):
    """Counts its forward passes, and draws random numbers in them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.passes = nn.Linear(784, 10), list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.append(len(x))
        out: torch.Tensor = nn.functional.dropout(self.linear(x.flatten(1)), training=self.training)
        return out

    def __deepcopy__(self, memo: dict[int, object]) -> "Counting":
        other = Counting()
        other.load_state_dict(self.state_dict())
        other.passes = self.passes
        return other


def test_asking_an_executor_whether_it_takes_a_job_runs_nothing(split: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to run a whole step on a CPU; on a GPU it made a state and rehearsed a step, and then again to train."""
    module = Counting()
    net, jobs = FrozenNet(module, 0, CPU), [Job(task, Recipe(steps=2, batch_size=16)) for task in split]
    before = torch.get_rng_state()
    assert [executor.takes(net, jobs, None) for executor in executors()][-3:] == [True, False, True]
    assert all(executor.tasks_at_once(net, jobs[0], None) > 0 for executor in executors()[-3:])
    monkeypatch.setattr(net, "device", torch.device("cuda"))
    assert executors()[-2].takes(net, jobs, None)
    assert module.passes == []
    assert torch.equal(torch.get_rng_state(), before)


def test_an_executor_that_cannot_go_on_hands_over_what_is_left(split: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job is trained once, in order, whoever trains it; a step is tried once for a network."""
    module = Counting()
    net, recipe = FrozenNet(module, 0, CPU), Recipe(steps=2, batch_size=16)
    jobs = [Job(task, recipe) for task in split]
    plain = executors()[-1]

    class Tired:
        name = "tired"

        def takes(self, *_: object) -> bool:
            return True

        def train(self, net: FrozenNet, jobs: list[Job], *rest: Any) -> Iterator[Trained]:
            yield from plain.train(net, jobs[:1], *rest)
            raise CannotTrain

    with monkeypatch.context() as patch:
        patch.setattr("supsup.training.executors.executors", lambda: (Tired(), plain))
        assert [trained.tasks[0].name for trained in train_masks(net, jobs)] == [task.name for task in split]
    module.passes.clear()
    masks = [trained.packed for trained in train_masks(net, jobs)]
    probes = len(module.passes) - len(jobs) * recipe.steps
    assert probes > 0, "side by side is tried"
    assert all(torch.equal(one, trained.packed) for one, trained in zip(masks, train_masks(net, jobs)))
    assert len(module.passes) == 2 * len(jobs) * recipe.steps + probes, "and not tried again"


def test_the_library_trains_without_the_reproduction() -> None:
    """Its executor for residual networks is found where the package is, and not missed elsewhere."""
    code = """
import sys
sys.modules["supsup_paper"] = None
import torch
from supsup import Recipe, SupSup, nets
from supsup.training.executors import executors
model = SupSup(nets.ResNet(2, (1,), (4,), channels=1), recipe=Recipe(steps=2, batch_size=4), device="cpu")
model.learn((torch.rand(12, 1, 8, 8), torch.arange(12) % 2), task="noise")
print(model.tasks, [executor.name for executor in executors()])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    names = "'batched on a CPU', 'batched on a GPU', 'side by side on a CPU', 'captured on a GPU', 'plain'"
    assert done.stdout == f"['noise'] [{names}]\n", done.stderr


def test_a_module_can_add_executors(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come before those for any module, as CONTRIBUTING.md says; a package that is missing is passed over."""
    (tmp_path / "own_executors.py").write_text("""
from supsup.training.plain import Plain

class Own(Plain):
    name = "own"

EXECUTORS = (Own(),)
""")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("supsup.training.executors.PLUG_INS", ["missing.executors", "own_executors"])
    assert [executor.name for executor in executors()][2:4] == ["own", "side by side on a CPU"]
    assert name_of(nets.ResNet(2, (1,), (4,), channels=1), stream, Recipe()) == "own"


def test_groups_fit_into_memory_are_alike_and_keep_the_order() -> None:
    items = ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "a6"]

    def in_groups(memory: int, most: int = 100) -> list[list[str]]:
        return grouped(items, lambda one, other: one[0] == other[0], lambda item: count_fitting(10, memory, most))

    assert in_groups(10**6) == [["a1", "a2", "a3", "a4", "a5"], ["b1", "b2"], ["a6"]]
    assert in_groups(43) == [["a1", "a2", "a3"], ["a4", "a5"], ["b1", "b2"], ["a6"]], "0.7 of 43 holds three"
    assert in_groups(0) == [[item] for item in items], "one at a time where nothing seems to fit"
    assert [len(group) for group in in_groups(10**6, most=4)] == [3, 2, 2, 1], "of about equal size"


def test_something_always_fits() -> None:
    assert count_fitting(100, 50, 10) == 1
    assert count_fitting(0, 50, 10) == 10
    assert count_fitting(7, 100, 10) == 10
    assert count_fitting(10, 100, 10) == 7


def test_tasks_of_one_source_but_of_unequal_length_are_trained_apart() -> None:
    """One feed has as many batches for every task: a shorter one would stop late, a longer one too soon."""
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 4, 5])
    images = torch.rand(10, 1, 4, 4)
    stream = data.split(data.arrays(images, labels, images, labels), 2)
    jobs = [Job(task, Recipe(epochs=2, batch_size=2)) for task in stream]
    assert [job.steps for job in jobs] == [4, 2, 4]
    together = grouped(jobs, alike, lambda job: 10)
    assert [[job.task.name for job in group] for group in together] == [
        ["classes-0-1"],
        ["classes-2-3"],
        ["classes-4-5"],
    ]
    assert alike(jobs[0], jobs[2])
    other = data.split(data.arrays(images.clone(), labels, images, labels), 2)
    assert not alike(jobs[0], Job(other[0], jobs[0].recipe)), "images of another source"


def test_an_executor_says_how_many_tasks_fill_its_device(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster makes its groups by it; it used to forget that rotations are four times the images, and more."""
    net = FrozenNet(nets.FullyConnected((784, 20, 40)), 0, CPU)
    assert Recipe().tasks_at_once(net, stream[0], None) == torch.get_num_threads()
    edge_popup = Recipe(selection="edge-popup", density=0.5)
    assert edge_popup.tasks_at_once(net, stream[0], None) == 1
    assert AutoRecipe().tasks_at_once(net, stream[0], None) == torch.get_num_threads()
    monkeypatch.setattr(net, "device", torch.device("cuda"))
    monkeypatch.setattr(batched, "free_memory", lambda device: 10**8)
    monkeypatch.setattr("supsup.training.auto_recipe.free_memory", lambda device: 10**12)
    plain, rotated = (
        Recipe(epochs=10, self_labels=labels).tasks_at_once(net, stream[0], None) for labels in (None, "rotations")
    )
    assert 1 < rotated < plain < 2500
    short, long = (AutoRecipe(rounds=rounds).tasks_at_once(net, stream[0], None) for rounds in (1, 10**4))
    assert 1 <= long < short
    varied = replace(stream[0], train=replace(stream[0].train, augmentation=Augmentation(padding=1)))
    assert Recipe().tasks_at_once(net, varied, None) == 1, "no executor takes such tasks in step"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float32, torch.float64])
def test_no_two_executors_by_hand_take_one_job(device: str, precision: torch.dtype | None) -> None:
    """So their order does not matter, and the one for fully connected networks is asked before others are entered."""
    images, labels = torch.zeros(8, 3, 8, 8, dtype=torch.uint8), [0, 1] * 4
    task = data.split(data.arrays(images, labels, images, labels), 2)[0]
    by_hand = [executor for executor in executors() if executor.name not in ("plain", "captured on a GPU")]
    by_hand = [executor for executor in by_hand if executor.name != "side by side on a CPU"]
    taken: dict[str, list[str]] = {}
    for module in (nets.FullyConnected((192, 8, 4)), nets.ResNet(4, (1,), (4,)), nn.Sequential(nn.Conv2d(3, 4, 3))):
        net = FrozenNet(module, 0, CPU)
        net.device = torch.device(device)
        for recipe in (Recipe(), Recipe(selection="edge-popup", density=0.5)):
            names = [executor.name for executor in by_hand if executor.takes(net, [Job(task, recipe)], precision)]
            assert len(names) <= 1
            taken.setdefault(type(module).__name__, []).extend(names)
    assert taken["Sequential"] == []
    if precision is None:
        assert taken["FullyConnected"] == [f"batched on a {'CPU' if device == 'cpu' else 'GPU'}"]
        if "residual on a GPU" in [executor.name for executor in by_hand]:
            assert taken["ResNet"] == ["residual on a GPU"] * (2 if device == "cuda" else 0)
