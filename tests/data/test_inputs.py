"""What becomes of raw inputs: a normalisation that is lost or applied twice would spoil every answer without a sign."""

from dataclasses import replace

import pytest
import torch

from supsup import SupSupError, data
from supsup.data.inputs import IDENTITY_KEY, Inputs, inputs_key, is_compatible, measure_normalisation
from supsup.data.user_data import with_model_normalisation


def normal(mean: list[float], std: list[float], rows: int = 400) -> torch.Tensor:
    noise = torch.randn(rows, len(mean), generator=torch.Generator().manual_seed(0))
    return noise * torch.tensor(std) + torch.tensor(mean)


def test_tables_have_a_mean_for_each_feature_and_pixels_one() -> None:
    table = normal([0, 1e4, -5], [1e-3, 300, 2])
    seen = Inputs(*measure_normalisation(table)).preprocess(table)
    assert seen.mean(0).abs().max() < 1e-4
    assert (seen.std(0) - 1).abs().max() < 0.01
    pixels = torch.randint(0, 256, (40, 50), dtype=torch.uint8)
    assert measure_normalisation(pixels)[0].shape == ()
    assert measure_normalisation(torch.rand(4, 3, 8, 8))[0].shape == (3,)
    assert measure_normalisation(torch.rand(4, 2, 100))[0].shape == (2,)
    assert measure_normalisation(torch.rand(4, 28, 28))[0].shape == ()
    for shape, channels in {(5,): 1, (3, 100): 3, (28, 28): 1, (100, 3): 1, (3, 8, 8): 3}.items():
        pixels = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
        assert measure_normalisation(pixels)[0].numel() == channels


def test_a_rare_value_is_not_blown_up_and_a_constant_only_shifted() -> None:
    table = torch.zeros(2000, 2)
    table[0, 0], table[:, 1] = 1.0, 7.0
    seen = Inputs(*measure_normalisation(table)).preprocess(table)
    assert seen[:, 0].abs().max() <= 16
    assert torch.equal(seen[:, 1], torch.zeros(2000))


def test_a_part_shows_what_the_inputs_say() -> None:
    """Training sees the part, questions go through the inputs: the same bits."""
    for images in (normal([5, 100], [1, 30]), torch.randint(0, 256, (400, 3, 4, 4), dtype=torch.uint8)):
        task = data.task((images, torch.arange(400) % 2), "t")
        assert task.inputs is not None
        raw = task.raw_test(torch.arange(400))
        assert torch.equal(task.train.tensors()[0], task.inputs.preprocess(raw))
        assert torch.equal(task.inputs.preprocess(raw[None], leading=2)[0], task.inputs.preprocess(raw))


def test_a_normalisation_suits_data_of_its_kind() -> None:
    own = Inputs(*measure_normalisation(normal([10, 200], [2, 50])))
    like = Inputs(*measure_normalisation(normal([12, 180], [3, 40])))
    swapped = Inputs(*measure_normalisation(normal([200, 10], [50, 2])))
    assert is_compatible(own, like)
    assert is_compatible(like, own)
    assert not is_compatible(swapped, own)
    assert not is_compatible(own, swapped)
    assert not is_compatible(own, None)
    assert is_compatible(Inputs(*measure_normalisation(normal([0.2, 0], [1, 1]))), None)
    assert is_compatible(Inputs(tokens=True), Inputs(tokens=True))
    assert not is_compatible(Inputs(tokens=True), own)
    assert inputs_key(None) == inputs_key(Inputs(channels_last=True)) == IDENTITY_KEY


def test_a_task_takes_the_model_s_normalisation_unless_told() -> None:
    y = torch.arange(400) % 2
    first = data.task((normal([10, 200], [2, 50]), y), "first")
    second = data.task((normal([12, 180], [3, 40]), y), "second")
    replaced = data.task((normal([12, 180], [3, 40]), y), "told", normalise="own")
    bare = data.task((normal([12, 180], [3, 40]), y), "bare", normalise=False)
    assert first.inputs is not None
    taken = with_model_normalisation(second, first.inputs)
    assert taken.inputs is not None
    assert taken.inputs.key == first.inputs.key
    assert torch.equal(taken.train.gain, first.train.gain)
    assert torch.equal(taken.test.offset, first.train.offset)
    assert with_model_normalisation(replaced, first.inputs) is replaced
    assert with_model_normalisation(bare, first.inputs) is bare
    assert torch.equal(bare.train.tensors()[0], bare.train.images)
    assert with_model_normalisation(replaced, first.inputs, always=True).train.gain is first.inputs.gain


def test_wrong_ones() -> None:
    with pytest.raises(SupSupError, match="finite float32"):
        Inputs(torch.tensor(float("nan")))
    with pytest.raises(SupSupError, match="same shape"):
        Inputs(torch.ones(3), torch.ones(2))
    with pytest.raises(SupSupError, match="True or False"):
        Inputs(channels_last="yes")  # type: ignore[arg-type]
    task = data.task((normal([1, 2], [1, 1]), torch.arange(400) % 2), "t")
    with pytest.raises(SupSupError, match="features are rearranged"):
        replace(task.train, pixels=torch.tensor([1, 0]))
    with pytest.raises(SupSupError, match="2 names for 3 classes"):
        replace(task, classes=3, names=("a", "b"))
    with pytest.raises(SupSupError, match="no class of the training data"):
        data.task((torch.rand(4, 3), [0, 1, 0, 1]), "t", test=(torch.rand(1, 3), [5]))
    with pytest.raises(SupSupError, match="tokens are whole numbers"):
        data.task((torch.rand(4, 3), [0, 1, 0, 1]), "t", tokens=True)
