"""The face: learning, answering, forgetting, and what happens to bad input."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from supsup import Inference, NewTaskRule, Recipe, SupSup, SupSupError, data, nets
from supsup.data import Part, Stream, Task
from supsup.model.state import state_of
from supsup.model.supsup import observe_batches
from supsup.training import Job
from supsup.training.fast import batched
from supsup.training.fast.batched import BatchedTrainer
from supsup_paper.bench.bare_masks import infer_indices


def observed(model: SupSup, part: Part, positions: torch.Tensor) -> list[str | None]:
    """The mask that each batch went to."""
    return [name for name, batches in observe_batches(model, part, positions) for _ in range(batches)]


def outputs(model: SupSup, x: Tensor, task: str) -> Tensor:
    return state_of(model).net.run(x, state_of(model).net.masked(state_of(model).bank.mask(model.tasks.index(task))))


def state(model: SupSup) -> tuple[list[str], int, list[bytes]]:
    """Everything a failed call must leave as it was."""
    masks = [state_of(model).bank.mask(i) for i in range(len(state_of(model).bank))]
    return model.tasks, len(state_of(model).bank), [m.numpy().tobytes() for mask in masks for m in mask.values()]


def test_learned_tasks_are_answered_and_told_apart(learned: SupSup, stream: Stream) -> None:
    parts = [task.test.tensors() for task in stream[:4]]
    x, y = torch.cat([p[0][:100] for p in parts]), torch.cat([p[1][:100] for p in parts])
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    answer = learned.predict(x[order])
    expected = [stream[int(i) // 100].name for i in order]
    assert sum(a == b for a, b in zip(answer.tasks, expected)) >= 396
    assert float((answer.labels == y[order]).float().mean()) > 0.8
    assert ((answer.confidence > 0) & (answer.confidence <= 1)).all()


def test_learning_leaves_every_earlier_answer_bit_identical(small: SupSup, stream: Stream, images: Tensor) -> None:
    before = {name: outputs(small, images, name) for name in small.tasks}
    small.learn(stream[2])
    small.observe(*stream[3].train.batch(torch.arange(64)))
    assert all(torch.equal(outputs(small, images, name), before[name]) for name in before)


def test_forgetting_leaves_the_other_answers_bit_identical(small: SupSup, stream: Stream, images: Tensor) -> None:
    small.learn(stream[2])
    before = {name: outputs(small, images, name) for name in small.tasks}
    small.forget("permutation-1")
    assert small.tasks == ["permutation-0", "permutation-2"]
    assert all(torch.equal(outputs(small, images, name), before[name]) for name in small.tasks)
    with pytest.raises(SupSupError, match="unknown task 'permutation-1'"):
        small.predict(images, task="permutation-1")
    small.learn(stream[1])
    assert torch.equal(outputs(small, images, "permutation-1"), before["permutation-1"])


def test_the_order_of_learning_does_not_matter(small: SupSup, stream: Stream, images: Tensor) -> None:
    other = SupSup(nets.FullyConnected((784, 40, 20)), seed=1, recipe=Recipe(steps=10), device="cpu")
    other.learn(stream[1])
    other.learn(stream[0])
    for name in small.tasks:
        assert torch.equal(outputs(small, images, name), outputs(other, images, name))


def test_a_pair_of_arrays_is_a_task_too(stream: Stream) -> None:
    x, y = stream[0].train.tensors()
    model = SupSup(nets.lenet_300_100(outputs=20), recipe=Recipe(steps=30), device="cpu")
    assert model.learn((x.numpy(), y.numpy()), task="mine") == "mine"
    assert model.classes("mine") == 10
    test_x, test_y = stream[0].test.tensors()
    assert float((model.predict(test_x.numpy(), task="mine").labels == test_y).float().mean()) > 0.5


def test_one_task_is_always_the_right_one(stream: Stream, images: Tensor) -> None:
    model = SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), device="cpu")
    model.learn(stream[0])
    for method in ("one-shot", "binary", "gamma", "descent", "exhaustive"):
        assert model.infer_task(images, method=method, per="batch") == "permutation-0"


def test_who_decides(learned: SupSup, stream: Stream) -> None:
    """per="image" answers for each, "first" and "batch" once for all."""
    x = torch.cat([stream[1].test.batch(torch.arange(1))[0], stream[3].test.batch(torch.arange(60))[0]])
    assert learned.infer_task(x) == ["permutation-1"] + ["permutation-3"] * 60
    assert learned.infer_task(x, per="first") == "permutation-1"
    assert learned.infer_task(x, per="batch") == "permutation-3"
    assert learned.infer_task(x, per="batch", among=["permutation-0"]) == "permutation-0"


def test_the_default_method_can_be_set_and_overruled(stream: Stream, images: Tensor) -> None:
    model = SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), inference=Inference("binary", "H"))
    model.learn_many(stream[:2])
    with pytest.raises(SupSupError, match="superfluous"):
        model.infer_task(images, objective="G")
    with pytest.raises(SupSupError, match="superfluous"):
        model.predict(images, inference=Inference(objective="G"))


def test_tasks_with_different_numbers_of_classes_share_the_outputs() -> None:
    source = data.digits()
    model = SupSup(nets.lenet_300_100(outputs=12), recipe=Recipe(steps=20), device="cpu")
    pair, whole = data.split(source, 2)[0], data.permuted(source, 1)[0]
    model.learn_many([pair, whole])
    assert [model.classes(name) for name in model.tasks] == [2, 10]
    assert len(model.infer_task(pair.test.tensors()[0], objective="G")) == 200


def test_a_convolutional_network_of_ones_own(images: Tensor, stream: Stream) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(576, 20))
    model = SupSup(net, recipe=Recipe(steps=3), device="cpu")
    model.learn_many(stream[:2])
    assert len(model.predict(images).labels) == 40


class TestObserve:
    """Nobody says when the task changes."""

    @staticmethod
    def feed(model: SupSup, task: Task, batches: int) -> list[str | None]:
        order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(1)).repeat(5)
        return [model.observe(*task.train.batch(order[128 * i : 128 * (i + 1)])) for i in range(batches)]

    def model(self, **rule: int) -> SupSup:
        return SupSup(
            nets.lenet_300_100(outputs=100), new_task_rule=NewTaskRule(every=50, **rule), device="cpu", recipe=Recipe()
        )

    def test_a_change_opens_a_mask_and_a_return_finds_it_again(self, stream: Stream) -> None:
        model = self.model()
        for index in (0, 1, 2):
            assert set(self.feed(model, stream[index], 100)) == {f"observed-{index}"}
        assert set(self.feed(model, stream[1], 50)) == {"observed-1"}
        x, y = stream[0].test.tensors()
        assert float((model.predict(x).labels == y).float().mean()) > 0.6

    def test_optimiser_and_scores_stay_with_the_mask(self, stream: Stream) -> None:
        """A task that comes back goes on as if it had never been away."""
        away, straight = self.model(), self.model()
        self.feed(away, stream[0], 100)
        self.feed(away, stream[1], 100)
        self.feed(away, stream[0], 50)
        self.feed(straight, stream[0], 100)
        self.feed(straight, stream[0], 50)
        away._observer.write_back()
        straight._observer.write_back()
        a, b = state_of(away).bank.mask(0), state_of(straight).bank.mask(0)
        assert all(torch.equal(a[name], b[name]) for name in a)

    @pytest.mark.parametrize("batches", [1, 7, 120])
    def test_many_batches_at_once_are_the_same_as_one_by_one(self, stream: Stream, batches: int) -> None:
        together, single = self.model(), self.model()
        positions = torch.arange(128 * batches).view(batches, 128) % len(stream[0].train)
        for task in stream[:2]:
            names = observed(together, task.train, positions)
            assert names == [single.observe(*task.train.batch(p)) for p in positions]
        together._observer.write_back()
        single._observer.write_back()
        assert together.tasks == single.tasks
        assert all(
            torch.equal(state_of(together).bank.packed(i), state_of(single).bank.packed(i))
            for i in range(len(single.tasks))
        )

    def test_a_mask_has_the_classes_that_it_has_seen(self, stream: Stream) -> None:
        """One by one or many at once; answers are among them."""
        part = stream[0].train
        order = part.labels.argsort(stable=True)
        small = SupSup(
            nets.FullyConnected((784, 10)), new_task_rule=NewTaskRule(every=4), device="cpu", recipe=Recipe(steps=4)
        )
        small.observe(*part.batch(order[:16]))
        assert (small.tasks, small.classes("observed-0")) == (["observed-0"], 1)
        batches = torch.stack([order[:16], order[-16:]])
        assert observed(small, part, batches) == ["observed-0"] * 2
        assert small.classes("observed-0") == 10
        small.observe(*part.batch(order[:16]))
        assert small.classes("observed-0") == 10

    def test_sixteen_masks_are_kept_ready_to_go_on(self, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one used longest ago is let go first; none is kept twice."""
        small = SupSup(
            nets.FullyConnected((784, 10)), new_task_rule=NewTaskRule(every=1), device="cpu", recipe=Recipe(steps=4)
        )
        wanted: list[int | None] = [*[None] * 20, 4, 17, 17]
        monkeypatch.setattr("supsup.model.observer.choose_mask", lambda *given: wanted.pop(0))
        batch = stream[0].train.batch(torch.arange(8))
        for _ in range(20):
            small.observe(*batch)
        kept = small._observer.half_trained
        assert list(kept) == [f"observed-{number}" for number in range(3, 19)]
        assert small.observe(*batch) == "observed-4"
        assert list(kept) == [f"observed-{number}" for number in range(5, 20)]
        assert [small.observe(*batch) for _ in range(2)] == ["observed-17"] * 2
        assert list(kept) == [f"observed-{number}" for number in (*range(5, 17), 18, 19, 4)]

    def test_any_module_can_observe(self, stream: Stream) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 20))
        model = SupSup(net, new_task_rule=NewTaskRule(every=2), device="cpu")
        names = observed(model, stream[0].train, torch.arange(60).view(5, 12))
        assert len(names) == 5
        assert set(names) == set(model.tasks)

    def test_at_the_budget_known_tasks_go_on_and_new_ones_are_not_learned(self, stream: Stream) -> None:
        model = self.model(budget=2)
        for task in stream[:2]:
            self.feed(model, task, 100)
        model._observer.write_back()
        before = [state_of(model).bank.packed(i) for i in range(2)]
        with pytest.warns(UserWarning, match="all 2 masks of the budget are in use"):
            assert self.feed(model, stream[2], 50) == [None] * 50
        assert model.tasks == ["observed-0", "observed-1"]
        assert all(torch.equal(state_of(model).bank.packed(i), mask) for i, mask in enumerate(before))
        assert set(self.feed(model, stream[0], 50)) == {"observed-0"}
        with pytest.warns(UserWarning, match="make room with forget"):
            assert observed(model, stream[2].train, torch.arange(256).view(2, 128)) == [None, None]
        model.forget("observed-1")
        assert set(self.feed(model, stream[0], 48)) == {"observed-0"}, "decided at once, and again after 50 batches"
        assert set(self.feed(model, stream[2], 50)) == {"observed-1"}

    def test_forgetting_the_mask_in_use(self, stream: Stream) -> None:
        model = self.model()
        self.feed(model, stream[0], 5)
        model.forget("observed-0")
        assert model.tasks == []
        assert self.feed(model, stream[1], 3) == ["observed-0"] * 3

    def test_a_mask_whose_trainer_is_gone_goes_on_from_its_bits(
        self, stream: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("supsup.model.observer._HALF_TRAINED", 0)
        model = self.model()
        self.feed(model, stream[0], 100)
        self.feed(model, stream[1], 100)
        assert not model._observer.half_trained
        before = state_of(model).bank.mask(0)
        assert set(self.feed(model, stream[0], 50)) == {"observed-0"}
        model._observer.write_back()
        kept = [(before[n] == after).float().mean() for n, after in state_of(model).bank.mask(0).items()]
        assert min(kept) > 0.95


def test_a_copy_on_a_device_gives_the_same_answers(learned: SupSup, images: Tensor) -> None:
    copy = learned.to("cpu")
    copy.forget("permutation-3")
    assert learned.tasks == [*copy.tasks, "permutation-3"]
    assert torch.equal(outputs(copy, images, "permutation-1"), outputs(learned, images, "permutation-1"))


def part(x: Tensor, y: Tensor) -> Part:
    return Part(x, y)


def test_bad_input_gets_an_error_and_changes_nothing(small: SupSup, stream: Stream, images: Tensor) -> None:
    x, y = stream[2].train.batch(torch.arange(50))
    poisoned = x.clone()
    poisoned[3, 0, 0, 0] = float("nan")
    empty = Part(x, y[:0], rows=torch.zeros(0, dtype=torch.int64))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: small.learn((x[:, :, :5], y), task="t"), "learned images of shape"),
        (lambda: small.learn((poisoned, y), task="t"), "NaN"),
        (lambda: small.learn(Task("t", part(poisoned, y), part(x, y), 10)), "NaN"),
        (lambda: small.learn((x, torch.arange(50) % 25), task="t"), "outputs"),
        (lambda: small.learn((x, y * 0), task="t"), "at least two classes"),
        (lambda: small.learn((x, y[:10]), task="t"), "one label each"),
        (lambda: small.learn((x[:0], y[:0]), task="t"), "at least one image"),
        (lambda: small.learn(Task("t", empty, empty, 10)), "is empty"),
        (lambda: small.learn(stream[0]), "learned already"),
        (lambda: small.learn(stream[2], task=""), "name"),
        (lambda: small.learn((x, y)), "name"),
        (lambda: small.learn(x, task="t"), "pair"),
        (lambda: small.learn_many([]), "no tasks"),
        (lambda: small.learn_many([stream[2], stream[0]]), "learned already"),
        (lambda: small.learn_many([stream[2], stream[2]]), "more than one task"),
        (lambda: small.observe(x, y + 15), "outputs"),
        (lambda: small.observe(poisoned, y), "NaN"),
        (lambda: small.forget("nobody"), "unknown task 'nobody'; known: permutation-0, permutation-1"),
        (lambda: small.predict(images, task="nobody"), "unknown task"),
        (lambda: small.predict(images[:, :, 1:]), "shape"),
        (lambda: small.predict(images.long()), "floating point"),
        (lambda: small.predict(images, among=["nobody"]), "unknown task"),
        (lambda: small.predict(images, among=[]), "no task to choose"),
        (lambda: small.infer_task(images, method="guess"), "known: auto, features, one-shot"),
        (lambda: small.infer_task(images, objective="X"), "known: H"),
        (lambda: small.infer_task(images, per="day"), "known: image, batch, first"),  # type: ignore[call-overload]
        (lambda: small.infer_task(images, speed=3), "unknown inference setting"),
    ]
    before = state(small)
    for call, message in cases:
        with pytest.raises(SupSupError, match=message):
            call()
        assert state(small) == before, message


def test_nothing_learned_yet(images: Tensor) -> None:
    model = SupSup(nets.lenet_300_100(), device="cpu")
    for call in (lambda: model.predict(images), lambda: model.infer_task(images), lambda: model.predict(images, "t")):
        with pytest.raises(SupSupError, match="no task has been learned yet"):
            call()


def test_a_network_that_does_not_take_the_images(stream: Stream) -> None:
    model = SupSup(nets.lenet_300_100(inputs=100), device="cpu")
    with pytest.raises(SupSupError, match=r"does not take images of shape \(1, 28, 28\)"):
        model.learn(stream[0])
    flat = SupSup(nn.Sequential(nn.Linear(28, 10)), device="cpu")
    with pytest.raises(SupSupError, match="one vector of outputs per image"):
        flat.learn(stream[0])
    assert model.tasks == []
    assert flat.tasks == []


def test_an_interruption_keeps_the_tasks_finished(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), device="cpu")
    start = batched.start_jobs

    def interrupted(trainer: BatchedTrainer, jobs: Sequence[Job]) -> None:
        if any(job.task.name == "permutation-2" for job in jobs):
            raise KeyboardInterrupt
        start(trainer, jobs)

    monkeypatch.setattr(batched, "start_jobs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn_many(stream)
    assert model.tasks == ["permutation-0", "permutation-1"]


def test_unknown_devices_are_named() -> None:
    with pytest.raises(SupSupError, match="'auto', 'cpu' or 'cuda'"):
        SupSup(nets.lenet_300_100(), device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(SupSupError, match="needs a GPU"):
            SupSup(nets.lenet_300_100(), device="cuda")


def test_numpy_answers_equal_torch_answers(small: SupSup, images: Tensor) -> None:
    assert torch.equal(small.predict(images.numpy().astype(np.float64)).labels, small.predict(images).labels)


def test_answers_follow_every_change_of_the_masks(small: SupSup, stream: Stream, images: Tensor) -> None:
    """The mask of the last answer stays on; an answer from an old one would be wrong without a sign."""

    def check() -> None:
        for name in (*small.tasks, *small.tasks[::-1]):
            values, labels = outputs(small, images, name).softmax(-1).max(-1)
            answer = small.predict(images, task=name, outputs="all")
            assert torch.equal(answer.labels, labels)
            assert torch.equal(answer.confidence, values)

    check()
    held = {name: small.subnetwork(name) for name in small.tasks}
    before = {name: {key: value.clone() for key, value in weights.items()} for name, weights in held.items()}
    small.learn(stream[2])
    check()
    state_of(small).replace("permutation-0", small.mask("permutation-2"))
    check()
    small.forget("permutation-1")
    check()
    small.observe(*stream[3].train.batch(torch.arange(64)))
    check()
    small.observe(*stream[3].train.batch(torch.arange(64, 128)))
    check()
    assert all(torch.equal(held[name][key], before[name][key]) for name in held for key in held[name])
    copy = small.to("cpu")
    assert torch.equal(copy.predict(images, "permutation-2").labels, small.predict(images, "permutation-2").labels)


@pytest.mark.parametrize("method", ["one-shot", "binary", "gamma", "exhaustive"])
def test_many_batches_are_decided_as_each_on_its_own(learned: SupSup, stream: Stream, method: str) -> None:
    """Grading asks for all batches of a task at once, which must change nothing but the time it takes."""
    x = torch.stack([stream[i].test.batch(torch.arange(start, start + 6))[0] for i in (0, 2, 3) for start in (0, 50)])
    before, among = learned.inference, learned.tasks[1:]
    learned.inference = Inference(method, gamma=0.3)
    try:
        assert learned.infer_batches(x, among=among) == [
            learned.infer_task(batch, per="batch", among=among) for batch in x
        ]
    finally:
        learned.inference = before


@pytest.mark.parametrize("positions", [torch.zeros(0, 8), torch.zeros(8), torch.full((2, 8), 10**6), -torch.ones(2, 8)])
def test_positions_outside_a_part_are_a_mistake(stream: Stream, positions: torch.Tensor) -> None:
    model = SupSup(nets.FullyConnected((784, 20)), recipe=Recipe(steps=1), device="cpu")
    with pytest.raises(SupSupError, match="positions must be"):
        observe_batches(model, stream[0].train, positions.long())
    assert model.tasks == []


def test_g_leaves_the_outputs_of_the_largest_task_in_question_alone() -> None:
    """Outputs that some task uses are not superfluous: their gradient would draw answers away from that task."""
    generator = torch.Generator().manual_seed(0)
    model = SupSup(nets.FullyConnected((16, 24, 12)), recipe=Recipe(steps=20, batch_size=16), device="cpu")
    for number, classes in enumerate((2, 3, 9, 2, 3)):
        x = torch.randn(60, 16, generator=generator)
        model.learn((x, torch.arange(60) % classes), task=str(number), normalise=False)
    x, how = torch.randn(200, 16, generator=generator), Inference(objective="G")
    for members, classes in (([0, 1, 2, 3, 4], 9), ([0, 1, 3, 4], 3), ([0, 3], 2)):
        found = model.infer_task(x, objective="G", among=[str(number) for number in members])

        def names(most: int, members: list[int] = members) -> list[str]:
            return [
                str(i)
                for i in infer_indices(
                    state_of(model).net, state_of(model).bank, x[:, None], members, most, how
                ).tolist()
            ]

        assert found == names(classes)
        assert all(found != names(other) for other in {2, 3, 9} - {classes}), "a test that could fail"
