"""Masks coded against the mean of many: weights that most tasks keep or drop cost little, where tasks are alike.

The mean is rounded to eight levels per weight and stored once. A mask is then coded as if the weights of one level were
a tensor of their own, by the same codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from supsup.file import codec
from supsup.file.codec import Bytes
from supsup.runtime.errors import Damaged

AGAINST_MEAN = "mean-1+"  # before the name of the codec
_PLANES = 3  # bits of a level; level i begins at a mean of (i/8)², fine where masks are sparse
_LEVELS = 1 << _PLANES


class Reference:
    """A level 0 … 7 for each weight; sizes are the numbers of weights in the network's tensors."""

    def __init__(self, levels: Bytes, sizes: Sequence[int]) -> None:
        self._levels = levels
        self._sizes = list(sizes)
        tensor = np.repeat(np.arange(len(sizes)), sizes)
        group = tensor * _LEVELS + levels
        self._order = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=len(sizes) * _LEVELS)
        self._groups = [int(count) for count in counts if count]

    @classmethod
    def of(cls, masks: Iterable[Bytes], sizes: Sequence[int]) -> Reference:
        """The mean of packed masks, rounded."""
        total, count = np.zeros(sum(sizes), np.int64), 0
        for packed in masks:
            total += _unpack(packed, sizes)
            count += 1
        levels = sum((64 * total >= i * i * count).astype(np.uint8) for i in range(1, _LEVELS))
        return cls(np.asarray(levels, np.uint8), sizes)

    def encode(self, packed: Bytes) -> tuple[str, bytes]:
        """(codec, bytes) of a mask."""
        name, blob = codec.encode(_pack(_unpack(packed, self._sizes)[self._order], self._groups), self._groups)
        return AGAINST_MEAN + name, blob

    def decode(self, name: str, blob: bytes) -> Bytes:
        """The packed mask again, as `codec.decode` gives it."""
        bits = np.empty(sum(self._sizes), np.uint8)
        bits[self._order] = _unpack(codec.decode(name.removeprefix(AGAINST_MEAN), blob, self._groups), self._groups)
        return _pack(bits, self._sizes)

    def to_bytes(self) -> tuple[str, bytes]:
        """(codec, bytes) of the levels, plane by plane."""
        planes = [_pack((self._levels >> plane & 1).astype(np.uint8), self._sizes) for plane in range(_PLANES)]
        return codec.encode(np.concatenate(planes), self._sizes * _PLANES)

    @classmethod
    def from_bytes(cls, name: str, blob: bytes, sizes: Sequence[int]) -> Reference:
        """The other way round."""
        planes = np.split(codec.decode(name, blob, list(sizes) * _PLANES), _PLANES)
        levels = [_unpack(bits, sizes) << plane for plane, bits in enumerate(planes)]
        return cls(np.bitwise_or.reduce(levels).astype(np.uint8), sizes)


def decode(name: str, blob: bytes, sizes: Sequence[int], reference: Reference | None) -> Bytes:
    """A packed mask, however it is coded."""
    if not name.startswith(AGAINST_MEAN):
        return codec.decode(name, blob, sizes)
    if reference is None:
        raise Damaged("the mean that the mask is coded against is missing")
    return reference.decode(name, blob)


def _unpack(packed: Bytes, sizes: Sequence[int]) -> NDArray[np.uint8]:
    """0 or 1 for each weight, without the padding."""
    pieces = zip(codec.pieces(packed, sizes), sizes)
    return np.concatenate([np.unpackbits(piece, count=size, bitorder="little") for piece, size in pieces])


def _pack(bits: NDArray[np.uint8], sizes: Sequence[int]) -> Bytes:
    tensors = np.split(bits, np.cumsum(sizes)[:-1])
    return np.concatenate([np.packbits(tensor, bitorder="little") for tensor in tensors])
