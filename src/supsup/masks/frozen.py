"""A network whose weights never change, drawn from a seed or pretrained, and its copies with a mask applied.

`plain_fill` defines how a copy switches from task to task: one pass rewrites the masked weights. On a GPU it is one
kernel; on a CPU one compiled loop, if numba is installed.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from supsup.kernels import available
from supsup.masks import philox
from supsup.masks.bank import Bank, end_to_end, split_by_name, unpacked
from supsup.nets.execution import ModuleCopies, copy_with_tensors, has_only_known_layers, run_with_weights
from supsup.nets.fully_connected import unmodified_layers
from supsup.nets.imagenet import ImageNetwork, first_layer_inputs, fixed_prefixes, has_published_weights
from supsup.nets.maskable import RECURRENT, MaskedWeight, masked_weights
from supsup.nets.published import checksum
from supsup.runtime.errors import SupSupError
from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.process import one_thread_when_forked
from supsup.runtime.validation import flag, given, whole

if available.NUMBA:
    from supsup.kernels import numba_masks
if available.TRITON:
    from supsup.kernels import triton_masks

_SWITCHED = 8  # networks with a mask applied, at the same time; further threads compute temporary masked weights
_PIXELS = 1 << 24  # numbers in one forward pass, at the network's first layer
_DESCRIBED = {"cpu": 4, "cuda": 128}  # photographs in one pass: on a CPU few, whose activations stay in its cache
RUNNING = ("running_mean", "running_var")
# The kernel for attention is a setting of the process: code that relies on it reads, code that changes it writes.
ATTENTION = ReadersWriter()
_CUDNN = new_lock()  # held while cuDNN is switched off
_NOTHING = nullcontext()


class FrozenNet:
    """A module with frozen weights, run with other weights put in place of the maskable ones.

    `weights` maps the full name of each masked weight (`nets/maskable.py`) to its frozen tensor, in the order of
    the module. Every weight is +c or −c with c = sqrt(2 / inputs), and its bias is 0. Other parameters (affine
    normalisation, class tokens) keep their initial values. With `pretrained` all parameters keep their values.
    `statistics` are the initial values of each task's own tensors: running means and variances of normalisation
    layers and, with `own_head`, the parameters of the last linear layer (`head`), which are trained and not masked.
    The module is copied, never changed; the copy is in float32.

    profile_size  how large the profiles of its tasks are (`inference/profiles/features.py`)
    pretrained  None: whether the network was built with published weights
    masked      names of the masked weights, from a file (None: all maskable ones, except the head)
    own_head    None: whether the network is pretrained; `masked` takes precedence
    """

    def __init__(
        self,
        net: nn.Module,
        seed: int,
        device: torch.device,
        pretrained: bool | None = False,
        masked: Collection[str] | None = None,
        own_head: bool | None = None,
        profile_size: str = "default",
    ) -> None:
        if isinstance(net, nn.DataParallel | DistributedDataParallel):
            net = net.module
        one_thread_when_forked()
        _check_values(given(net, nn.Module, "net"))
        maskable = masked_weights(net)
        weights = [each for name, each in maskable.items() if masked is None or name in masked]
        pretrained = has_published_weights(net) if pretrained is None else flag(pretrained, "pretrained")
        head = _head(net, list(maskable))
        own_head = pretrained if own_head is None else flag(own_head, "own_head")
        self.head = head if (own_head if masked is None else not set(head) & set(masked)) else []
        names = [each.name for each in weights if each.name not in self.head]
        self.module = copy.deepcopy(net).requires_grad_(False).float()
        self.seed = whole()(seed, "seed")
        self.device = device
        self.pretrained, self.profile_size = pretrained, profile_size
        if not pretrained:
            _freeze(self.module, weights, self.seed)
        tracked, buffers = _tracked(self.module), dict(self.module.named_buffers())
        self._other_buffers = [name for name in buffers if name not in set(tracked)]
        self.checksum = checksum(
            dict(self.module.named_parameters()) | {name: buffers[name] for name in self._other_buffers}
        )  # of everything that all tasks share
        self.module.to(device).eval()
        self._copies = ModuleCopies(self.module)
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        self.weights: dict[str, Tensor] = {name: parameters[name].detach() for name in names}
        self.shapes: dict[str, torch.Size] = {name: weight.shape for name, weight in self.weights.items()}
        self.statistics: dict[str, Tensor] = {
            name: buffers[name].detach().clone() for name in tracked if name.endswith(RUNNING)
        } | {name: parameters[name].detach().clone() for name in self.head}

    @cached_property
    def is_fully_connected(self) -> bool:
        """Whether the module is just a chain of linear layers and ReLU, which kernels can compute."""
        return not self.head and unmodified_layers(self.module) is not None

    @cached_property
    def is_known(self) -> bool:
        """Whether all layers are of kinds that draw no random numbers and use no attention."""
        return has_only_known_layers(self.module)

    def borrowed(self) -> AbstractContextManager[nn.Module]:
        """A module for exclusive use with `run`; hooks on its layers are allowed meanwhile."""
        return self._copies.borrow()

    def attending(self) -> AbstractContextManager[object]:
        """Context for a forward pass: the attention kernel stays the same, and recurrent layers do not use cuDNN."""
        if self.is_known:
            return _NOTHING
        # cuDNN copies the weights of recurrent layers, and has no gradient for them
        return _plain_recurrence() if self._recurs and self.device.type == "cuda" else ATTENTION.reading()

    @cached_property
    def _recurs(self) -> bool:
        return any(isinstance(part, RECURRENT) for part in self.module.modules())

    def run(self, x: Tensor, weights: Mapping[str, Tensor], module: nn.Module | None = None) -> Tensor:
        """Outputs [images, s] with these weights instead of the frozen ones, and these statistics if given.

        module  from `training` or `borrowed`; None: any idle one
        """
        if module is None:
            with self.borrowed() as idle:
                return self.run(x, weights, idle)
        with self.attending():
            out = run_with_weights(module, dict(weights), x)
        if not isinstance(out, Tensor):
            raise SupSupError(
                f"the network must return one tensor, a vector of outputs per image; got {type(out).__name__}"
            )
        return out

    def run_many(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """`run` for any number of images, in pieces that fit into memory."""
        return torch.cat([self.run(piece, weights) for piece in self.pieces(x)])

    @cached_property
    def described(self) -> int:
        """How many features a description begins with; 0: there are no descriptions."""
        return self.module.described if isinstance(self.module, ImageNetwork) else 0

    @torch.no_grad()
    def describe(self, x: Tensor) -> Tensor:
        """Descriptions of images, which `run` takes in their place at less cost; the images if no layer is fixed."""
        if not self.described or x.ndim == 2:
            return x
        with self.borrowed() as module:
            assert isinstance(module, ImageNetwork)
            return torch.cat([module.describe(piece) for piece in x.split(_DESCRIBED.get(self.device.type, 4))])

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images in pieces that fit into memory in one pass."""
        pieces: tuple[Tensor, ...] = x.split(max(1, _PIXELS // first_layer_inputs(self.module, x[0])))
        return pieces

    @contextmanager
    def training(self) -> Iterator[nn.Module]:
        """A module for `run` whose layers behave as in training: dropout drops, statistics are those of the batch."""
        with self._copies.borrow(training=True) as module:
            before = [module.get_buffer(name) for name in self._other_buffers]
            versions = [buffer._version for buffer in before]
            try:
                yield module
            except ValueError as error:
                if isinstance(error, SupSupError):
                    raise
                reason = f"the network cannot be trained on this batch, is it large enough? {error}"
                raise SupSupError(reason) from error
            for name, buffer, version in zip(self._other_buffers, before, versions):
                if module.get_buffer(name) is not buffer or buffer._version != version:
                    raise SupSupError(
                        f"buffer {name!r} changes while the network is trained, so one task would change another's "
                        "answers; only the running means and variances of torch's own normalisation layers are kept "
                        "per task"
                    )

    def rehearse(self, x: Tensor) -> None:
        """An error if the network cannot be trained on this batch; nothing changes."""
        with self.training() as module, torch.no_grad():
            self.run(x, self.weights | {name: value.clone() for name, value in self.statistics.items()}, module)

    def masked(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W ⊙ M for every masked weight, and the statistics given with the masks.

        Masks may be bits, means of masks, or any tensors of that shape.
        """
        weights = {name: weight * masks[name] for name, weight in self.weights.items()}
        return weights | {name: masks[name] for name in self.statistics if name in masks}


class SwitchedNets:
    """A pool of networks, each with one mask applied: one for each thread that predicts at the same time.

    They share the frozen weights; each has its own masked weights.
    """

    def __init__(self, net: FrozenNet) -> None:
        self.net = net
        self._idle: list[SwitchedNet] = []  # the last used at the end
        self._made: weakref.WeakSet[SwitchedNet] = weakref.WeakSet()
        self._lock = new_lock()

    def run(self, bank: Bank, index: int, x: Tensor) -> Tensor:
        """Outputs [images, s] under one mask."""
        switched = self._taken((bank.version, index))
        if switched is None:
            return self.net.run(x, self.net.masked(bank.subnetwork(index)))
        out = switched.run(bank, index, x)
        self._idle.append(switched)  # not after an error, which may have come in the middle of a switch
        return out

    def _taken(self, wanted: tuple[object, int]) -> SwitchedNet | None:
        """An idle network, preferably with this mask applied; None if too many are busy."""
        with self._lock:
            if self._idle and self._idle[-1].on == wanted:
                return self._idle.pop()
            if self._idle:
                found = next((each for each in self._idle if each.on == wanted), self._idle[0])
                self._idle.remove(found)
                return found
            if len(self._made) >= _SWITCHED:
                return None
            made = SwitchedNet(self.net, next((switched.frozen for switched in self._made), None))
            self._made.add(made)
            return made


class SwitchedNet:
    """A frozen network with one mask of a bank and its statistics applied; the same task again needs no switch.

    It is a copy of the frozen module. Its masked weights are views of one buffer, in the order of the bank's bits, its
    statistics are views of another, and all other tensors are shared. This costs two numbers per weight: the frozen
    weights in that order, which networks share, and the masked ones.
    """

    def __init__(self, net: FrozenNet, frozen: Tensor | None = None) -> None:
        self.net = net
        self.on: tuple[object, int] | None = None  # version of the bank and index of the applied mask
        if frozen is None:
            frozen = end_to_end({name: weight[None] for name, weight in net.weights.items()})[0]
        self.frozen, self.masked = frozen, torch.zeros_like(frozen)
        self.statistics = torch.zeros(sum(value.numel() for value in net.statistics.values()), device=net.device)
        shapes = {name: value.shape for name, value in net.statistics.items()}
        views = split_by_name(self.masked, net.shapes, 8) | split_by_name(self.statistics, shapes)
        self._module = copy_with_tensors(net.module, views)

    def run(self, bank: Bank, index: int, x: Tensor) -> Tensor:
        """Outputs [images, s] under one mask."""
        if self._module is None or x.requires_grad:  # a later switch must not change tensors of an autograd graph
            return self.net.run(x, self.net.masked(bank.subnetwork(index)))
        if self.on != (bank.version, index):
            self.switch(bank, index)
        with self.net.attending():
            out: Tensor = self._module(x)
        return out

    def switch(self, bank: Bank, index: int) -> None:
        """Apply a mask."""
        self.on = None
        fill(bank.column(index), self.frozen, self.masked)
        self.statistics.copy_(bank.flat_statistics(index))
        self.on = (bank.version, index)


def fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """masked [8 × bytes] = frozen where the mask's bit is 1, else 0."""
    if frozen.is_cuda and available.TRITON:
        triton_masks.triton_fill(packed, frozen, masked)
    elif available.NUMBA and frozen.device.type == "cpu":
        numba_masks.numba_fill(packed, frozen, masked)
    else:
        plain_fill(packed, frozen, masked)


def plain_fill(packed: Tensor, frozen: Tensor, masked: Tensor) -> None:
    """The same with torch operations alone."""
    torch.where(unpacked(packed[:, None]).flatten(), frozen, torch.zeros_like(frozen[:1]), out=masked)


@contextmanager
def _plain_recurrence() -> Iterator[None]:
    """Context without cuDNN: a setting of the process, so one thread at a time."""
    with ATTENTION.reading(), _CUDNN:
        before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        try:
            yield
        finally:
            torch.backends.cudnn.enabled = before


def _freeze(module: nn.Module, weights: Sequence[MaskedWeight], seed: int) -> None:
    """Weights to ±sqrt(2 / inputs), the signs from the seed and the weight's name; their biases to 0."""
    parameters = dict(module.named_parameters())
    for name, inputs, bias, padding in weights:
        shape = parameters[name].shape
        signs = philox.signs(seed, f"weights/{name}", shape.numel()).view(shape)
        parameters[name].copy_(signs * math.sqrt(2.0 / inputs))
        if bias is not None:
            parameters[bias].zero_()
        if padding is not None:
            parameters[name][padding] = 0


def _head(module: nn.Module, masked: Sequence[str]) -> list[str]:
    """The parameters of the last linear layer; none if nothing else could be masked."""
    layers = dict(module.named_modules())
    linear = [name for name in masked if isinstance(layers[name.rpartition(".")[0]], nn.Linear)]
    if not linear or len(masked) == 1:
        return []
    path = linear[-1].removesuffix("weight")
    return [path + name for name, _ in layers[path.removesuffix(".")].named_parameters(recurse=False)]


def _tracked(module: nn.Module) -> list[str]:
    """Names of the running statistics of normalisation layers that are not fixed, in the order of the module."""
    found, fixed = [], fixed_prefixes(module)
    for path, child in module.named_modules():
        if f"{path}.".startswith(fixed):
            continue
        if isinstance(child, nn.modules.batchnorm._NormBase) and child.track_running_stats:
            if child.momentum is None:
                raise SupSupError(f"layer {path!r} averages its statistics over all batches; give it a momentum")
            found += [f"{path}.{kind}".removeprefix(".") for kind in (*RUNNING, "num_batches_tracked")]
    return found


def _check_values(module: nn.Module) -> None:
    """Every parameter and buffer must have values."""
    for path, child in module.named_modules():
        for value in (*child.parameters(recurse=False), *child.buffers(recurse=False)):
            if is_lazy(value):
                raise SupSupError(
                    f"layer {path!r} ({type(child).__name__}) has no shape yet; run the network once on some images"
                )
            if value.is_meta:
                raise SupSupError(f"layer {path!r} ({type(child).__name__}) is on 'meta' and has no values; build it")


def fan_in(shape: torch.Size) -> int:
    """The number of inputs of one output of a linear or convolutional weight."""
    return shape[1:].numel()
