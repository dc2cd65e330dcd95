"""The commands on model files, run as a user would."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner, Result

import supsup
from supsup import HopSupSup, Recipe, SupSup, SupSupError, nets
from supsup.cli import app
from supsup.data.task import TaskInfo
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of
from supsup.serve.service import ModelService


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture
def file(learned: SupSup, tmp_path: Path) -> Path:
    path = tmp_path / "model.supsup"
    learned.save(path)
    with supsup.load(path, in_place=True) as model:
        model.notes["data"] = "digits"
    return path


def masks(path: Path) -> dict[str, bytes]:
    model = supsup.load(path)
    return {name: state_of(model).bank.packed(i).cpu().numpy().tobytes() for i, name in enumerate(model.tasks)}


def test_tasks_lists_them(file: Path) -> None:
    listed = run("tasks", file)
    assert listed.exit_code == 0
    for number in range(4):
        assert f"permutation-{number}" in listed.stdout
    assert "bits/weight" in listed.stdout
    stored = [int(number.replace(",", "")) for number in re.findall(r"\b[3-8]\d,\d{3}\b", listed.stdout)]
    assert len(stored) == 4
    assert all(33_775 <= number < 90_000 for number in stored), (
        "(784·300 + 300·100 + 100·50) / 8, what a rescue needs, and what the task is found by"
    )


def test_info_says_what_it_is(file: Path) -> None:
    said = run("info", file).stdout
    for part in ("lenet_300_100(outputs=50, inputs=784)", "270,200 in 3 tensors, seed 0", "steps 80", "data: digits"):
        assert part in said


def test_info_says_what_was_chosen_for_tasks(tmp_path: Path) -> None:
    """Where the model chooses recipes by itself."""
    model = SupSup(nets.FullyConnected((5, 4)), device="cpu")
    packed = torch.zeros(3, 3, dtype=torch.uint8)
    steps = {"a": 100, "b": 200, "c": 100}
    chosen = {name: TaskInfo(recipe=Recipe("adam", 0.1, count, 16).differing) for name, count in steps.items()}
    state_of(model).add([LearnedTask(name, 2, info=info) for name, info in chosen.items()], packed, {}, (5,))
    model.save(tmp_path / "m.supsup")
    said = " ".join(run("info", tmp_path / "m.supsup").stdout.replace("│", " ").split())
    assert "rounds 4" in said
    assert "optimiser adam learning_rate 0.1 steps 100 batch_size 16 (2 ×)" in said


def test_a_hopfield_memory_is_told_too(hop: tuple[HopSupSup, object, object], tmp_path: Path) -> None:
    path = tmp_path / "hop.supsup"
    hop[0].save(path)
    assert "classes-6-7" in run("tasks", path).stdout
    said = run("info", path).stdout
    for part in ("HopSupSup", "HopMLP(widths=[784, 512, 512, 10])", "rule storkey", "procedure best-of", "format 2"):
        assert part in said
    assert "2 tasks, all intact" in run("verify", path).stdout
    with pytest.raises(SupSupError, match="share one memory"):
        CliRunner().invoke(app, ["forget", str(path), "classes-0-1"], catch_exceptions=False)


def test_verify_and_repair(file: Path) -> None:
    assert run("verify", file).exit_code == 0
    with ModelFile(file) as model:
        lost = list(model.records())[1]
    content = bytearray(file.read_bytes())
    content[content.index(lost.mask[2000:2030])] ^= 1
    file.write_bytes(content)
    verified = run("verify", file)
    assert verified.exit_code == 1
    assert "'permutation-1' is damaged" in verified.stdout
    repaired = run("repair", file)
    assert repaired.exit_code == 1
    assert "3 tasks rescued" in repaired.stdout
    assert "lost permutation-1" in repaired.stdout
    assert list(masks(file.with_name("model-repaired.supsup"))) == ["permutation-0", "permutation-2", "permutation-3"]


def test_forget_and_compact(file: Path) -> None:
    before, size = masks(file), file.stat().st_size
    assert "2 tasks left" in run("forget", "--yes", file, "permutation-0", "permutation-2").stdout
    assert file.stat().st_size == size
    assert run("forget", "--yes", "--compact", file, "permutation-1").exit_code == 0
    assert file.stat().st_size < size / 3
    assert masks(file) == {"permutation-3": before["permutation-3"]}


def test_exported_networks_give_the_models_own_outputs(file: Path, images: Tensor, tmp_path: Path) -> None:
    model = supsup.load(file)
    expected = state_of(model).net.run(images, state_of(model).net.masked(model.mask("permutation-1")))
    assert run("export", file, "permutation-1", tmp_path / "one.safetensors").exit_code == 0
    plain = nets.lenet_300_100(outputs=50)
    plain.load_state_dict(load_file(tmp_path / "one.safetensors"))
    assert torch.equal(plain(images), expected)
    onnxruntime = pytest.importorskip("onnxruntime")
    assert run("export", file, "permutation-1", tmp_path / "one.onnx").exit_code == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "one.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    probabilities = model.predict(images, "permutation-1").probabilities
    assert torch.allclose(torch.from_numpy(found)[:, :10].softmax(1), probabilities, atol=1e-5)


def test_mistakes(file: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["tasks", tmp_path / "nowhere"], "there is no file"),
        (["info", tmp_path], "is a folder"),
        (["verify", __file__], "not a supsup model file"),
        (["forget", file, "nobody"], "no task 'nobody'"),
        (["export", file, "nobody", tmp_path / "x.onnx"], "unknown task 'nobody'"),
        (["export", file, "permutation-0", tmp_path / "x.pt"], "safetensors or"),
        (["repair", file, file], "exists"),
    ):
        done = run(*arguments)
        assert done.exit_code == 1, arguments
        said = str(done.exception) if isinstance(done.exception, SupSupError) else done.stdout
        assert message in said
    code = "from supsup.cli import main; main()"
    as_typed = subprocess.run([sys.executable, "-c", code, "tasks", "nowhere"], capture_output=True, text=True)
    assert as_typed.returncode == 2
    assert as_typed.stderr.startswith("error there is no file")


def test_tasks_and_info_show_what_belongs_to_a_task(tmp_path: Path) -> None:
    model = SupSup(nets.FullyConnected((3, 8, 6)), recipe=Recipe(steps=1), device="cpu")
    model.learn((torch.rand(6, 3), ["cat", "dog", "eel"] * 2), task="pets")
    model.save(tmp_path / "m.supsup")
    listed = run("tasks", str(tmp_path / "m.supsup"))
    assert "cat, dog, eel" in listed.output.replace("\n", " ")
    assert "3 means" in listed.output.replace("\n", " ")
    assert "1 with class names, 1 from raw inputs" in run("info", str(tmp_path / "m.supsup")).output


def test_the_same_as_json(file: Path) -> None:
    listed = json.loads(run("tasks", file, "--json").stdout)
    assert [task["task"] for task in listed] == [f"permutation-{number}" for number in range(4)]
    assert all(0.3 < task["density"] < 0.7 for task in listed)
    assert sum(task["bytes"] for task in listed) < file.stat().st_size
    replaced = json.loads(run("info", file, "--json").stdout)
    assert (replaced["tasks"], replaced["weights"], replaced["seed"]) == (4, 270_200, 0)
    assert replaced["recipe"]["steps"] == 80
    assert replaced["notes"] == {"data": "digits"}
    assert replaced["masks"] >= replaced["entropy_bound"] * 0.99
    assert replaced["file_bytes"] == file.stat().st_size
    sound = run("verify", file, "--json")
    assert sound.exit_code == 0
    assert json.loads(sound.stdout) == {
        "file": str(file), "clean": True, "intact": 4, "structure": [], "damaged": {},
    }  # fmt: skip
    with ModelFile(file) as model:
        lost = next(iter(model.records()))
    content = bytearray(file.read_bytes())
    content[content.index(lost.mask[2000:2030])] ^= 1
    file.write_bytes(content)
    damaged = run("verify", file, "--json")
    assert damaged.exit_code == 1
    assert list(json.loads(damaged.stdout)["damaged"]) == ["permutation-0"]


def test_tasks_in_rotations_are_told(tmp_path: Path) -> None:
    """`tasks` says that a task was learned turned, and still counts its own classes."""
    recipe = Recipe(steps=1, batch_size=4, self_labels="rotations")
    model = SupSup(nets.FullyConnected((16, 8, 8)), recipe=recipe, device="cpu")
    model.learn((torch.rand(8, 1, 4, 4), ["left", "right"] * 4), task="turned")
    model.save(tmp_path / "model.supsup")
    listed = run("tasks", tmp_path / "model.supsup").output
    assert re.search(r"turned\W+2\W.*left, right; .*in four rotations", listed)


def test_a_new_field_of_a_task_is_shown_by_the_command_and_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TaskInfo.describe` is the one place that says what users see of a task's metadata."""
    describe = TaskInfo.describe
    monkeypatch.setattr(TaskInfo, "describe", lambda info: describe(info) | {"source": "camera 7"})
    model = SupSup(nets.FullyConnected((4, 3)), recipe=Recipe(steps=1, batch_size=2), device="cpu")
    model.learn((torch.rand(4, 4), torch.tensor([0, 1, 2, 0])), task="a")
    model.save(tmp_path / "m.supsup")
    (listed,) = json.loads(run("tasks", str(tmp_path / "m.supsup"), "--json").stdout)
    assert listed["source"] == "camera 7"
    assert ModelService.open(tmp_path / "m.supsup", device="cpu").details("a")["source"] == "camera 7"
