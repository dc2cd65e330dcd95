"""What runs on a GPU gives the answers of the plain path; skipped where there is none."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from supsup import HopSupSup, Inference, NewTaskRule, Recipe, SupSup, data, evaluate, nets
from supsup.data import Stream
from supsup.inference import search
from supsup.inference.gradient import Goal, alpha_gradient, can_be_captured
from supsup.inference.search import Outer, add_plain, flattened_bfloat16, inner
from supsup.kernels.graphs import repeat_in_graph
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet, SwitchedNet, plain_fill
from supsup.model.state import state_of
from supsup.model.supsup import observe_batches
from supsup.training import Job, train_mask, train_masks
from supsup.training.executors import executors_for
from supsup_paper.bench.bare_masks import infer_indices
from supsup_paper.catalogue.experiments import (
    BoundGrading,
    BoundsExperiment,
    CifarBaseline,
    CifarBaselineGrading,
    CifarBaselineTraining,
    PSPExperiment,
    SplitCifarBaselineExperiment,
    StagedTraining,
    UnannouncedExperiment,
    UnannouncedTraining,
)
from supsup_paper.catalogue.rows import Entry, Row
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.hopfield import learn_and_recover
from supsup_paper.runs.reproduction import reproduce_entries

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "0", reason="compile the kernels: TRITON_INTERPRET=0"),
]


@pytest.fixture(scope="module")
def digits(shared_data: Path) -> Stream:
    return data.permuted(data.mnist(shared_data), 5)


def model(device: str, steps: int = 300) -> SupSup:
    return SupSup(nets.lenet_300_100(outputs=50), recipe=Recipe(steps=steps), device=device)


@pytest.mark.parametrize(
    "recipe", [Recipe(steps=100), Recipe("adam", 1e-3, steps=30), Recipe("sgd", 1.0, momentum=0.9, steps=20)]
)
def test_masks_in_float32_agree_with_the_plain_path(digits: Stream, recipe: Recipe) -> None:
    net = FrozenNet(nets.lenet_300_100(outputs=50), 0, torch.device("cuda"))
    ((tasks, packed, *_),) = train_masks(net, [Job(task, recipe) for task in digits[:3]], torch.float32)
    bank = Bank(net.shapes, "cuda")
    bank.add_packed(packed)
    weights = sum(weight.numel() for weight in net.weights.values())
    for i, task in enumerate(tasks):
        plain = train_mask(net, task.name, task.train, recipe).mask()
        differing = sum(int((plain[name] != bits).sum()) for name, bits in bank.mask(i).items())
        assert differing <= 0.01 * weights


class _RowByRow(nn.Module):
    """A recurrent layer that reads an image line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(28, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x.view(-1, 28, 28))[0][:, -1])
        return out


def test_recurrent_layers_answer_as_on_the_cpu(split: Stream) -> None:
    """cuDNN would move their masked weights away from where switching writes them, and has no gradient of answers."""
    here = SupSup(_RowByRow(), device="cuda")
    here.learn_many(split[:2])
    there = here.to("cpu")
    for task in (*split[:2], split[0]):
        x, y = task.test.tensors("cpu")
        labels = here.predict(x, task=task.name).labels.cpu()
        assert (labels == there.predict(x, task=task.name).labels).float().mean() > 0.99
        assert (labels == y).float().mean() > 0.9
    assert set(here.infer_task(x[:8])) <= set(here.tasks)
    assert torch.backends.cudnn.enabled


def test_without_a_recipe_accuracy_is_that_of_the_cpu(digits: Stream) -> None:
    """Rounds, and what was held back, go through the executors of a GPU."""
    found = []
    for device in ("cuda", "cpu"):
        learner = SupSup(nets.lenet_300_100(outputs=50), device=device)
        learner.learn_many(digits[:2])
        found.append(evaluate(learner, digits[:2], "GG").average_accuracy)
    assert min(found) > 0.96
    assert abs(found[0] - found[1]) < 0.01


def test_accuracy_in_bfloat16_is_that_of_the_cpu(digits: Stream) -> None:
    found = []
    for device in ("cuda", "cpu"):
        learner = model(device)
        learner.learn_many(digits)
        found.append(evaluate(learner, digits, "GNu", protocol="paper"))
    assert found[0].task_accuracy == found[1].task_accuracy == 1
    assert abs(found[0].average_accuracy - found[1].average_accuracy) < 0.005


@pytest.mark.parametrize(
    ("network", "recipe"),
    [
        ({}, Recipe("adam", 1e-2, selection="edge-popup", budget=8.0)),
        ({}, Recipe("adam", 1e-2)),
        ({}, Recipe("sgd", 1.0, selection="edge-popup", budget=8.0, momentum=0.9)),
        ({"bottleneck": True}, Recipe("rmsprop", 1e-2)),
        ({"bottleneck": True, "large_images": True}, Recipe("sgd", 1.0, momentum=0.9)),
        ({"bottleneck": True, "large_images": True}, Recipe("adam", 1e-2, selection="edge-popup", budget=8.0)),
    ],
)
def test_residual_networks_learn_as_on_the_plain_path(
    shared_data: Path, network: dict[str, bool], recipe: Recipe
) -> None:
    stream = data.split(data.mnist(shared_data), 2)[:2]
    recipe = replace(recipe, steps=150, weight_decay=1e-4, schedule="cosine")
    net = FrozenNet(nets.ResNet(2, (1, 1), (8, 16), channels=1, **network), 0, torch.device("cuda"))
    assert next(executors_for(net, [Job(task, recipe) for task in stream])).name == "residual on a GPU"
    bank = Bank(net.shapes, "cuda", net.statistics)
    for fast in train_masks(net, [Job(task, recipe) for task in stream]):
        bank.add_packed(fast.packed, fast.statistics)
    for i, task in enumerate(stream):
        plain = train_mask(net, task.name, task.train, recipe)
        x, y = task.test.tensors("cuda")
        answers = [
            net.run(x, net.masked(found)).argmax(1) for found in (bank.subnetwork(i), plain.mask() | plain.statistics)
        ]
        accuracy = [float((answer == y).float().mean()) for answer in answers]
        assert min(accuracy) > 0.8
        assert abs(accuracy[0] - accuracy[1]) < 0.05


def test_a_group_does_not_matter(digits: Stream) -> None:
    together, alone = model("cuda", 50), model("cuda", 50)
    together.learn_many(digits)
    alone.learn(digits[3])
    a, b = state_of(together).bank.mask(3), state_of(alone).bank.mask(0)
    same = [float((a[name] == b[name]).float().mean()) for name in a]
    assert min(same) > 0.995


@pytest.mark.parametrize("rows", [1, 5, 200])
def test_search(rows: int) -> None:
    torch.manual_seed(0)
    net = FrozenNet(nets.lenet_300_100(outputs=50), 0, torch.device("cuda"))
    bank = Bank(net.shapes, "cuda")
    size = sum(b - a for a, b in bank.spans.values())
    bank.add_packed(torch.randint(256, (size, 333), dtype=torch.uint8))
    query = {name: torch.randn(rows, *shape, device="cuda") for name, shape in net.shapes.items()}
    expected = torch.zeros(rows, 333, device="cuda")
    for name, (start, stop) in bank.spans.items():
        add_plain(query[name].flatten(1), next(bank.blocks())[start:stop], expected)
    found = inner(query, bank)
    assert (found - expected).norm() / expected.norm() < (1e-5 if rows <= 8 else 4e-3)


@pytest.mark.parametrize("layers", ["first", "all"])
def test_few_coordinates_are_answered_from_a_graph_as_by_plain_torch(
    layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels choose about the same bytes, so most answers are the same, though no random mask stands out."""
    torch.manual_seed(0)
    net = FrozenNet(nets.lenet_300_100(outputs=50), 0, torch.device("cuda"))
    bank = Bank(net.shapes, "cuda")
    for count in (700, 1, 64, 1300):
        bank.add_packed(torch.randint(256, (bank.length, count), dtype=torch.uint8))
    x, how = torch.randn(20, 1, 784, device="cuda"), Inference(layers=layers, coordinates=16384)
    found = [int(infer_indices(net, bank, image[None], None, 10, how)) for image in x]
    assert len(bank.replays._by_key) == 1
    exact = infer_indices(net, bank, x, None, 10, Inference(layers=layers))
    monkeypatch.setattr(search, "nearest_function", lambda bank: search.plain_nearest)
    plain = infer_indices(net, bank, x, None, 10, how)
    same = [f == p for f, p, e in zip(found, plain.tolist(), exact.tolist()) if p == e]
    assert len(same) >= 5
    assert sum(same) >= len(same) / 2
    assert len(set(found)) > 5  # the graph reads each image


@pytest.mark.parametrize("images", [1, 3])
def test_a_query_made_from_its_factors_is_the_dense_one(images: int) -> None:
    factors = Outer(*(torch.randn(*shape, device="cuda") for shape in ((30, 70), (20, images, 30), (20, images, 70))))
    found = flattened_bfloat16(factors, 30 * 70 + 4)
    expected = factors.dense().flatten(1)
    assert not found[:, 30 * 70 :].any()
    assert (found[:, : 30 * 70] - expected).norm() / expected.norm() < 4e-3


def biased() -> nn.Module:
    module = nets.FullyConnected((784, 40, 20))
    module.layers[0].bias = nn.Parameter(torch.linspace(-1, 1, 40))
    return module


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nets.lenet_300_100(outputs=50), (784,)),
        (biased(), (784,)),
        (nets.ResNet(10, (1, 1), (8, 16), channels=1), (1, 28, 28)),
        (
            nn.Sequential(nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(2304, 10)),
            (1, 28, 28),
        ),
    ],
)
def test_lone_images_are_answered_from_a_graph_as_without_one(module: nn.Module, shape: tuple[int, ...]) -> None:
    """The graph must read each image, and must go when a mask changes."""
    torch.manual_seed(0)
    net = FrozenNet(module, 0, torch.device("cuda"), pretrained=True)
    bank = Bank(net.shapes, "cuda", net.statistics)
    size = max(stop for _, stop in bank.spans.values())
    bank.add_packed(torch.randint(256, (size, 40), dtype=torch.uint8))
    x = torch.randn(12, 1, *shape, device="cuda")
    assert can_be_captured(net)
    for _ in range(3):
        alone = [int(infer_indices(net, bank, image[None], None, 5, Inference())) for image in x]
        goal = Goal("H", 5)
        direct = [int(alpha_gradient(net, bank, image[None], None, goal, list(net.weights)).argmax()) for image in x]
        assert alone == direct
        assert len(bank.replays._by_key) == 1
        bank.prepare_remove(0)()
        assert not len(bank.replays._by_key)


def test_observing_opens_the_same_masks(digits: Stream) -> None:
    opened = []
    for device in ("cuda", "cpu"):
        learner = SupSup(
            nets.lenet_300_100(outputs=100), recipe=Recipe(), new_task_rule=NewTaskRule(every=50), device=device
        )
        for task in digits[:3]:
            list(observe_batches(learner, task.train, torch.arange(120 * 128).view(120, 128)))
        opened.append(learner.tasks)
        x, y = digits[0].test.tensors()
        assert float((learner.predict(x).labels.cpu() == y).float().mean()) > 0.7
    assert opened[0] == opened[1]


def test_switching_tasks() -> None:
    """The kernel against the plain way, with bytes a stride apart and sizes that fill no program."""
    device = torch.device("cuda")
    net = FrozenNet(nets.gem_resnet18(), 0, device)
    bank = Bank(net.shapes, device, net.statistics)
    size = max(stop for _, stop in bank.spans.values())
    for count in (1, 3, 16):
        bank.add_packed(torch.randint(256, (size, count), dtype=torch.uint8))
    switched, masked = SwitchedNet(net), torch.empty(8 * size, device=device)
    x = torch.randn(4, 3, 32, 32, device=device)
    for index in (0, 1, 3, 19, 4):
        switched.switch(bank, index)
        plain_fill(bank.column(index), switched.frozen, masked)
        assert torch.equal(switched.masked, masked)
        expected = net.run(x, net.masked(bank.subnetwork(index)))
        assert torch.allclose(switched.run(bank, index, x), expected, rtol=1e-3, atol=1e-3)


def test_a_hopfield_memory_filled_on_the_gpu_gives_the_masks_back(shared_data: Path) -> None:
    stream = data.split(data.mnist(shared_data), 2)
    models = [HopSupSup(nets.hop_mlp(outputs=10), seed, device="cuda") for seed in (100, 101)]
    found = learn_and_recover(models, stream[:3], ["best-of"])
    assert found.own.accuracy.min() > 0.95
    assert found.recovered["best-of"].right.all()


def test_graphs_that_run_at_the_same_time_do_not_disturb_each_other() -> None:
    """Products so deep that they are summed in pieces, which lie in scratch memory meanwhile."""
    torch.manual_seed(0)
    left, right = torch.randn(4, 64, 1 << 15, device="cuda"), torch.randn(4, 1 << 15, 64, device="cuda")
    out = torch.zeros(4, 64, 64, device="cuda")
    steps = [repeat_in_graph(partial(torch.mm, left[i], right[i], out=out[i]), times=100) for i in range(4)]
    for step in steps:
        step()
        torch.cuda.synchronize()
    alone = out.clone()
    assert torch.allclose(alone, (left.double() @ right.double()).float(), atol=0.1)
    for step in steps:
        with torch.cuda.stream(torch.cuda.Stream()):
            step()
    torch.cuda.synchronize()
    assert torch.equal(out, alone)


def test_garbage_with_a_graph_in_it_does_not_spoil_the_next_one() -> None:
    out = torch.zeros(1, device="cuda")
    garbage: list[Any] = [repeat_in_graph(partial(out.add_, 1))]
    garbage.append(garbage)  # goes only when garbage is collected, and that comes while lists are made
    del garbage

    def step() -> None:
        out.add_(1)
        lists: list[list[Any]] = [[] for _ in range(100_000)]
        assert lists

    launch = repeat_in_graph(step)
    out.zero_()
    launch()
    assert out.item() == 1


MNIST = StagedTraining("permuted", "784-1024", 20, 3, 200, stages=(3,))
UNANNOUNCED = UnannouncedTraining("permuted", "784-1024", 20, 3, 200, stages=(3,))
PICTURES = CifarBaselineTraining(method="bounds", tasks=3, epochs=None, steps=200)
CIFAR_BASELINES: tuple[CifarBaseline, ...] = ("batche-random-rank-one", "heads-random", "bounds")
SEQUENTIAL: dict[str, list[Row]] = {
    "mnist": [
        Row("psp", "", PSPExperiment(MNIST)),
        Row("bounds", "", BoundsExperiment(MNIST, BoundGrading("upper"))),
        Row("unannounced", "", UnannouncedExperiment(UNANNOUNCED)),
    ],
    "cifar100": [
        Row(method, "", SplitCifarBaselineExperiment(replace(PICTURES, method=method), CifarBaselineGrading("upper")))
        for method in CIFAR_BASELINES
    ],
}


@pytest.mark.parametrize(
    ("kind", "seeds", "apart"), [("mnist", 1, 1.0), ("mnist", 2, 1.0), ("cifar100", 1, 6.0), ("cifar100", 2, 6.0)]
)
def test_trainings_side_by_side_do_not_disturb_each_other(
    shared_data: Path, tmp_path: Path, kind: str, seeds: int, apart: float
) -> None:
    """Each on a stream of its own, in turns: as good as alone."""
    rows, environment, figures = SEQUENTIAL[kind], Environment(torch.device("cuda"), shared_data), {}
    for way, groups in (("together", [rows]), ("alone", [[row] for row in rows])):
        for group in groups:
            said: list[str] = []
            done = reproduce_entries(
                [Entry("tiny", "", "", tuple(group))], tmp_path / way, "full", seeds, environment, said.append
            )
            assert done.failed == 0, "\n".join(said)
        for row in rows:
            for seed in range(seeds):
                record = json.loads((tmp_path / way / "tiny" / f"{row.name}-seed{seed}.json").read_text())
                figures[way, row.name, seed] = record["figures"]["accuracy %"]
    for row in rows:
        for seed in range(seeds):
            together, alone = figures["together", row.name, seed], figures["alone", row.name, seed]
            assert together == pytest.approx(alone, abs=apart), (row.name, seed)
            assert min(alone.values()) > {"mnist": 60, "cifar100": 30}[kind], (row.name, seed)
