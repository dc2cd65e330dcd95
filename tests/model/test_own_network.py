"""Any module: networks as their users write them learn, are saved and loaded, and answer as they did, to the bit."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

import supsup
from supsup import NewTaskRule, Recipe, SupSup, SupSupError, data, nets
from supsup.data import Part, Task
from supsup.model.state import state_of


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.skip(x)
        return out.relu_()


class OwnResNet(nn.Module):
    """Convolutions with biases, affine normalisation with running statistics, in-place activations."""

    def __init__(self, outputs: int = 8, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 2, 1)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2))
        self.head = nn.Linear(2 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.norm(self.stem(x)).relu_()).mean((2, 3)))
        return out


class OwnTransformer(nn.Module):
    """Patches, a class token, positions, attention, normalisation by layer, dropout."""

    def __init__(self, outputs: int = 8, width: int = 32, side: int = 16, patch: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width, generator=generator))
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width, generator=generator))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        out: Tensor = self.head(self.encoder(tokens)[:, 0])
        return out


@dataclass(frozen=True)
class Own:
    """A network of one's own, a recipe for it, and a model that has learned three tasks; tests must not change it."""

    build: Callable[[], nn.Module]
    recipe: Recipe
    model: SupSup
    tasks: list[Task]

    def fresh(self, **changes: Any) -> SupSup:
        """A model that has learned nothing yet and will learn little."""
        return SupSup(self.build(), recipe=Recipe(**{"steps": 2, "batch_size": 16, **changes}), device="cpu")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """Two tasks of two classes and one of five, on real digits of 16 × 16."""
    digits = data.digits()
    train, test = (adaptive_avg_pool2d(x.float(), 16) for x in (digits.train_images, digits.test_images))
    source = data.arrays(train, digits.train_labels, test, digits.test_labels)
    return [*data.split(source, 2, tasks=2), data.split(source, 5)[1]]


@pytest.fixture(scope="module", params=[OwnResNet, OwnTransformer])
def own(request: pytest.FixtureRequest, tasks: list[Task]) -> Own:
    steps = {OwnResNet: 20, OwnTransformer: 40}[request.param]
    recipe = Recipe("adam", 3e-3, steps=steps, batch_size=32)
    model = SupSup(request.param(), recipe=recipe, device="cpu")
    model.learn_many(tasks)
    return Own(request.param, recipe, model, tasks)


Answers = list[tuple[Tensor, Tensor]]


def answers(model: SupSup, tasks: list[Task]) -> Answers:
    """Labels and confidences of every task given."""
    found = [model.predict(task.test.tensors()[0], task=task.name) for task in tasks]
    return [(answer.labels, answer.confidence) for answer in found]


def same(one: Answers, other: Answers) -> bool:
    """To the bit."""
    return all(torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right))


def copied(own: Own, tmp_path: Path) -> SupSup:
    """A model of its own, through a file."""
    own.model.save(tmp_path / "own.supsup")
    return supsup.load(tmp_path / "own.supsup", net=own.build(), device="cpu")


def test_three_tasks_of_different_sizes_are_learned(own: Own) -> None:
    assert [own.model.classes(task.name) for task in own.tasks] == [2, 2, 5]
    for task, (labels, _) in zip(own.tasks, answers(own.model, own.tasks)):
        right = float((labels == task.test.tensors()[1]).float().mean())
        assert right > {2: 0.75, 5: 0.4}[task.classes], task.name


def test_a_loaded_model_answers_the_same_to_the_bit(own: Own, tmp_path: Path) -> None:
    again = copied(own, tmp_path)
    assert again.tasks == own.model.tasks
    assert same(answers(again, own.tasks), answers(own.model, own.tasks))
    x = torch.cat([task.test.batch(torch.arange(3))[0] for task in own.tasks])
    for method in ("one-shot", "exhaustive"):
        assert again.infer_task(x, method=method) == own.model.infer_task(x, method=method)


def test_no_task_changes_the_answers_of_another(own: Own, tmp_path: Path) -> None:
    """Statistics are where this would break first: they change with every batch that is learned."""
    before, model = answers(own.model, own.tasks), copied(own, tmp_path)
    x, y = own.tasks[0].train.tensors()
    model.recipe = Recipe(steps=2, batch_size=16)
    model.learn((5 * x + 3, y), task="brighter")
    assert same(answers(model, own.tasks), before)
    model.forget(own.tasks[1].name)
    assert same(answers(model, [own.tasks[0], own.tasks[2]]), [before[0], before[2]])
    assert same(answers(model.to("cpu"), [own.tasks[0], own.tasks[2]]), [before[0], before[2]])
    model.save(tmp_path / "rest.supsup")
    rest = supsup.load(tmp_path / "rest.supsup", net=own.build(), device="cpu")
    assert same(answers(rest, [own.tasks[0], own.tasks[2]]), [before[0], before[2]])


def test_learning_many_is_learning_one_by_one_dropout_included(own: Own) -> None:
    """Whatever else draws random numbers, a task's mask is its own affair."""
    many, single = own.fresh(), own.fresh()
    many.learn_many(own.tasks)
    for task in reversed(own.tasks):
        torch.rand(7)
        state = torch.get_rng_state()
        single.learn(task)
        assert torch.equal(torch.get_rng_state(), state), "the user's own random numbers go on as if nothing had been"
    assert same(answers(many, own.tasks), answers(single, own.tasks))
    for task in own.tasks:
        one, other = many.subnetwork(task.name), single.subnetwork(task.name)
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("transfer", ["masks", "scores"])
def test_edge_popup_and_transfer(own: Own, transfer: str, tmp_path: Path) -> None:
    model = own.fresh(selection="edge-popup", density=0.3, transfer=transfer)
    model.learn_many(own.tasks[:2])
    for name, bits in model.mask(own.tasks[1].name).items():
        assert int(bits.sum()) == round(0.3 * bits.numel()), name
    model.save(tmp_path / "m.supsup")
    again = supsup.load(tmp_path / "m.supsup", net=own.build(), device="cpu")
    if transfer == "masks":
        again.learn(own.tasks[2])
        model.learn(own.tasks[2])
        assert same(answers(again, own.tasks), answers(model, own.tasks))
    else:
        with pytest.raises(SupSupError, match='use transfer="masks"'):
            again.learn(own.tasks[2])
        assert again.tasks == [task.name for task in own.tasks[:2]]


def test_an_exported_task_answers_as_the_model_does(own: Own, tmp_path: Path) -> None:
    """Both formats are checked against the model as they are written; here from outside, with the task's statistics."""
    pytest.importorskip("onnxruntime")
    task = own.tasks[1]
    supsup.export(own.model, task.name, tmp_path / "one.safetensors")
    plain = own.build().eval()
    plain.load_state_dict(load_file(tmp_path / "one.safetensors"))
    x = task.test.batch(torch.arange(50))[0]
    with torch.no_grad():
        assert torch.equal(plain(x).argmax(1), own.model.predict(x, task=task.name, outputs="all").labels)
    if own.build is OwnResNet:
        supsup.export(own.model, task.name, tmp_path / "one.onnx")
        assert (tmp_path / "one.onnx").exists()


def test_observing_keeps_statistics_with_their_mask(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that is taken up from its bits, when its scores are no longer kept, goes on from its own statistics."""
    monkeypatch.setattr("supsup.model.observer._HALF_TRAINED", 0)
    model = SupSup(
        OwnResNet(), recipe=Recipe("adam", 3e-3), new_task_rule=NewTaskRule(every=3, epsilon=1e-9), device="cpu"
    )
    x, y = tasks[0].train.batch(torch.arange(64))
    first = model.observe(x, y)
    assert first is not None
    model.observe(x, y)
    learned = model.subnetwork(first)["norm.running_mean"].clone()
    assert not torch.equal(learned, state_of(model).net.statistics["norm.running_mean"])
    observer = model._observer
    observer.write_back()
    observer._suspend()
    observer._resume(first)
    assert torch.equal(observer.trainer.mask()["norm.running_mean"], learned)
    assert len(model.predict(x[:5]).labels) == 5


def test_a_pretrained_network_is_kept_and_must_be_given_again(tasks: list[Task], tmp_path: Path) -> None:
    torch.manual_seed(0)
    given, path = OwnResNet(), tmp_path / "m.supsup"
    given.train()(tasks[0].train.batch(torch.arange(64))[0])
    model = SupSup(given, pretrained=True, recipe=Recipe(steps=2, batch_size=16), device="cpu")
    model.learn(tasks[0])
    weight, mask = given.state_dict()["stem.weight"], model.mask(tasks[0].name)["stem.weight"]
    assert torch.equal(model.subnetwork(tasks[0].name)["stem.weight"], weight * mask)
    assert torch.equal(state_of(model).net.module.state_dict()["head.bias"], given.state_dict()["head.bias"])
    model.save(path)
    assert same(answers(supsup.load(path, net=given, device="cpu"), tasks[:1]), answers(model, tasks[:1]))
    assert same(answers(model.to("cpu"), tasks[:1]), answers(model, tasks[:1]))
    with pytest.raises(SupSupError, match="your own module; give it: load"):
        supsup.load(path)
    with pytest.raises(SupSupError, match="values or those of other parameters"):
        supsup.load(path, net=OwnResNet())
    paper = SupSup(nets.ResNet(4, (1,), (4,), channels=1), pretrained=True, recipe=Recipe(steps=1), device="cpu")
    paper.learn(tasks[0])
    paper.save(path)
    with pytest.raises(SupSupError, match="give it: load"):
        supsup.load(path)


def normalised(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), layer, nn.Flatten(), nn.Linear(4 * 14 * 14, 5))


def test_a_network_that_does_not_fit_is_refused(own: Own, tmp_path: Path) -> None:
    """Silence here would mean other answers than the ones saved."""
    own.model.save(tmp_path / "own.supsup")
    with pytest.raises(SupSupError, match="does not fit: weight"):
        supsup.load(tmp_path / "own.supsup", net=type(own.build())(width=16))
    if own.build is OwnTransformer:
        other = own.build()
        nn.init.normal_(other.get_parameter("token"))
        with pytest.raises(SupSupError, match="unchanged: token, position"):
            supsup.load(tmp_path / "own.supsup", net=other)
    x, y = own.tasks[0].train.batch(torch.arange(32))
    with_statistics = nn.InstanceNorm2d(4, track_running_stats=True)
    for here, there in ((nn.BatchNorm2d(4, affine=False), nn.Identity()), (nn.Identity(), with_statistics)):
        model = SupSup(normalised(here), recipe=Recipe(steps=1, batch_size=8), device="cpu")
        model.learn((x, y), task="t")
        model.save(tmp_path / "plain.supsup")
        with pytest.raises(SupSupError, match=r"does not fit: '1\.running"):
            supsup.load(tmp_path / "plain.supsup", net=normalised(there))


class Strange(nn.Module):
    """A linear layer, and something done with its outputs."""

    def __init__(self, after: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 5)
        self.after = after
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.after(self, self.layer(x.flatten(1)))


def counted(self: Any, y: Tensor) -> Tensor:
    self.seen += len(y)
    return y


def recounted(self: Any, y: Tensor) -> Tensor:
    self.seen = self.seen + len(y)
    return y


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Strange(lambda self, y: (y, y)), "must return one tensor"),
        (Strange(lambda self, y: (y, y) if self.training else y), "must return one tensor"),
        (Strange(lambda self, y: y.mean(0, keepdim=True).expand(3, -1)), "one vector of outputs per image"),
        (Strange(lambda self, y: vars(self)["no such key"]), r"does not take images of shape \(1, 16, 16\)"),
        (Strange(counted), "buffer 'seen' changes"),
        (Strange(recounted), "buffer 'seen' changes"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm2d(256), nn.Linear(256, 5)), "does not take images"),
        (nets.gem_resnet18(5), r"does not take images of shape \(1, 16, 16\): .* 3 channels, but got 1"),
    ],
)
def test_what_a_network_must_not_do_is_said(net: nn.Module, message: str, tasks: list[Task]) -> None:
    model = SupSup(net, recipe=Recipe(steps=2, batch_size=8), device="cpu")
    with pytest.raises(SupSupError, match=message):
        model.learn(tasks[0])
    assert model.tasks == []
    assert not state_of(model).net.module.training


def test_a_batch_of_one_value_cannot_be_normalised(tasks: list[Task]) -> None:
    x, y = tasks[0].train.batch(torch.arange(3))
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    model = SupSup(net, recipe=Recipe(steps=2, batch_size=1), device="cpu")
    with pytest.raises(SupSupError, match="more than 1 value per channel"):
        model.learn((x, y), task="t")
    with pytest.raises(SupSupError, match="more than 1 value per channel"):
        model.observe(x[:1], y[:1])
    assert model.tasks == []
    assert not state_of(model).net.module.training
    model.recipe = Recipe(steps=2, batch_size=8)
    lone = Part(x[:1], y[:1])
    model.learn(Task("a lone image fills a batch", lone, lone, 5))
    assert len(model.predict(x[:1]).labels) == 1


def test_modules_of_every_kind_learn(tasks: list[Task], tmp_path: Path) -> None:
    """A layer used twice, half precision, a parallel wrapper, normalisation that never runs, a buffer of one's own."""
    twice, flat = nn.Linear(256, 256), nn.Flatten()
    with_buffer = Strange(lambda self, y: y + self.seen)
    with_buffer.register_module("never_run", nn.BatchNorm1d(3))
    for net in (
        nn.Sequential(flat, twice, nn.ReLU(), twice, nn.Linear(256, 5)),
        normalised(nn.BatchNorm2d(4)).to(torch.bfloat16),
        nn.DataParallel(normalised(nn.BatchNorm2d(4))),
        with_buffer,
    ):
        model = SupSup(net, recipe=Recipe(steps=2, batch_size=8), device="cpu")
        model.learn_many(tasks)
        model.save(tmp_path / "m.supsup")
        again = supsup.load(tmp_path / "m.supsup", net=net, device="cpu")
        assert same(answers(again, tasks), answers(model, tasks))
        assert len(model.predict(tasks[0].test.batch(torch.arange(4))[0]).labels) == 4
    with_buffer.get_buffer("seen").fill_(1)
    with pytest.raises(SupSupError, match="parameters and buffers differ"):
        supsup.load(tmp_path / "m.supsup", net=with_buffer)


def test_a_folder_of_jpegs_from_files_to_answers(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    colours = {"finch": (60, 200, 40), "jay": (40, 60, 200), "robin": (200, 60, 40), "wren": (120, 100, 60)}
    for kind, colour in colours.items():
        (tmp_path / kind).mkdir()
        for number in range(10):
            shade = tuple(value + 4 * number for value in colour)
            image.new("RGB", (24 + number, 20), shade).save(tmp_path / kind / f"{number}.jpg")
    stream = data.split(data.image_folder(tmp_path, size=16), classes_per_task=2)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    model = SupSup(net, recipe=Recipe("adam", 0.02, steps=30, batch_size=16), device="cpu")
    model.learn_many(stream)
    for task in stream:
        x, y = task.test.tensors()
        assert torch.equal(model.predict(x, task=task.name).labels, y)
        assert len(model.predict(x).labels) == len(y)
