"""One task as an ordinary network, for those without supsup."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.data import Stream
from supsup.model.state import state_of


def outputs(model: SupSup, x: Tensor, task: str) -> Tensor:
    return state_of(model).net.run(x, state_of(model).net.masked(model.mask(task)))


def test_safetensors_loads_into_a_plain_module(learned: SupSup, images: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    supsup.export(learned, "permutation-1", path)
    plain = nets.lenet_300_100(outputs=50)
    plain.load_state_dict(load_file(path))
    assert torch.equal(plain(images), outputs(learned, images, "permutation-1"))
    with safe_open(path, "pt") as file:
        assert file.metadata()["task"] == "permutation-1"
        assert file.metadata()["classes"] == "10"


def test_onnx_runs_without_torch(learned: SupSup, images: Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "one.onnx"
    supsup.export(learned, "permutation-2", path)
    assert [file.name for file in tmp_path.iterdir()] == ["one.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (images[:1], images):
        (found,) = session.run(None, {"images": batch.numpy()})
        probabilities = learned.predict(batch, "permutation-2").probabilities
        assert torch.allclose(torch.from_numpy(found)[:, :10].softmax(1), probabilities, atol=1e-5)


def test_convolutions_and_buffers(stream: Stream, images: Tensor, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    net = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(576, 20))
    model = SupSup(net, recipe=Recipe(steps=2), device="cpu")
    model.learn(stream[0])
    supsup.export(model, "permutation-0", tmp_path / "a.safetensors")
    supsup.export(model, "permutation-0", tmp_path / "a.onnx")
    net.load_state_dict(load_file(tmp_path / "a.safetensors"))
    assert torch.equal(net.eval()(images), outputs(model, images, "permutation-0"))


def test_mistakes(learned: SupSup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        ("permutation-0", "net.pt", r"\.safetensors or \.onnx"),
        ("nobody", "net.onnx", "unknown task 'nobody'"),
        ("nobody", "net.safetensors", "unknown task 'nobody'"),
        ("permutation-0", "nowhere/net.onnx", "no folder"),
    ]
    for task, name, message in cases:
        with pytest.raises(SupSupError, match=message):
            supsup.export(learned, task, tmp_path / name)
    monkeypatch.setattr("supsup.model.export._NEEDED_FOR_ONNX", ("nothing_of_that_name",))
    with pytest.raises(SupSupError, match=r"pip install 'supsup\[onnx\]'"):
        supsup.export(learned, "permutation-0", tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_belongs_to_the_task_goes_along(tmp_path: Path) -> None:
    """Who has the export alone needs the number of classes, their names and the normalisation."""
    model = SupSup(nets.FullyConnected((3, 8, 6)), recipe=Recipe(steps=2), device="cpu")
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)) * 50 + 7
    model.learn((x, ["no", "yes", "maybe"] * 4), task="t")
    supsup.export(model, "t", tmp_path / "t.safetensors")
    with safe_open(tmp_path / "t.safetensors", "pt") as file:
        about = file.metadata()
    assert (about["classes"], json.loads(about["names"])) == ("3", ["maybe", "no", "yes"])
    numbers = json.loads(about["inputs"])
    plain = nets.FullyConnected((3, 8, 6))
    plain.load_state_dict(load_file(tmp_path / "t.safetensors"))
    seen = x * torch.tensor(numbers["gain"]) + torch.tensor(numbers["offset"])
    assert torch.equal(plain(seen), outputs(model, seen, "t"))
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    supsup.export(model, "t", tmp_path / "t.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "t.onnx"), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": seen.numpy()})
    expected = model.predict(x, task="t").probabilities  # of vectors: by network and profile
    torch.testing.assert_close(torch.from_numpy(logits).softmax(1), expected, rtol=1e-4, atol=1e-4)
    found = {each.key: each.value for each in onnx.load(tmp_path / "t.onnx").metadata_props}
    assert found == {key: value for key, value in about.items() if key != "architecture"}
