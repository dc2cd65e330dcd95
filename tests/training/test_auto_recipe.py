"""The recipe that a task is given where nobody gives one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import AutoRecipe, Recipe, SupSup, SupSupError, nets
from supsup.data import Augmentation, Part, Stream, Task
from supsup.data.rotations import mean_over_rotations
from supsup.data.task import TaskInfo
from supsup.inference.profiles.fit import ProfileFitter
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import initial_scores
from supsup.model.state import state_of
from supsup.training import MNIST, Job, train_masks
from supsup.training import auto_recipe as fitting
from supsup.training.recipe import SelfLabels
from supsup_paper.runs.cifar import learn_with_models

CPU = torch.device("cpu")


def small_network() -> nn.Module:
    """Few inputs in each layer, so that the paper's scores start far from 0; normalisation and biases."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def separated(seed: int, classes: int, images: int) -> tuple[Tensor, Tensor]:
    """One pattern for each class, and noise on it."""
    chance = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes, 1, 8, 8, generator=chance)
    labels = torch.arange(images) % classes
    return patterns[labels] + 0.4 * torch.randn(images, 1, 8, 8, generator=chance), labels


@pytest.mark.parametrize("seed", range(10))
def test_a_small_network_of_somebody_else_learns_without_a_recipe(seed: int) -> None:
    """With the paper's recipe for MNIST tasks of five classes ended at three quarters of what is right."""
    torch.manual_seed(seed)
    model = SupSup(small_network(), seed, device="cpu")
    for number, classes in enumerate((3, 5, 4)):
        x, y = separated(10 * seed + number, classes, 1600)
        name = model.learn((x[:1200], y[:1200]), task=f"{classes} classes")
        right = (model.predict(x[1200:], task=name).labels == y[1200:]).float().mean()
        assert right >= 0.95


def test_a_mask_does_not_depend_on_what_is_learned_with_it() -> None:
    """One by one or all at once, whatever the tasks' sizes: else resuming and regrouping would change answers."""
    for net, tasks in (
        (nets.FullyConnected((64, 20, 10)), [_small(0, 3), _small(1, 5, 900), _small(2, 4)]),
        (small_network(), [_small(0, 3), _small(1, 2)]),
    ):
        together, alone = (SupSup(net, recipe=AutoRecipe(rounds=2), device="cpu") for _ in range(2))
        together.learn_many(tasks)
        for task in reversed(tasks):
            alone.learn(task)
        for task in tasks:
            one, other = together.subnetwork(task.name), alone.subnetwork(task.name)
            assert all(torch.equal(one[name], other[name]) for name in one)
            assert together.recipe_of(task.name) == alone.recipe_of(task.name)


def _small(seed: int, classes: int, images: int = 300) -> Task:
    part = Part(*separated(seed, classes, images))
    return Task(f"small-{seed}", part, part, classes)


def test_the_best_round_is_kept_with_its_own_statistics() -> None:
    """A later round that answers fewer of the judging images must not replace it, nor its means and variances."""
    task = _small(3, 5, 400)
    judge = fitting.HoldoutSplit(0, 0.1).divide(task.train).judging
    x, y = judge.tensors()
    rights = []
    for rounds in (1, 3):
        model = SupSup(small_network(), recipe=AutoRecipe(rounds=rounds), device="cpu")
        model.learn(task)
        rights.append(int((model.predict(x, task=task.name).labels == y).sum()))
    assert rights == sorted(rights)
    assert model.recipe_of(task.name) in [replace(fitting.first_round(360), steps=steps) for steps in (200, 600)]


def test_rounds_end_when_nothing_is_wrong_or_one_was_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the mask of the best one is that which is kept, not of the last."""
    monkeypatch.setattr(fitting, "_SHORTEST", 10)
    monkeypatch.setattr(fitting, "_EPOCHS", 1)
    net, task = FrozenNet(small_network(), 0, CPU), _small(0, 3)
    judge = fitting.HoldoutSplit(0, 0.1).divide(task.train).judging
    for answers, lengths, best in (
        ([5, 9, 8], [1, 3, 6], 4),
        ([5, 4], [1, 3], 1),
        ([5, 5, 6], [1, 3, 6], 10),
        ([len(judge)], [1], 1),
    ):
        given = iter(answers)
        monkeypatch.setattr(fitting._Fit, "_right", lambda *_, given=given: next(given))
        trained: list[list[Job]] = []

        def watched(net: FrozenNet, jobs: list[Job], *rest: object, trained: list[list[Job]] = trained) -> object:
            trained.append(jobs)
            return train_masks(net, jobs)

        monkeypatch.setattr(fitting, "train_masks", watched)
        (kept,) = AutoRecipe(rounds=10).train(net, [task])
        assert kept.recipes is not None
        (recipe,) = kept.recipes
        steps = fitting.first_round(270).steps
        assert (recipe.steps, kept.tasks[0]) == (best * steps, task)
        assert [jobs[0].recipe.steps for jobs in trained] == [length * steps for length in lengths]
        assert len({jobs[0].task.name for jobs in trained}) == len(lengths), (
            "batches come in another order in each round"
        )


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that are trained from now on, in short rounds."""
    monkeypatch.setattr(fitting, "_SHORTEST", 10)
    monkeypatch.setattr(fitting, "_EPOCHS", 1)
    trained: list[Job] = []

    def watched(net: FrozenNet, jobs: list[Job], *rest: Any) -> object:
        trained.extend(jobs)
        return train_masks(net, jobs, *rest)

    monkeypatch.setattr(fitting, "train_masks", watched)
    return trained


def test_where_none_are_held_back_all_steps_are_one_round_and_scores_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would say when images are learned by heart: alphabets of 15 drawings a letter were 9 points behind."""
    trained = _watched(monkeypatch)
    few, many = _small(0, 3, 60), _small(1, 3)
    done: list[float] = []
    net = FrozenNet(small_network(), 0, CPU)
    found = list(AutoRecipe(rounds=3).train(net, [few, many], advance=done.append))
    chosen = dict(zip(["few", "many"], [recipe for trained in found for recipe in trained.recipes or ()]))
    of_few, *of_many = trained
    steps = fitting.first_round(60).steps
    assert of_few.recipe == chosen["few"]
    assert (chosen["few"].steps, chosen["few"].weight_decay) == (3 * steps, fitting._DECAY)
    assert of_few.task.train is few.train
    assert chosen["many"].weight_decay == 0
    assert [job.recipe.steps for job in of_many] in ([steps], [steps, 2 * steps])
    assert sum(done) == pytest.approx(2), "a bar ends where the tasks do"
    trained.clear()
    pretrained = FrozenNet(small_network(), 0, CPU, pretrained=True)
    monkeypatch.setattr(fitting._Fit, "_right", lambda *_: 1)
    list(AutoRecipe(rounds=3).train(pretrained, [few]))
    assert [(job.recipe.steps, job.recipe.weight_decay) for job in trained] == [(steps, 0), (2 * steps, 0)], (
        "trained weights answer soon: rounds may end"
    )


def test_images_that_judge_are_a_share_of_every_class_and_not_trained_on() -> None:
    labels = torch.cat([torch.zeros(200), torch.ones(100), torch.full((9,), 2)]).long()
    images = torch.arange(len(labels)).float()[:, None]
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for part in (Part(images, labels), Part(images, labels[rows], rows=rows)):
        learned, judge, *_ = fitting.HoldoutSplit(0, 0.1).divide(part)
        assert judge.labels.bincount(minlength=3).tolist() == [20, 10, 0]
        numbers = torch.cat([learned.tensors()[0], judge.tensors()[0]]).flatten().long()
        assert sorted(numbers.tolist()) == list(range(len(labels)))
        for half in (learned, judge):
            assert torch.equal(labels[half.tensors()[0].flatten().long()], half.labels)
    many = Part(torch.zeros(60000, 1), torch.arange(60000) % 10)
    assert len(fitting.HoldoutSplit(0, 0.1).divide(many).judging) == 500
    few = Part(torch.zeros(40, 1), torch.arange(40) % 4)
    assert [len(half) for half in fitting.HoldoutSplit(0, 0.1).divide(few)[:2]] == [40, 40], "too few to do without any"
    alphabet = Part(torch.zeros(480, 1), torch.arange(480) % 24)
    assert [len(half) for half in fitting.HoldoutSplit(0, 0.1).divide(alphabet)[:2]] == [480, 480], (
        "each image of a class counts"
    )
    assert [len(half) for half in fitting.HoldoutSplit(0, 0.0).divide(many)[:2]] == [60000, 500]


def test_tasks_of_a_stream_share_what_is_held_back(stream: Stream) -> None:
    """On a GPU thousands of tasks with the same rows and labels are fed in one go."""
    halves = fitting.HoldoutSplit(0, 0.1)
    one, other = halves.divide(stream[0].train).trained, halves.divide(stream[1].train).trained
    assert one.rows is other.rows
    assert one.labels is other.labels
    assert one.images is other.images


def test_small_data_get_small_batches_and_few_steps() -> None:
    sizes = {n: (fitting.first_round(n).batch_size, fitting.first_round(n).steps) for n in (1, 40, 1080, 60000)}
    assert sizes == {1: (16, 100), 40: (16, 100), 1080: (64, 150), 60000: (128, 500)}
    model = SupSup(small_network(), device="cpu")
    x, y = separated(0, 3, 2)
    assert model.learn((x, y), task="two images") == "two images"


def test_images_that_are_varied_get_smaller_batches_and_more_steps() -> None:
    """A residual network on CIFAR-100 was five points behind: crops and flips left it with images half learned."""
    sizes = [fitting.first_round(n, varied=True) for n in (540, 2250, 60000)]
    assert [(each.batch_size, each.steps) for each in sizes] == [(16, 350), (32, 500), (128, 500)]
    assert {each.crops for each in sizes} == {0.25}
    assert fitting.first_round(2250, pretrained=True, varied=True) == fitting.first_round(2250, pretrained=True)
    task, net = _small(0, 3, 2500), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    varied = replace(task, name="varied", train=replace(task.train, augmentation=Augmentation(padding=1, flip=True)))
    model = SupSup(net, recipe=AutoRecipe(rounds=1), device="cpu")
    for each in (task, varied):
        model.learn(each)
        assert model.recipe_of(each.name) == fitting.first_round(2250, varied=each is varied)


def test_masks_are_shown_narrower_crops_where_images_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cropped as far as CIFAR-100 is for ordinary training, images are half learned when the steps are over."""
    trained = _watched(monkeypatch)
    frame, found = Augmentation(padding=8, flip=True), {}
    for images, pretrained in ((300, False), (60, False), (300, True)):
        task = _small(0, 3, images)
        task = replace(task, train=replace(task.train, augmentation=frame))
        net = FrozenNet(small_network(), 0, CPU, pretrained=pretrained)
        ((recipe,),) = (trained.recipes or () for trained in AutoRecipe(rounds=2).train(net, [task]))
        found[images, pretrained] = recipe.crops, {job.task.train.augmentation for job in trained}
        trained.clear()
    assert found == {
        (300, False): (0.25, {Augmentation(padding=2, flip=True)}),
        (60, False): (None, {frame}),
        (300, True): (None, {frame}),
    }


def test_the_last_round_is_on_most_images_where_they_are_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen after it, so half of the images held back are trained on; its mask is kept in any case.

    What a task is recognised by is calibrated with the images that training says were held back: those of a mask's last
    round that was on more images used to be calibrated with images it had learned.
    """
    trained = _watched(monkeypatch)
    net, plain = FrozenNet(small_network(), 0, CPU), _small(0, 3, 600)
    varied = replace(plain, train=replace(plain.train, augmentation=Augmentation(padding=1)))
    for task, rounds, answers, sizes, best in (
        (varied, 4, [9], [540, 570], 4),
        (varied, 10, [5, 9], [540, 540, 570], 10),
        (varied, 10, [9, 5], [540, 540], 1),
        (varied, 4, [60], [540], 1),
        (varied, 1, [], [570], 1),
        (plain, 4, [9, 5], [540, 540], 1),
    ):
        given = iter(answers)
        monkeypatch.setattr(fitting._Fit, "_right", lambda *_, given=given: next(given))
        (found,) = AutoRecipe(rounds=rounds).train(net, [task])
        assert found.recipes is not None
        assert found.splits is not None
        (recipe,), ((learned, held_back),) = found.recipes, found.splits
        assert ([len(job.task.train) for job in trained], next(given, None)) == (sizes, None)
        assert recipe.steps == best * trained[0].recipe.steps
        assert held_back is not None
        kept = trained[-1] if best == rounds else trained[0]
        rows, never = (set(map(int, part.rows)) for part in (kept.task.train, held_back))  # type: ignore[arg-type]
        assert rows == set(map(int, learned.rows))  # type: ignore[arg-type]
        assert not rows & never
        assert len(rows | never) == 600
        trained.clear()


def test_enough_images_stay_held_back_to_calibrate_with() -> None:
    """Half of a few would be too few to say where the lowest 5 % of scores are."""
    sizes = {}
    for images in (300, 400, 600, 60000):
        found = fitting.HoldoutSplit(0, 0.1).divide(Part(torch.zeros(images, 1), torch.arange(images) % 4))
        assert found.reserved is not None
        sizes[images] = len(found.judging), len(found.final), len(found.reserved)
    assert sizes == {300: (28, 272, 28), 400: (40, 380, 20), 600: (60, 572, 28), 60000: (500, 59752, 248)}


def test_a_profile_is_made_with_images_that_were_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds of `unknown=True` that are fitted on learned images refuse too many new ones."""
    trained, profiled = _watched(monkeypatch), []
    original = ProfileFitter.fit

    def watched(self: ProfileFitter, tasks: Any) -> Any:
        profiled.extend(tasks)
        return original(self, tasks)

    monkeypatch.setattr(ProfileFitter, "fit", watched)
    for augmentation in (None, Augmentation(padding=1)):
        task = _small(0, 3, 600)
        task = replace(task, train=replace(task.train, augmentation=augmentation))
        SupSup(small_network(), recipe=AutoRecipe(rounds=1), device="cpu").learn(task)
        learned = {int(row) for job in trained for row in job.task.train.rows}  # type: ignore[union-attr]
        assert profiled[-1].judge is not None
        assert len(profiled[-1].judge) >= 20
        assert not learned & {int(row) for row in profiled[-1].judge.rows}
        trained.clear()


@pytest.mark.parametrize("net", [small_network, lambda: nets.FullyConnected((64, 20, 5))])
def test_a_recipe_says_how_far_crops_reach(net: Callable[[], nn.Module]) -> None:
    """The mask is that of data which say so themselves."""
    task, recipe = _small(0, 3), Recipe("adam", 0.1, 20, 16, score_bound=1.0)
    masks = []
    for padding, crops in ((4, None), (4, 0.5), (2, None), (2, 1.0)):
        model = SupSup(net(), recipe=replace(recipe, crops=crops), device="cpu")
        varied = replace(task, train=replace(task.train, augmentation=Augmentation(padding=padding, flip=True)))
        model.learn(varied)
        masks.append(torch.cat([mask.flatten() for mask in model.mask(task.name).values()]))
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(masks[1], masks[2])
    assert torch.equal(masks[2], masks[3])


def test_what_was_chosen_is_told_and_saved(tmp_path: Path) -> None:
    model = SupSup(small_network(), device="cpu")
    model.learn(_small(0, 3))
    chosen = model.recipe_of("small-0")
    assert isinstance(chosen, Recipe)
    model.recipe = Recipe(steps=3)
    model.learn(_small(1, 3))
    assert model.recipe_of("small-1") == Recipe(steps=3)
    model.recipe = AutoRecipe(rounds=2)
    model.save(tmp_path / "m")
    again = supsup.load(tmp_path / "m", small_network(), device="cpu")
    assert (again.recipe, again.recipe_of("small-0"), again.recipe_of("small-1")) == (
        AutoRecipe(rounds=2),
        chosen,
        AutoRecipe(rounds=2),
    )


def test_a_chosen_recipe_that_is_none_is_refused(tmp_path: Path) -> None:
    """A file may say anything; what it says is looked at before the model answers."""
    model = SupSup(small_network(), device="cpu")
    model.learn(_small(0, 3))
    for number, wrong in enumerate(({"steps": -1}, {"unknown": 1}, {"steps": 10**12}, {"optimiser": ["a", {}]})):
        state_of(model).tasks["small-0"].info = TaskInfo(recipe=wrong)  # type: ignore[arg-type]
        model.save(tmp_path / f"{number}")
        with pytest.raises(SupSupError):
            supsup.load(tmp_path / f"{number}", small_network(), device="cpu")


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"rounds": 2.5}, {"held_back": 1.0}, {"held_back": -0.1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SupSupError, match="AutoRecipe"):
        AutoRecipe(**wrong)  # type: ignore[arg-type]


def test_what_needs_a_recipe_says_so(stream: Stream) -> None:
    """Tasks that nobody announces have no size: they are trained as in the paper."""
    model = SupSup(nets.FullyConnected((784, 20, 10)), device="cpu")
    assert (model.recipe, model.recipe.stepwise) == (AutoRecipe(), MNIST)
    model.recipe = Recipe(steps=7)
    assert model.recipe.stepwise == Recipe(steps=7)
    with pytest.raises(SupSupError, match=r"a Recipe or an? AutoRecipe"):
        model.recipe = None  # type: ignore[assignment]
    models = [SupSup(nets.FullyConnected((784, 20, 10)), device="cpu") for _ in range(2)]
    with pytest.raises(SupSupError, match="need a recipe each"):
        learn_with_models(models, stream[0])


def test_on_a_gpu_as_many_tasks_go_together_as_their_scores_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,500 and 4 GiB at most, and an eighth of what is free; one at least."""

    for free, size, expected in (
        (10**12, 1, 1048),
        (8 * 4_096_000 * 10, 1, 10),
        (8 * 4_096_000 * 10 - 1, 1, 9),
        (0, 1, 1),
        (10**12, 1000, 2500),
    ):
        monkeypatch.setattr(fitting, "free_memory", lambda device, free=free: free)
        shapes = {"a": torch.Size([1000 // size, 1000]), "b": torch.Size([24, 1000 // size])}  # 4,096,000 bytes for 1
        net = SimpleNamespace(device=torch.device("cuda"), shapes=shapes)
        assert fitting._tasks_at_once(net) == expected  # type: ignore[arg-type]


def test_rounds_have_a_limit() -> None:
    assert AutoRecipe() == AutoRecipe(rounds=4, held_back=0.1, self_labels=None)
    assert (AutoRecipe(rounds=10**6).rounds, AutoRecipe(rounds=1, held_back=0).held_back) == (10**6, 0)
    with pytest.raises(SupSupError, match="rounds"):
        AutoRecipe(rounds=10**6 + 1)


def test_a_round_is_adam_from_its_rate_down_to_nothing() -> None:
    """0.1 beside scores within ±1; 3e-4 beside scores of 0.005 where weights are trained, and kept at first."""
    assert fitting.first_round(60000) == Recipe("adam", 0.1, 500, 128, schedule="cosine", score_bound=1.0)
    assert fitting.first_round(60000, pretrained=True) == Recipe(
        "adam", 3e-4, 500, 128, schedule="cosine", score_bound=0.005, start="kept"
    )
    rotated = fitting.first_round(300, self_labels="rotations")
    assert rotated == replace(fitting.first_round(1200), self_labels="rotations")
    assert fitting._DECAY == 3e-4
    sizes = {n: (fitting.first_round(n).batch_size, fitting.first_round(n).steps) for n in (511, 512, 1023, 1024, 2048)}
    assert sizes == {511: (16, 300), 512: (32, 150), 1023: (32, 300), 1024: (64, 150), 2048: (128, 150)}


def test_images_that_judge_are_answered_as_they_will_be() -> None:
    """In one view, or in four where the task is learned in rotations: else the wrong round would be kept."""
    net, task = FrozenNet(nets.FullyConnected((64, 20, 12)), 0, CPU), _small(0, 3, 400)
    scores = initial_scores(0, "t", net.shapes)
    weights, counts = net.masked({name: values >= 0 for name, values in scores.items()}), []
    labels: tuple[SelfLabels | None, ...] = (None, "rotations")
    for self_labels in labels:
        fit = fitting._Fit.begin(net, task, fitting.HoldoutSplit(0, 0.5), AutoRecipe(self_labels=self_labels))
        fit.scores = scores
        x, y = fit.images.judging.tensors()
        run = partial(net.run, weights=weights)
        outputs = run(x) if self_labels is None else mean_over_rotations(run, 3, x)
        counts.append(int((outputs[:, :3].argmax(1) == y).sum()))
        assert fit._right(net, {}) == counts[-1]
    assert counts[0] != counts[1]
