"""Questions about raw inputs: a task's normalisation and names belong to it, in memory, in files and in copies."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import HopSupSup, Inference, Recipe, SupSup, SupSupError, UnitRecipe, data, evaluate, nets
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair
from supsup.inference.candidates import Candidates, Margin, TaskNetworks, TaskView
from supsup.inference.gradient import Goal, alpha_gradient, choose_layers
from supsup.inference.methods import choose_tasks
from supsup.model import predictor
from supsup.model.predictor import Images
from supsup.model.state import state_of
from supsup_paper.bench.bare_masks import BareMasks

ADAM = Recipe("adam", 1e-2, steps=60, batch_size=32)
WAYS = [
    Inference(),
    Inference(objective="G", layers="first"),
    Inference("binary"),
    Inference("gamma", gamma=0.4),
    Inference("descent", steps=3),
    Inference("exhaustive"),
    Inference(coordinates=50),
]


def table(seed: int, scale: tuple[float, ...] = (1e-3, 1.0, 1e3, 50.0), rows: int = 120) -> tuple[Tensor, list[str]]:
    """Three classes that differ in every feature, each feature on a scale of its own."""
    generator = torch.Generator().manual_seed(seed)
    centres = 5 * torch.randn(3, len(scale), generator=generator)
    labels = torch.arange(rows) % 3
    x = centres[labels] + torch.randn(rows, len(scale), generator=generator)
    return x * torch.tensor(scale), [f"kind {seed}{'xyz'[label]}" for label in labels.tolist()]


def model(**how: Any) -> SupSup:
    return SupSup(nets.FullyConnected((4, 64, 10)), recipe=ADAM, device="cpu", **how)


@pytest.fixture(scope="module")
def mixed() -> SupSup:
    """Two tables on one scale, one on another, and a task as the network sees it."""
    found = model()
    found.learn(table(1), task="one")
    found.learn(table(2), task="two")
    found.learn(table(3, (50.0, 1e3, 1.0, 1e-3)), task="other scale")
    task = data.task(table(4, (1.0, 1.0, 1.0, 1.0)), "seen", normalise=False)
    found.learn(data.Task("seen", task.train, task.test, 3))
    return found


def test_predict_takes_what_learn_took_and_answers_in_the_user_s_words() -> None:
    x, y = table(1)
    found = model()
    found.learn((x, y), task="wine")
    answer = found.predict(x, task="wine")
    assert set(answer.names) <= set(y)
    assert np.mean([a == b for a, b in zip(answer.names, y)]) > 0.9
    assert answer.names == [sorted(set(y))[label] for label in answer.labels.tolist()]
    for same in (x.numpy(), x.tolist(), pd.DataFrame(x.numpy()), x.double()):
        assert torch.equal(found.predict(same, task="wine").labels, answer.labels)
    assert found.task_info("wine").names == tuple(sorted(set(y)))
    assert found.task_info("wine").inputs is not None


def test_one_mean_for_all_features_is_not_enough() -> None:
    """Without a normalisation of their own small features say nothing."""
    x, y = table(5)
    found = model()
    found.learn((x, y), task="bare", normalise=False)
    bare = np.mean([a == b for a, b in zip(found.predict(x, task="bare").names, y)])
    assert bare < 0.9


def test_later_tasks_take_the_first_normalisation_where_it_suits(mixed: SupSup) -> None:
    one, two, other = (mixed.task_info(name).inputs for name in ("one", "two", "other scale"))
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.key == two.key != other.key
    assert [indices for _, indices in state_of(mixed).tasks.input_groups()] == [[0, 1], [2], [3]]
    assert [indices for _, indices in state_of(mixed).tasks.input_groups([3, 0])] == [[3], [0]]


@pytest.mark.parametrize("how", WAYS, ids=lambda how: f"{how.method}-{how.coordinates}")
def test_each_candidate_sees_inputs_its_own_way(mixed: SupSup, how: Inference) -> None:
    """−∂Obj/∂αᵢ of a candidate comes from the view of its own task, whatever the others see."""
    x = table(3, (50.0, 1e3, 1.0, 1e-3), 20)[0]
    views = state_of(mixed).tasks.input_groups()
    images = Images(x, views, mixed.image_shape, state_of(mixed).net)
    shown = [TaskView(images.preprocessed(inputs)[:, None], members) for inputs, members in views]
    networks = TaskNetworks(state_of(mixed).net, state_of(mixed).bank, BareMasks(4, 3))
    found = choose_tasks(Candidates(networks, shown, how))
    expected = [mixed.tasks[index] for index in found.chosen.tolist()]
    assert mixed.infer_task(x, method=how.method, objective=how.objective, layers=how.layers, gamma=how.gamma,
                            steps=how.steps, coordinates=how.coordinates) == expected  # fmt: skip
    if how.method == "exhaustive":
        alone = [choose_tasks(Candidates(networks, [view], how, view.members)) for view in shown]
        best = torch.stack(
            [each.margin.best if isinstance(each.margin, Margin) else torch.full((20,), -9.0) for each in alone]
        )
        assert isinstance(found.margin, Margin)
        assert (found.margin.best >= best.amax(0) - 1e-6).all()


def test_the_gradient_of_several_views_is_that_of_each(mixed: SupSup) -> None:
    x = table(1, rows=7)[0]
    views = state_of(mixed).tasks.input_groups()
    images = Images(x, views, mixed.image_shape, state_of(mixed).net)
    goal, layers = Goal("H", 3), choose_layers(state_of(mixed).net, "all")
    expected = torch.empty(7, 4)
    for inputs, members in views:
        seen = images.preprocessed(inputs)[:, None]
        expected[:, members] = alpha_gradient(state_of(mixed).net, state_of(mixed).bank, seen, None, goal, layers)[
            :, members
        ]
    shown = [TaskView(images.preprocessed(inputs)[:, None], members) for inputs, members in views]
    networks = TaskNetworks(state_of(mixed).net, state_of(mixed).bank, BareMasks(4, 3))
    found = choose_tasks(Candidates(networks, shown, Inference()))
    assert torch.equal(found.chosen, expected.argmax(1))


def test_answers_are_the_same_from_a_file_a_copy_a_pickle_and_after_repair(mixed: SupSup, tmp_path: Path) -> None:
    x = table(2, rows=30)[0]
    expected = mixed.predict(x)
    mixed.save(tmp_path / "m.supsup")
    repair(tmp_path / "m.supsup", tmp_path / "again.supsup")
    for other in (
        supsup.load(tmp_path / "m.supsup", device="cpu"),
        supsup.load(tmp_path / "again.supsup", device="cpu"),
        copy.deepcopy(mixed),
        pickle.loads(pickle.dumps(mixed)),
        mixed.to("cpu"),
    ):
        found = other.predict(x)
        assert (found.names, found.tasks) == (expected.names, expected.tasks)
        assert torch.equal(found.confidence, expected.confidence)
        assert [other.task_info(task).inputs is not None for task in other.tasks] == [True, True, True, False]
    with supsup.load(tmp_path / "m.supsup", device="cpu", in_place=True) as live:
        live.forget("one")
        assert live.predict(x, task="two").names == mixed.predict(x, task="two").names
    with ModelFile(tmp_path / "m.supsup", write=True) as file:
        file.compact(against_mean=True)
    left = supsup.load(tmp_path / "m.supsup", device="cpu")
    assert left.predict(x, task="two").names == mixed.predict(x, task="two").names


def test_evaluate_hands_in_what_each_task_takes(mixed: SupSup) -> None:
    tasks = [
        data.task(table(1), "one"),
        data.task(table(3, (50.0, 1e3, 1.0, 1e-3)), "other scale"),
    ]
    found = evaluate(mixed, tasks, "GG", show_progress=False)
    for task in tasks:
        x = task.raw_test(torch.arange(len(task.test)))
        right = (mixed.predict(x, task=task.name).labels == task.test.labels).float().mean()
        assert found.per_task[task.name] == pytest.approx(float(right))
        assert right > 0.9
    for protocol in ("paper", "paper-full-batch", "strict"):
        evaluate(mixed, tasks, "GNu", protocol=protocol, show_progress=False)


def test_tasks_of_a_stream_share_the_first_normalisation() -> None:
    found = model()
    found.learn_many([data.task(table(seed), f"t{seed}") for seed in range(3)])
    assert len(state_of(found).tasks.input_groups()) == 1
    with pytest.raises(SupSupError, match="learned images of shape"):
        found.learn((table(9, (1.0, 1.0, 1.0))[0], table(9)[1]), task="narrow")
    assert found.tasks == ["t0", "t1", "t2"]


class Words(nn.Module):
    """A text classifier: an embedding, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(300, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.words(x).mean(1))
        return answer


@pytest.mark.filterwarnings("ignore:tasks are similar")  # the tasks share their inputs
def test_whole_numbers_reach_an_embedding_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Words()
    x = torch.randint(0, 300, (80, 6))
    y = ["low" if each < 150 else "high" for each in x[:, 0].tolist()]
    found = SupSup(net, recipe=Recipe("adam", 1e-2, steps=5), device="cpu")
    found.learn((x.int(), y), task="words")
    found.learn((x.byte() // 2, y), task="bytes")
    inputs = found.task_info("words").inputs
    assert inputs is not None
    assert inputs.tokens
    found.learn_many([data.task((x, y), "more", tokens=True)])
    for asked in (x, x.numpy().astype(np.uint16)):
        assert set(found.predict(asked).tasks) <= {"words", "bytes", "more"}
    found.save(tmp_path / "m")
    again = supsup.load(tmp_path / "m", net, device="cpu")
    assert torch.equal(again.predict(x, task="words").probabilities, found.predict(x, task="words").probabilities)
    evaluate(found, [data.task((x, y), "words", tokens=True)], "GG", show_progress=False)


def test_whole_numbers_are_a_table_for_any_other_network() -> None:
    x = torch.randint(0, 1000, (60, 4))
    found = model()
    found.learn((x, torch.arange(60) % 2), task="t")
    inputs = found.task_info("t").inputs
    assert inputs is not None
    assert not inputs.tokens
    assert inputs.gain.shape == (4,)
    assert len(found.predict(x.float()).labels) == len(found.predict(x).labels) == 60


@pytest.mark.parametrize("give", [lambda x: x, lambda x: x.astype(np.float32), lambda x: list(x)])
def test_images_with_channels_last(give: Callable[[Any], Any], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 100, (40, 8, 8, 3), dtype=np.uint8), np.arange(40) % 2
    x[y == 1, :4] += 100
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    found = SupSup(net, recipe=ADAM, device="cpu")
    found.learn((give(x), y), task="t")
    assert found.image_shape == (3, 8, 8)
    assert (found.predict(x, task="t").labels.numpy() == y).mean() > 0.9
    assert torch.equal(found.predict(x.transpose(0, 3, 1, 2)).labels, found.predict(x).labels)
    found.save(tmp_path / "m")
    again = supsup.load(tmp_path / "m", net, device="cpu")
    assert torch.equal(again.predict(x).labels, found.predict(x).labels)
    with pytest.raises(SupSupError, match="does not take images of shape"):
        SupSup(net, recipe=ADAM, device="cpu").learn((give(x), y), task="t", layout="NCHW")


def test_grey_images_get_the_channel_that_a_network_needs() -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8), np.arange(20) % 2
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4))
    found = SupSup(net, recipe=Recipe(steps=2), device="cpu")
    found.learn((x, y), task="a")
    found.learn((x[:, None], y), task="b")
    assert found.image_shape == (1, 8, 8)
    assert len(found.predict(x).labels) == len(found.predict(x[:, None]).labels) == 20


def test_a_model_of_the_network_s_own_inputs_stays_strict(small: SupSup, images: Tensor) -> None:
    with pytest.raises(SupSupError, match="floating point"):
        small.predict(images.long())
    small.learn((images, torch.arange(40) % 4), task="pair that suits")
    assert small.task_info("pair that suits").inputs is None
    with pytest.raises(SupSupError, match="floating point"):
        small.predict(images.long())


def test_hopsupsup_keeps_names_and_one_normalisation(tmp_path: Path) -> None:
    recipe = UnitRecipe(epochs=3, batch_size=40)
    found = HopSupSup(nets.HopMLP((4, 64, 64, 9)), recipe=recipe, device="cpu")
    found.learn(table(1), task="one")
    found.learn(table(3, (50.0, 1e3, 1.0, 1e-3)), task="two")
    one, two = found.task_info("one").inputs, found.task_info("two").inputs
    assert one is not None
    assert two is not None
    assert one.key == two.key
    x = table(1)[0]
    answer = found.predict(x, task="one")
    assert set(answer.names) <= set(table(1)[1])
    found.save(tmp_path / "m")
    again = supsup.load(tmp_path / "m", device="cpu")
    assert again.predict(x, task="one").names == answer.names
    assert again.task_info("two").inputs is not None
    task = data.task(table(4), "seen", normalise=False)
    with pytest.raises(SupSupError, match=r"takes raw inputs.*data\.task"):
        found.learn(data.Task("seen", task.train, task.test, 3))
    assert "2 tasks" in repr(found)


def test_what_a_model_says_of_itself(mixed: SupSup, tmp_path: Path) -> None:
    said = repr(mixed)
    for words in (
        "FullyConnected of 896 masked weights",
        "4 tasks: one, two, other scale, seen",
        "448 bytes",
        "not saved",
    ):
        assert words in said, said
    mixed.save(tmp_path / "m.supsup")
    with supsup.load(tmp_path / "m.supsup", device="cpu", in_place=True) as live:
        assert "m.supsup" in repr(live)


def test_how_sure_a_task_is(mixed: SupSup, learned: SupSup, images: Tensor) -> None:
    """Right tasks are surer than wrong ones, and what was given is certain."""
    assert torch.equal(mixed.predict(table(1)[0], task="one").task_confidence, torch.ones(120))
    answer = learned.predict(images)
    assert ((answer.task_confidence >= 0) & (answer.task_confidence <= 1)).all()
    noise = learned.predict(torch.randn(40, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    assert answer.task_confidence.mean() > noise.task_confidence.mean()
    one = model()
    one.learn(table(1), task="only")
    assert torch.equal(one.predict(table(1)[0]).task_confidence, torch.ones(120))


def test_more_is_rejected_where_the_task_is_in_doubt(
    learned: SupSup, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 % of known inputs, divided by the root of the confidence; the usual 5 % where the task is given."""
    asked: list[Tensor] = []

    def unfamiliar(networks: TaskNetworks, index: int, x: Tensor, shares: Tensor) -> Tensor:
        asked.append(shares)
        return shares > 1

    monkeypatch.setattr(predictor, "unfamiliar", unfamiliar)
    answer = learned.predict(images, unknown=True)
    expected = 0.05 * 0.8 / answer.task_confidence.sqrt()
    torch.testing.assert_close(torch.cat(asked).sort().values, expected.sort().values, rtol=1e-4, atol=1e-6)
    asked.clear()
    learned.predict(images, task=learned.tasks[0], unknown=0.1)
    assert torch.equal(torch.cat(asked), torch.full((len(images),), 0.1))


def test_tasks_of_few_and_of_many_classes_are_answered_side_by_side() -> None:
    """Each among its own classes: a class that a task does not have is at 0."""
    found = SupSup(nets.FullyConnected((4, 64, 12)), recipe=ADAM, device="cpu", inference=Inference("one-shot"))
    x, _ = table(1)
    few, many = torch.arange(120) % 2, torch.arange(120) % 7
    found.learn((x, few), task="few", normalise=False)
    found.learn((x.flip(1), many), task="many", normalise=False)
    both = torch.cat([x, x.flip(1)]).float()
    answer = found.predict(both)
    assert set(answer.tasks) == {"few", "many"}
    for name, classes in (("few", 2), ("many", 7)):
        rows = [row for row, task in enumerate(answer.tasks) if task == name]
        given = found.predict(both[rows], task=name)
        assert torch.equal(answer.labels[rows], given.labels)
        torch.testing.assert_close(answer.confidence[rows], given.confidence)
        assert int(given.labels.max()) < classes
    assert int(answer.labels.max()) > 1
