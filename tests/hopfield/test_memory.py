"""The memory: if these fail, stored masks are not what comes back, or settling does not lead downhill."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from supsup import HopSupSup, SupSupError, nets
from supsup.hopfield.memory import (
    RULES,
    energy,
    lost,
    overfull,
    overlap,
    running_mean,
    settle,
    storkey,
    storkey_capacity,
    to_bipolar,
)
from supsup.masks import philox


def patterns(seed: int, count: int, units: int) -> Tensor:
    return to_bipolar(philox.uniform(seed, [f"pattern/{i}" for i in range(count)], units, 1.0)).double()


def memory(rule: str, stored: Tensor) -> Tensor:
    psi = torch.zeros(stored.shape[1], stored.shape[1], dtype=stored.dtype)
    for z in stored:
        psi = RULES[rule](psi, z)
    return psi


def flipped(stored: Tensor, share: float) -> Tensor:
    damaged = stored.clone()
    for row, order in zip(damaged, philox.permutations(7, [f"flip/{i}" for i in range(len(stored))], stored.shape[1])):
        row[order[: round(share * stored.shape[1])]] *= -1
    return damaged


def textbook(rule: str, stored: Tensor) -> Tensor:
    """Element by element, as the formulas are printed."""
    d = stored.shape[1]
    psi = [[0.0] * d for _ in range(d)]
    for z in stored.tolist():
        field = [sum(psi[u][w] * z[w] for w in range(d)) for u in range(d)]
        for u in range(d):
            for v in range(d):
                change = z[u] * z[v] - (u == v)
                if rule == "storkey":
                    change -= z[u] * field[v] + field[u] * z[v]
                psi[u][v] += change / d
    return torch.tensor(psi, dtype=torch.float64)


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), units=st.integers(1, 14))
@settings(max_examples=25)
def test_the_update_is_the_textbooks(rule: str, seed: int, count: int, units: int) -> None:
    stored = patterns(seed, count, units)
    psi = memory(rule, stored)
    torch.testing.assert_close(psi, textbook(rule, stored))
    assert torch.equal(psi, psi.T)
    if rule == "hebb" or count == 1:
        assert torch.equal(psi.diagonal().abs() < 1e-12, torch.ones(units, dtype=torch.bool))


@given(seed=st.integers(0, 10**6), rule=st.sampled_from(sorted(RULES)))
@settings(max_examples=25)
def test_stored_patterns_are_fixed_points_below_capacity(seed: int, rule: str) -> None:
    stored = patterns(seed, 5, 256)
    assert torch.equal(settle(memory(rule, stored), stored), stored)


@given(seed=st.integers(0, 10**6), rule=st.sampled_from(sorted(RULES)))
@settings(max_examples=15)
def test_patterns_come_back_from_flipped_bits_below_capacity(seed: int, rule: str) -> None:
    stored = patterns(seed, 5, 256)
    assert torch.equal(settle(memory(rule, stored), flipped(stored, 0.2)), stored)


@given(seed=st.integers(0, 10**6), rule=st.sampled_from(sorted(RULES)), count=st.integers(1, 30))
@settings(max_examples=20)
def test_no_update_raises_the_energy_and_the_end_is_a_minimum(seed: int, rule: str, count: int) -> None:
    """Far past capacity too, where there is nothing to be found."""
    psi = memory(rule, patterns(seed, count, 40))
    z = patterns(seed + 1, 1, 40)
    levels = [energy(psi, z)]
    for unit in list(range(40)) * 3:
        others = z[0] @ psi[:, unit] - psi[unit, unit] * z[0, unit]
        if others * z[0, unit] < 0:
            z[0, unit] *= -1
        levels.append(energy(psi, z))
    steps = torch.cat(levels).diff()
    assert (steps <= 1e-9).all()
    start = patterns(seed + 1, 3, 40)
    end = settle(psi, start)
    assert (energy(psi, end) <= energy(psi, start) + 1e-9).all()
    assert not ((end @ psi - psi.diagonal() * end) * end < 0).any()


def test_one_unit_after_the_other_as_settle_has_it() -> None:
    """The field kept up to date on the way is the field of the string as it is."""
    psi, z = memory("storkey", patterns(3, 12, 60)), patterns(4, 1, 60)
    by_hand = z[0].clone()

    def unstable() -> list[int]:
        found: list[int] = ((by_hand @ psi - psi.diagonal() * by_hand) * by_hand < 0).nonzero().flatten().tolist()
        return found

    while unstable():
        for unit in unstable():
            others = by_hand @ psi[:, unit] - psi[unit, unit] * by_hand[unit]
            if others * by_hand[unit] < 0:
                by_hand[unit] *= -1
    assert torch.equal(settle(psi, z)[0], by_hand)


def test_memories_side_by_side_do_not_touch_each_other() -> None:
    one, two = patterns(0, 4, 64), patterns(1, 4, 64)
    both = torch.zeros(2, 64, 64, dtype=torch.float64)
    for pair in zip(one, two):
        both = storkey(both, torch.stack(pair))
    torch.testing.assert_close(both, torch.stack([memory("storkey", one), memory("storkey", two)]))
    damaged = torch.stack([flipped(one, 0.2), flipped(two, 0.2)])
    assert torch.equal(settle(both, damaged), torch.stack([one, two]))
    assert energy(both, damaged).shape == (2, 4)


def test_storkey_holds_more_than_hebb() -> None:
    stored = patterns(0, 24, 128)
    kept = {rule: (settle(memory(rule, stored), stored) == stored).all(-1).sum() for rule in RULES}
    assert kept["storkey"] > kept["hebb"]


def test_the_running_mean_is_the_mean() -> None:
    stored = patterns(0, 7, 20)
    mean = torch.zeros(20, dtype=torch.float64)
    for count, z in enumerate(stored, 1):
        mean = running_mean(mean, z, count)
    torch.testing.assert_close(mean, stored.mean(0))


def test_a_pattern_is_lost_once_too_many_are_stored() -> None:
    few, many = patterns(0, 4, 128), patterns(0, 60, 128)
    assert lost(memory("hebb", few), few[-1]) == 0
    assert lost(memory("hebb", many), many[-1]) > 0.05


def test_the_overlap_of_all_pairs_is_known_from_the_mean() -> None:
    stored = torch.cat([patterns(0, 6, 50), torch.ones(6, 30, dtype=torch.float64)], dim=1)
    pairs = (stored @ stored.T / 80).fill_diagonal_(0).sum().item() / 30
    assert overlap(stored.mean(0), 6) == pytest.approx(pairs)
    for count in (2, 3, 4):
        pairs = (stored[:count] @ stored[:count].T / 80).fill_diagonal_(0).sum().item() / (count * (count - 1))
        assert overlap(stored[:count].mean(0), count) == pytest.approx(pairs)
    assert overlap(stored[0], 1) == 0


@pytest.mark.parametrize(("rule", "room"), [("hebb", 4), ("storkey", 15)])
def test_a_memory_is_full_about_when_old_patterns_are_lost(rule: str, room: int) -> None:
    """Neither long before nor long after: 128 units, up to 60 random patterns."""
    stored = patterns(0, 60, 128)
    psi, mean = torch.zeros(128, 128, dtype=torch.float64), torch.zeros(128, dtype=torch.float64)
    said, gone = 0, 0
    for count, z in enumerate(stored, 1):
        psi, mean = RULES[rule](psi, z), running_mean(mean, z, count)
        said = said or (count if overfull(rule, psi, mean, z, count) else 0)
        back = (settle(psi, flipped(stored[:count], 0.2)) == stored[:count]).all(-1).double().mean()
        gone = gone or (count if back < 0.7 else 0)
    assert room < said <= gone


def test_unknown_rules_are_named() -> None:
    with pytest.raises(SupSupError, match="hebb, storkey"):
        HopSupSup(nets.HopMLP((4, 3, 2)), rule="oja")


@given(seed=st.integers(0, 10**6), count=st.integers(1, 3), units=st.integers(1, 9))
def test_the_energy_is_half_the_sum_over_all_pairs(seed: int, count: int, units: int) -> None:
    """What the energy weighs against the entropy in a recovery: without the ½ the published γ would be another one."""
    stored = patterns(seed, count, units)
    psi = memory("storkey", stored)
    expected = [
        -0.5 * sum(z[u] * psi[u, v].item() * z[v] for u in range(units) for v in range(units)) for z in stored.tolist()
    ]
    assert energy(psi, stored).tolist() == pytest.approx(expected)


def test_the_capacity_falls_with_how_alike_patterns_are() -> None:
    """0.155 d for patterns that have nothing in common; about 10 from an overlap of a quarter on."""
    found = [storkey_capacity(1000, alike) for alike in (0.0, 0.1, 0.15, 0.25, 0.9)]
    assert found == [155, 93, 62, 10, 10]
    assert storkey_capacity(20, 0.5) == 3


def test_what_is_lost_is_the_share_of_units_that_do_not_come_back() -> None:
    """An empty memory pulls all units to +1."""
    z = patterns(0, 1, 64)[0]
    assert lost(torch.zeros(64, 64, dtype=torch.float64), z) == pytest.approx(float((z < 0).double().mean()))
    assert lost(memory("hebb", z[None]), z, flipped=0.3) == 0
    assert lost(memory("hebb", z[None]), z, flipped=0.9) > 0.9, "flipped beyond half, the opposite comes back"
    assert overfull("hebb", torch.zeros(64, 64, dtype=torch.float64), z, z, 1)
    assert not overfull("hebb", memory("hebb", z[None]), z, z, 10**6), "there only what is lost tells"
    assert overfull("storkey", memory("storkey", z[None]), z * 0, z, 100)


def test_a_share_of_the_units_is_flipped_and_none_more() -> None:
    """Units in pairs that take each other's sign: after twenty updates each has its own again, right or flipped."""
    z = patterns(1, 1, 500)[0]
    psi = torch.zeros(500, 500, dtype=torch.float64)
    for unit in range(500):
        psi[unit, unit ^ 1] = 1.0
    labels = [f"lost/{draw}" for draw in range(8)]
    for share in (0.2, 0.1):
        flips = philox.uniform(0, labels, 500, 1.0) < 2 * share - 1
        assert float(flips.float().mean()) == pytest.approx(share, abs=0.02)
        assert lost(psi, z, share) == pytest.approx(float(flips.float().mean()))
    assert lost(psi, z) == lost(psi, z, 0.2, 8)
