"""Contexts are orthogonal, so nothing is lost by a turn, and turning inputs is turning weights back."""

import pytest
import torch

from supsup_paper.baselines.psp import Kind, context, folded, turn

CPU = torch.device("cpu")
KINDS: list[Kind] = ["rotation", "complex", "binary"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [6, 7])
def test_a_turn_keeps_lengths_and_can_be_undone(kind: Kind, width: int) -> None:
    by = context(kind, 0, "a", width, CPU)
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    rotated = turn(kind, by, rows)
    assert torch.allclose(rotated.norm(dim=1), rows.norm(dim=1), atol=1e-5)
    assert not torch.allclose(rotated, rows, atol=1e-2)
    assert torch.allclose(turn(kind, by, rotated, back=True), rows, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_folded_weights_give_what_turned_inputs_give(kind: Kind) -> None:
    by = context(kind, 0, "a", 6, CPU)
    rows, weight = torch.randn(5, 6), torch.randn(4, 6)
    assert torch.allclose(rows @ folded(kind, by, weight).T, turn(kind, by, rows) @ weight.T, atol=1e-5)
    images, kernel = torch.randn(2, 6, 5, 5), torch.randn(4, 6, 3, 3)
    rotated = turn(kind, by, images.movedim(1, -1)).movedim(-1, 1)
    expected = torch.conv2d(rotated, kernel)
    assert torch.allclose(torch.conv2d(images, folded(kind, by, kernel)), expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_contexts_turn_their_own_rows(kind: Kind) -> None:
    contexts = torch.stack([context(kind, 0, label, 6, CPU) for label in "ab"])
    rows = torch.randn(2, 5, 6)
    expected = torch.stack([turn(kind, by, own) for by, own in zip(contexts, rows)])
    assert torch.allclose(turn(kind, contexts, rows), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_come_from_the_seed_and_differ_by_task(kind: Kind) -> None:
    a, again, other = (context(kind, 0, label, 40, CPU) for label in ("a", "a", "b"))
    assert torch.equal(a, again)
    assert not torch.allclose(a, other, atol=0.1)


def test_rotations_prefer_no_direction() -> None:
    """Without the signs of R's diagonal, the first entries of Q would mostly be negative."""
    corners = torch.stack([context("rotation", 0, str(i), 4, CPU).diagonal() for i in range(200)])
    assert float(corners.mean(0).abs().max()) < 0.15
