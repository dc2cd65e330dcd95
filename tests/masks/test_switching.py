"""A network that changes tasks in place gives the answers of the plain path, and masks only when the task changes."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from supsup.masks import frozen as frozen_module
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet, SwitchedNet, SwitchedNets
from supsup.nets import FullyConnected
from supsup.nets.execution import copy_with_tensors

CPU = torch.device("cpu")


def convolutional() -> nn.Module:
    """Sizes of weights that are no multiples of eight, statistics, a bias and an affine normalisation."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4, 5), nn.ReLU()
    )


def random_task(net: FrozenNet, generator: torch.Generator) -> dict[str, Tensor]:
    mask = {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in net.shapes.items()}
    return mask | {name: torch.rand(v.shape, generator=generator) + 0.5 for name, v in net.statistics.items()}


def case(module: nn.Module | None = None, tasks: int = 3) -> tuple[FrozenNet, Bank, SwitchedNet]:
    net = FrozenNet(module or convolutional(), 0, CPU)
    bank, generator = Bank(net.shapes, CPU, net.statistics), torch.Generator().manual_seed(0)
    for _ in range(tasks):
        bank.add(random_task(net, generator))
    return net, bank, SwitchedNet(net)


def plain(net: FrozenNet, bank: Bank, index: int, x: Tensor) -> Tensor:
    return net.run(x, net.masked(bank.subnetwork(index)))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def column(seed: int, size: int, tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """The bytes of one of several masks, frozen weights, and these masked one by one."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(256, (size, tasks), generator=generator, dtype=torch.uint8)[:, seed % tasks]
    frozen = torch.randn(8 * size, generator=generator)
    expected = [
        weight if byte >> bit & 1 else 0.0
        for byte, eight in zip(packed.tolist(), frozen.view(-1, 8).tolist())
        for bit, weight in enumerate(eight)
    ]
    return packed, frozen, torch.tensor(expected)


@given(st.integers(0, 2**31), st.integers(1, 70), st.integers(1, 20))
def test_filling_on_a_cpu(seed: int, size: int, tasks: int) -> None:
    packed, frozen, expected = column(seed, size, tasks)
    for fill in (frozen_module.plain_fill, frozen_module.fill):
        masked = torch.full_like(frozen, torch.nan)
        fill(packed, frozen, masked)
        assert torch.equal(masked, expected)


def test_the_kernel() -> None:
    triton_masks = pytest.importorskip("supsup.kernels.triton_masks", reason="triton is not installed")
    for size, tasks in ((1, 1), (255, 3), (600, 17)):
        packed, frozen, expected = column(5, size, tasks)
        masked = torch.full((8 * size + 8,), torch.nan)
        triton_masks.triton_fill(packed, frozen, masked[: 8 * size])
        assert torch.equal(masked[: 8 * size], expected)
        assert masked[8 * size :].isnan().all()


def test_answers_are_those_of_the_plain_path_whatever_changes(x: Tensor) -> None:
    """An old mask or old statistics left on would give wrong answers without a sign."""
    net, bank, switched = case()
    generator = torch.Generator().manual_seed(2)

    def check() -> None:
        for index in (*range(len(bank)), 0, len(bank) - 1):
            for _ in range(2):
                assert torch.equal(switched.run(bank, index, x), plain(net, bank, index, x))

    check()
    bank.prepare_replace(0, random_task(net, generator))()
    check()
    bank.prepare_replace(len(bank) - 1, random_task(net, generator))()
    check()
    bank.prepare_remove(0)()
    check()
    bank.add(random_task(net, generator))
    check()
    other = bank.subset([1, 0])
    assert torch.equal(switched.run(other, 0, x), plain(net, bank, 1, x))
    check()


def test_only_a_change_of_task_or_masks_costs_a_switch(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    net, bank, switched = case()
    filled: list[None] = []
    fill = frozen_module.fill
    monkeypatch.setattr(frozen_module, "fill", lambda *args: filled.append(fill(*args)))
    for index, switches in ((1, 1), (1, 1), (1, 1), (2, 2), (2, 2), (1, 3)):
        switched.run(bank, index, x)
        assert len(filled) == switches
    bank.prepare_replace(0, random_task(net, torch.Generator()))()
    switched.run(bank, 1, x)
    assert len(filled) == 4


def test_two_networks_on_one_bank(x: Tensor) -> None:
    net, bank, first = case()
    second = SwitchedNet(net)
    for index in (0, 0, 1):
        for switched in (first, second, second, first):
            assert torch.equal(switched.run(bank, index, x), plain(net, bank, index, x))


def test_gradients_to_the_images_outlast_a_switch(x: Tensor) -> None:
    _, bank, switched = case()
    grads: list[Tensor] = []
    for late in (False, True):
        images = x.clone().requires_grad_()
        out = switched.run(bank, 0, images).square().sum()
        if late:
            switched.run(bank, 1, x)
        out.backward()
        assert images.grad is not None
        grads.append(images.grad)
    assert torch.equal(grads[0], grads[1])


def test_what_somebody_added_to_a_network_of_ours_counts(x: Tensor) -> None:
    """A bias or a hook belongs to the network that answers, whatever its class is called."""
    for added in ("bias", "hook"):
        module = FullyConnected((16, 7, 5))
        if added == "bias":
            module.layers[0].bias = nn.Parameter(torch.linspace(-3, 3, 7))
        else:
            module.layers[0].register_forward_hook(lambda layer, inputs, output: output + 1)
        net = FrozenNet(module, 0, CPU, pretrained=True)
        bank, generator = Bank(net.shapes, CPU, net.statistics), torch.Generator().manual_seed(0)
        for _ in range(2):
            bank.add(random_task(net, generator))
        switched = SwitchedNet(net)
        bare = FrozenNet(FullyConnected((16, 7, 5)), 0, CPU)
        for index in (0, 1, 0):
            answer = switched.run(bank, index, x)
            assert torch.allclose(answer, plain(net, bank, index, x), atol=1e-6)
            weights = {name: weight * bank.mask(index)[name] for name, weight in net.weights.items()}
            assert not torch.allclose(answer, bare.run(x, weights), atol=1e-3)


class CopiesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesItself":
        made = CopiesItself()
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.mean((1, 2)))
        return out


def test_a_module_that_copies_itself_is_run_the_plain_way(x: Tensor) -> None:
    net, bank, switched = case(CopiesItself())
    for index in (0, 1, 1, 0):
        assert torch.equal(switched.run(bank, index, x), plain(net, bank, index, x))
    assert not torch.equal(plain(net, bank, 0, x), plain(net, bank, 1, x))


def test_what_is_not_masked_is_shared() -> None:
    """A second copy of embeddings or other large parameters would be waste."""
    module = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 3))
    weight = module[1].weight
    copied = copy_with_tensors(module, {"1.weight": torch.zeros(3, 4)})
    assert copied is not None
    assert copied[0].weight is module[0].weight  # type: ignore[index]
    assert module[1].weight is weight


def test_a_lone_thread_has_one_network_and_each_further_one_at_most_eight(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs as much memory as the weights; beyond that masked weights are made for the moment."""
    net, bank, _ = case()
    several = SwitchedNets(net)
    expected = [plain(net, bank, index, x) for index in range(3)]
    for index in (0, 1, 2, 0):
        assert torch.equal(several.run(bank, index, x), expected[index])
    assert len(several._made) == 1
    deepest = 11
    busy: list[SwitchedNet] = []
    run = SwitchedNet.run

    def nested(switched: SwitchedNet, bank: Bank, index: int, x: Tensor) -> Tensor:
        """While one answers, another is asked."""
        busy.append(switched)
        if len(busy) < deepest:
            other = len(busy) % 3
            assert torch.equal(several.run(bank, other, x), expected[other])
        return run(switched, bank, index, x)

    monkeypatch.setattr(SwitchedNet, "run", nested)
    assert torch.equal(several.run(bank, 0, x), expected[0])
    assert len(set(map(id, busy))) == len(busy) == len(several._made) == len(several._idle) == 8
    assert len({made.frozen.data_ptr() for made in several._made}) == 1, "frozen weights are shared"


def test_the_network_that_has_the_mask_on_answers_else_the_one_idle_longest(x: Tensor) -> None:
    net, bank, _ = case()
    several = SwitchedNets(net)
    made = [SwitchedNet(net) for _ in range(3)]
    for index, switched in enumerate(made):
        several._made.add(switched)
        several._idle.append(switched)
        switched.switch(bank, (1, 0, 0)[index])
    several.run(bank, 0, x)
    assert several._idle == made, "of two with this mask the one used last, which is found at once"
    several.run(bank, 1, x)
    assert several._idle == [made[1], made[2], made[0]]
    several.run(bank, 2, x)
    assert several._idle == [made[2], made[0], made[1]]
    assert made[1].on == (bank.version, 2)
    with pytest.raises(IndexError):
        several.run(bank, 3, x)
    assert several._idle == [made[0], made[1]], "half a mask may be on where there was an error"
