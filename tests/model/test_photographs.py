"""Networks whose first layers are fixed: images are described once, and only the last layers have masks."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.data import Part
from supsup.inference.profiles.features import extract_features
from supsup.masks.frozen import FrozenNet
from supsup.model.export import export
from supsup.model.state import state_of
from supsup.nets import imagenet
from supsup.nets.architecture import Architecture
from supsup.training import auto_recipe as fitting
from supsup.training import train_mask
from supsup.training.auto_recipe import HoldoutSplit

CPU = torch.device("cpu")
COLOURS = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.9], [0.8, 0.8, 0.1]])


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights in place of the published ones, and few steps."""
    path = tmp_path / "data" / "weights" / imagenet.MOBILENET_V2.file
    path.parent.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(nets.mobilenet_v2(1000).state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(imagenet, "MOBILENET_V2", replace(imagenet.MOBILENET_V2, sha256=digest, package=None))
    monkeypatch.setenv("SUPSUP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for bound in ("_SHORTEST", "_LONGEST"):
        monkeypatch.setattr(fitting, bound, 2)


@pytest.fixture
def net(weights: None) -> nets.ImageNetwork:
    return nets.mobilenet_v2(5, pretrained=True, size=32, masks_from=19)


def colours(first: int, seed: int, count: int = 12) -> tuple[Tensor, Tensor]:
    """Two classes of images, each of one colour with noise."""
    labels = torch.arange(count) % 2
    noise = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    images = COLOURS[first + labels][:, :, None, None] + 0.1 * noise
    return (255 * images.clamp(0, 1)).byte(), labels


@pytest.fixture
def model(net: nets.ImageNetwork) -> SupSup:
    model = SupSup(net, device="cpu")
    for number, name in enumerate(("warm", "cold")):
        model.learn(colours(2 * number, number), task=name, show_progress=False)
    return model


def test_a_description_stands_for_its_image(net: nets.ImageNetwork) -> None:
    """Outputs and features are the same, in training too; fixed layers have no masks and nothing kept for a task."""
    frozen, x = FrozenNet(net, 0, CPU, None), torch.randn(6, 3, 32, 32)
    described = frozen.describe(x)
    assert described.shape == (6, net.described + 160)
    assert frozen.describe(described) is described
    assert torch.allclose(frozen.run(described, frozen.weights), frozen.run(x, frozen.weights), atol=1e-5)
    assert torch.allclose(extract_features(frozen, described), extract_features(frozen, x), atol=1e-5)
    before = {name: value.clone() for name, value in frozen.module.state_dict().items()}
    with frozen.training() as module, torch.no_grad():
        own = [{name: value.clone() for name, value in frozen.statistics.items()} for _ in range(2)]
        outputs = [frozen.run(each, frozen.weights | one, module) for each, one in zip((x, described), own)]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-4)
    after = frozen.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items() if "num_batches" not in name)
    numbers = {int(name.split(".")[1]) for name in (*frozen.weights, *frozen.statistics) if "features" in name}
    assert numbers == {19, 20, 21}


def test_masks_from_descriptions_are_those_from_images(net: nets.ImageNetwork) -> None:
    """Up to rounding, which may turn a score that is about 0."""
    frozen, (images, labels) = FrozenNet(net, 0, CPU, None), colours(0, 0)
    x = images.float() / 255
    recipe = Recipe("adam", 3e-3, steps=4, batch_size=6, score_bound=0.005, start="kept")
    parts = Part(x, labels), Part(frozen.describe(x), labels)
    masks = [train_mask(frozen, "one", part, recipe).mask() for part in parts]
    kept, same = (
        torch.cat([each.flatten().float() for each in found])
        for found in (masks[0].values(), [one == other for one, other in zip(masks[0].values(), masks[1].values())])
    )
    assert 0 < float(kept.mean()) < 1
    assert float(same.mean()) > 0.999


def test_an_image_is_described_once(model: SupSup, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each call, however many masks are tried; each training image once."""
    seen: list[int] = []
    describe = nets.ImageNetwork.describe

    def counted(self: Any, x: Tensor) -> Tensor:
        seen.append(len(x))
        return describe(self, x)

    monkeypatch.setattr(nets.ImageNetwork, "describe", counted)
    x = colours(2, 7)[0]
    found = model.predict(x, unknown=True)
    assert sum(seen) == len(x)
    assert found.probabilities.shape == (12, 2)
    seen.clear()
    for method in ("exhaustive", "features", "one-shot"):
        assert model.infer_task(x, per="batch", method=method) in model.tasks
    assert len(model.infer_batches(x.view(2, 6, 3, 32, 32))) == 2
    assert sum(seen) == 4 * len(x)
    seen.clear()
    model.learn_many([supsup.data.task(colours(1, 5), name) for name in ("a", "b")], show_progress=False)
    assert sum(seen) == 24
    assert model.image_shape == (3, 32, 32)


def test_a_mask_that_says_no_more_is_left_out_and_saved_in_few_bytes(model: SupSup, tmp_path: Path) -> None:
    """Every weight is kept, the profile answers, and the file gives the same answers to the bit."""
    assert all(bool(bits.all()) for bits in model.mask("warm").values())
    profile = state_of(model).tasks["warm"].profile
    assert profile is not None
    assert profile.mask_weight == 0
    x, labels = colours(0, 3)
    assert torch.equal(model.predict(x, task="warm").labels, labels)
    model.save(tmp_path / "m.supsup")
    again = supsup.load(tmp_path / "m.supsup", device="cpu")
    assert torch.equal(again.predict(x).probabilities, model.predict(x).probabilities)
    with supsup.load(tmp_path / "m.supsup", in_place=True, device="cpu") as more:
        more.learn(colours(1, 9), task="more", show_progress=False)
    assert state_of(again).bank.own_statistics(0) == {}
    with supsup.load(tmp_path / "m.supsup", device="cpu") as more:
        assert more.tasks == ["warm", "cold", "more"]


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx"])
def test_tasks_are_exported(model: SupSup, tmp_path: Path, suffix: str) -> None:
    """ONNX gives the answers of `predict`."""
    if suffix == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    export(model, "warm", tmp_path / f"warm{suffix}")
    if suffix == ".onnx":
        x = colours(0, 4)[0]
        inputs = model.task_info("warm").inputs
        assert inputs is not None
        session = onnxruntime.InferenceSession(str(tmp_path / "warm.onnx"))
        (outputs,) = session.run(None, {"images": inputs.preprocess(x).numpy()})
        found = torch.from_numpy(outputs).softmax(-1)
        assert torch.allclose(found, model.predict(x, task="warm").probabilities, atol=1e-4)


def test_a_fifth_of_few_images_is_held_back() -> None:
    """At least one of each class that has two."""
    labels = torch.tensor([0] * 32 + [1] * 4 + [2] * 2 + [3])
    part = Part(torch.zeros(39, 1), labels)
    trained, judging, *_ = HoldoutSplit(0, 0.1, always=True).divide(part)
    assert judging.labels.bincount().tolist() == [6, 1, 1]
    assert len(trained) == 31
    many = Part(torch.zeros(500, 1), torch.arange(500) % 2)
    assert len(HoldoutSplit(0, 0.1, always=True).divide(many).judging) == 50
    assert len(HoldoutSplit(0, 0.0, always=True).divide(part).trained) == 39


def test_what_cannot_be_is_refused(net: nets.ImageNetwork) -> None:
    for wrong, reason in ((18.5, "masks_from"), (21, "is no block"), (1, "is no block"), (99, "masks_from")):
        with pytest.raises(SupSupError, match=reason):
            nets.mobilenet_v2(5, pretrained=True, size=32, masks_from=wrong)  # type: ignore[arg-type]
    for build in (nets.mobilenet_v2, nets.resnet50):
        with pytest.raises(SupSupError, match="pretrained=True"):
            build(5, masks_from=19)
    rotated = SupSup(net, recipe=supsup.AutoRecipe(self_labels="rotations"), device="cpu")
    with pytest.raises(SupSupError, match="rotates"):
        rotated.learn(supsup.data.task(colours(0, 0), "r"), show_progress=False)


def test_files_of_networks_without_fixed_layers_work_as_before(weights: None, tmp_path: Path) -> None:
    """More tasks can be learned into them; what a file says of such a network has no masks_from."""
    built = Architecture("mobilenet_v2", {"outputs": 5, "pretrained": True, "size": 32}).build()
    assert isinstance(built, nets.ImageNetwork)
    assert (built.masks_from, built.described) == (0, 0)
    model = SupSup(built, device="cpu")
    assert "features.0.weight" in state_of(model).net.weights
    model.learn(colours(0, 0), task="first", show_progress=False)
    model.save(tmp_path / "m.supsup")
    with supsup.load(tmp_path / "m.supsup", in_place=True, device="cpu") as again:
        again.learn(colours(2, 1), task="second", show_progress=False)
    assert supsup.load(tmp_path / "m.supsup", device="cpu").tasks == ["first", "second"]
