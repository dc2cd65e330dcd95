"""How many bytes a task leaves beside its mask: small, default and large profiles, and pictures in no order."""

import copy
import math
from pathlib import Path

import pytest
import torch

import supsup
from supsup import Recipe, SupSup, SupSupError, data, nets
from supsup.data import Task
from supsup.file.modelfile import ModelFile
from supsup.model.state import state_of


def learned(size: str, tasks: list[Task], steps: int = 30) -> SupSup:
    recipe = Recipe("adam", 1e-2, steps=steps, batch_size=50)
    model = SupSup(nets.lenet_300_100(10), recipe=recipe, profile_size=size, device="cpu")  # type: ignore[arg-type]
    model.learn_many(tasks, show_progress=False)
    return model


def profile_bytes(model: SupSup) -> list[int]:
    profiles = [task.profile for task in state_of(model).tasks]
    return [sum(value.nbytes for value in profile.tensors().values()) for profile in profiles if profile is not None]


def mask_bytes(model: SupSup) -> float:
    return sum(shape.numel() for shape in state_of(model).net.shapes.values()) / 8


@pytest.fixture(scope="module")
def pairs() -> list[Task]:
    return list(data.split(data.digits(), 5, seed=0))


@pytest.fixture(scope="module")
def models(pairs: list[Task]) -> dict[str, SupSup]:
    return {size: learned(size, pairs) for size in ("small", "default", "large")}


def test_small_is_half_a_mask_and_default_two(models: dict[str, SupSup]) -> None:
    mask = mask_bytes(models["small"])
    assert max(profile_bytes(models["small"])) <= mask / 2
    assert max(profile_bytes(models["default"])) <= 2 * mask
    assert min(profile_bytes(models["default"])) > 2 * max(profile_bytes(models["small"]))
    assert min(profile_bytes(models["large"])) > 2 * max(profile_bytes(models["default"]))


def test_every_size_finds_tasks(models: dict[str, SupSup], pairs: list[Task]) -> None:
    for size, model in models.items():
        right = [name == task.name for task in pairs for name in model.infer_task(task.test.tensors()[0])]
        assert sum(right) / len(right) > 0.9, size


def test_a_file_says_the_size_unless_it_is_the_usual_one(models: dict[str, SupSup], tmp_path: Path) -> None:
    for size, model in models.items():
        path = tmp_path / f"{size}.supsup"
        model.save(path)
        with ModelFile(path) as file:
            assert ("profile_size" in file.header.to_json()) == (size != "default")
        again = supsup.load(path)
        assert state_of(again).net.profile_size == size
        x = torch.rand(20, 1, 28, 28)
        assert again.predict(x).tasks == model.predict(x).tasks


def test_pictures_whose_pixels_are_in_no_order_need_few_directions() -> None:
    """Where pixels are tells permutations apart. A profile that joins the answers of its mask keeps all."""
    tasks = list(data.permuted(data.digits(), tasks=3, seed=0))
    barely = learned("default", tasks)
    assert min(profile_bytes(barely)) > mask_bytes(barely)
    model = learned("default", tasks, steps=300)
    assert max(profile_bytes(model)) <= mask_bytes(model) / 2
    right = [name == task.name for task in tasks for name in model.infer_task(task.test.tensors()[0])]
    assert sum(right) / len(right) > 0.99


def test_a_size_that_is_not_known_is_an_error() -> None:
    with pytest.raises(SupSupError, match="small, default, large"):
        SupSup(nets.lenet_300_100(10), profile_size="huge")  # type: ignore[arg-type]


def test_a_copy_keeps_the_size(models: dict[str, SupSup]) -> None:
    assert state_of(copy.deepcopy(models["small"])).net.profile_size == "small"
    assert math.isclose(sum(profile_bytes(copy.copy(models["small"]))), sum(profile_bytes(models["small"])))
