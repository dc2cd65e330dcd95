"""Masks ⇄ bytes near the entropy bound: asymmetric numeral systems (ANS) over bytes of eight weights.

A coded mask has one class byte per weight tensor, then the bytes of tensors that are stored plain, then one stream of
32-bit words for all other tensors. The class gives the tensor's density to within 6 %, which costs less than 0.2 %
compared with the exact density.

Where tasks are similar, masks can be coded against their mean (`Reference`): weights that most tasks keep or drop then
cost little. The mean is rounded to eight levels per weight and stored once. The weights of one level are coded as if
they were a tensor, by the same codec.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from supsup.runtime.errors import Damaged, SupSupError

Bytes = NDArray[np.uint8]

PLAIN, CODED = "bits", "ans-1"
AGAINST_MEAN = "mean-1+"  # prefix of the codec's name
_EMPTY, _FULL, _PLAIN_TENSOR = 0, 128, 127  # class bytes that are not densities
_WORTH_CODING = 1 - 1 / 256  # of the plain size; above it the bits are stored plain, which decodes at once
_PLANES = 3  # bits of a level; level i begins at a mean of (i/8)², fine where masks are sparse
_LEVELS = 1 << _PLANES


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether the entropy coder is installed; without it masks are written as plain bits."""
    return importlib.util.find_spec("constriction") is not None


def encode(packed: Bytes, sizes: Sequence[int]) -> tuple[str, bytes]:
    """(codec, bytes) of a mask as the bank packs it; `sizes` are the numbers of weights in its tensors."""
    tensors = pieces(packed, sizes)
    classes = [_class_of(count, size) for count, size in zip(kept_weights(packed, sizes), sizes)]
    if not available() or all(kind == _PLAIN_TENSOR for kind in classes):
        return PLAIN, packed.tobytes()
    coder = _constriction().stream.stack.AnsCoder()
    for kind, piece in reversed(list(zip(classes, tensors))):
        if kind not in (_EMPTY, _FULL, _PLAIN_TENSOR):
            coder.encode_reverse(piece.astype(np.int32), _model(kind))
    plain = b"".join(piece.tobytes() for kind, piece in zip(classes, tensors) if kind == _PLAIN_TENSOR)
    words = coder.get_compressed().astype("<u4").tobytes()
    coded = bytes(classes) + plain + words
    return (CODED, coded) if len(coded) < len(packed) else (PLAIN, packed.tobytes())


def decode(codec: str, blob: bytes, sizes: Sequence[int]) -> Bytes:
    """The packed mask. Any bytes give an error or a mask of the right size; only a checksum shows if it is right."""
    lengths = [_length(size) for size in sizes]
    if codec == PLAIN:
        if len(blob) != sum(lengths):
            raise Damaged(f"the mask has {len(blob)} bytes instead of {sum(lengths)}")
        return np.frombuffer(blob, np.uint8)
    if codec != CODED:
        raise SupSupError(f"the mask is coded as {codec!r}, which this version does not know: pip install -U supsup")
    classes = blob[: len(sizes)]
    start = len(sizes) + sum(length for kind, length in zip(classes, lengths) if kind == _PLAIN_TENSOR)
    if len(classes) < len(sizes) or len(blob) < start or (len(blob) - start) % 4:
        raise Damaged(f"the coded mask has {len(blob)} bytes, which no mask of this network can have")
    plain, words = blob[len(sizes) : start], np.frombuffer(blob[start:], "<u4").astype(np.uint32)
    try:
        coder = _constriction().stream.stack.AnsCoder(words)
    except ValueError as error:
        raise Damaged(f"the coded mask cannot be read: {error}") from error
    out = np.zeros(sum(lengths), np.uint8)
    for kind, size, piece in zip(classes, sizes, pieces(out, sizes)):
        if kind == _FULL:
            piece[:] = 0xFF
            piece[-1] >>= -size % 8  # the padding stays 0
        elif kind == _PLAIN_TENSOR:
            piece[:] = np.frombuffer(plain[: len(piece)], np.uint8)
            plain = plain[len(piece) :]
        elif kind != _EMPTY:
            piece[:] = coder.decode(_model(kind), len(piece))
    return out


def kept_weights(packed: Bytes, sizes: Sequence[int]) -> list[int]:
    """How many weights of each tensor a mask keeps."""
    return [int(np.bitwise_count(piece).sum()) for piece in pieces(packed, sizes)]


def entropy_bytes(packed: Bytes, sizes: Sequence[int]) -> float:
    """The entropy bound in bytes, from the density of each tensor."""
    counts = zip(kept_weights(packed, sizes), sizes)
    return float(sum(_bits(count, size, count / size) for count, size in counts if 0 < count < size) / 8)


def paper_bytes(counts: Sequence[int], shapes: Sequence[Sequence[int]], channels: int = 0) -> float:
    """The paper's count for one task: a bit mask, or CSC with 16-bit indices, whichever is smaller.

    counts    weights kept in each tensor
    shapes    [out, …] of each tensor
    channels  channels of normalisation layers, whose statistics take 8 bytes each
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    tensors = zip(counts, sizes, shapes)
    return sum(min(size / 8, 2 * count + 2 * (shape[0] + 1)) for count, size, shape in tensors) + 8 * channels


def pieces(packed: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """The bytes of each tensor (views)."""
    ends = np.cumsum([_length(size) for size in sizes])
    return np.split(packed, ends[:-1])


class Reference:
    """The mean of many masks: a level 0 … 7 for each weight; `sizes` as for `encode`."""

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
        """The rounded mean of packed masks."""
        total, count = np.zeros(sum(sizes), np.int64), 0
        for packed in masks:
            total += _unpack(packed, sizes)
            count += 1
        levels = sum((64 * total >= i * i * count).astype(np.uint8) for i in range(1, _LEVELS))
        return cls(np.asarray(levels, np.uint8), sizes)

    def encode(self, packed: Bytes) -> tuple[str, bytes]:
        """(codec, bytes) of a packed mask, coded against this mean."""
        name, blob = encode(_pack(_unpack(packed, self._sizes)[self._order], self._groups), self._groups)
        return AGAINST_MEAN + name, blob

    def decode(self, name: str, blob: bytes) -> Bytes:
        """The packed mask."""
        bits = np.empty(sum(self._sizes), np.uint8)
        bits[self._order] = _unpack(decode(name.removeprefix(AGAINST_MEAN), blob, self._groups), self._groups)
        return _pack(bits, self._sizes)

    def to_bytes(self) -> tuple[str, bytes]:
        """(codec, bytes) of the levels, one bit plane after the other."""
        planes = [_pack((self._levels >> plane & 1).astype(np.uint8), self._sizes) for plane in range(_PLANES)]
        return encode(np.concatenate(planes), self._sizes * _PLANES)

    @classmethod
    def from_bytes(cls, name: str, blob: bytes, sizes: Sequence[int]) -> Reference:
        """The mean that `to_bytes` wrote."""
        planes = np.split(decode(name, blob, list(sizes) * _PLANES), _PLANES)
        levels = [_unpack(bits, sizes) << plane for plane, bits in enumerate(planes)]
        return cls(np.bitwise_or.reduce(levels).astype(np.uint8), sizes)


def decode_mask(name: str, blob: bytes, sizes: Sequence[int], reference: Reference | None) -> Bytes:
    """A packed mask, coded against a mean or not."""
    if not name.startswith(AGAINST_MEAN):
        return decode(name, blob, sizes)
    if reference is None:
        raise Damaged("the mean that the mask is coded against is missing")
    return reference.decode(name, blob)


def _class_of(count: int, size: int) -> int:
    """The class byte whose density codes the tensor in the fewest bits."""
    if count in (0, size):
        return _EMPTY if count == 0 else _FULL
    costs = _bits(count, size, _densities())
    costs[[_EMPTY, _FULL, _PLAIN_TENSOR]] = np.inf
    best = int(costs.argmin())
    return best if costs[best] < _WORTH_CODING * size else _PLAIN_TENSOR


@lru_cache(maxsize=1)
def _densities() -> NDArray[np.float64]:
    """By class byte: (8 … 15)/16 · 2⁻¹⁶ … 2⁻¹, exact in binary; the upper half mirrors the lower."""
    kind = np.arange(128)
    low = (8 + kind % 8) / 16 * 2.0 ** (kind // 8 - 16)
    return np.concatenate([low, 1 - low])


@lru_cache(maxsize=256)
def _model(kind: int) -> Any:
    """The probabilities of all 256 bytes at a density; only products, so that every machine computes the same."""
    density = float(_densities()[kind])
    probabilities = np.ones(256)
    for bit in range(8):
        probabilities *= np.where(np.arange(256) >> bit & 1, density, 1 - density)
    return _constriction().stream.model.Categorical(probabilities, perfect=False)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError as error:
        raise SupSupError(
            "the mask is entropy coded, and the decoder is not installed: pip install 'supsup[codec]'"
        ) from error
    return constriction


def _bits(count: int, size: int, density: Any) -> Any:
    return -count * np.log2(density) - (size - count) * np.log2(1 - density)


def _length(size: int) -> int:
    return -(-size // 8)


def _unpack(packed: Bytes, sizes: Sequence[int]) -> NDArray[np.uint8]:
    """0 or 1 for each weight, without the padding."""
    tensors = zip(pieces(packed, sizes), sizes)
    return np.concatenate([np.unpackbits(piece, count=size, bitorder="little") for piece, size in tensors])


def _pack(bits: NDArray[np.uint8], sizes: Sequence[int]) -> Bytes:
    tensors = np.split(bits, np.cumsum(sizes)[:-1])
    return np.concatenate([np.packbits(tensor, bitorder="little") for tensor in tensors])
