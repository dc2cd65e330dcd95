"""The order of batches: full epochs, and the same for a task whatever else is learned."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup.training.batches import batch_positions


@given(st.integers(0, 100), st.integers(1, 40), st.integers(1, 50), st.integers(1, 12))
def test_every_image_comes_once_an_epoch_and_batches_are_full(seed: int, images: int, size: int, steps: int) -> None:
    batches = list(batch_positions(seed, "task", images, size, steps))
    assert [len(batch) for batch in batches] == [size] * steps
    drawn = torch.cat(batches)
    for start in range(0, len(drawn) - images + 1, images):
        assert torch.equal(drawn[start : start + images].sort().values, torch.arange(images))


def test_the_order_belongs_to_the_task_and_the_seed() -> None:
    first = next(batch_positions(0, "a", 1000, 100, 1))
    assert torch.equal(first, next(batch_positions(0, "a", 1000, 100, 5)))
    assert not torch.equal(first, next(batch_positions(0, "b", 1000, 100, 1)))
    assert not torch.equal(first, next(batch_positions(1, "a", 1000, 100, 1)))
