"""Random numbers whose bits never change: Philox4x32-10 (Salmon et al., 2011) in integer tensor operations.

A number depends only on (seed, label, position), so it is the same on every device, in any order, in any library
version. Frozen weights, starting scores, batch orders and permutations all come from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from supsup.kernels import available

if available.TRITON:
    from supsup.kernels import triton_masks

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: Sequence[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """One Philox4x32-10 block per element: four int64 tensors of 32-bit words in, four out."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The products wrap around in int64; the 64 bits are those of the unsigned product.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _WORD) ^ c1 ^ k0,
            second & _WORD,
            ((first >> 32) & _WORD) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return [c0, c1, c2, c3]


def stream_id(label: str) -> int:
    """The 64-bit number of the random stream with this label."""
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")


def words(seed: int, labels: Sequence[str], count: int, device: torch.device | str = "cpu") -> Tensor:
    """Random 32-bit words as int64, [len(labels), count]: row i is the start of the stream with label i."""
    key = (seed & _WORD, (seed >> 32) & _WORD)
    streams = [(number & _WORD, number >> 32) for number in map(stream_id, labels)]
    if torch.device(device).type == "cuda" and available.TRITON:
        return triton_masks.triton_words(key, streams, count, device)
    blocks = -(-count // 4)
    position = torch.arange(blocks, dtype=torch.int64, device=device).expand(len(streams), blocks)
    low, high = torch.tensor(streams, dtype=torch.int64, device=device).view(-1, 2, 1).expand(-1, 2, blocks).unbind(1)
    block = philox((position & _WORD, position >> 32, low, high), key)
    return torch.stack(block, dim=-1).flatten(1)[:, :count]


def signs(seed: int, label: str, count: int) -> Tensor:
    """+1.0 or −1.0 with equal probability."""
    return 1.0 - 2.0 * (words(seed, [label], count)[0] >> 31).float()


def uniform(seed: int, labels: Sequence[str], count: int, bound: float, device: torch.device | str = "cpu") -> Tensor:
    """float32 in [−bound, bound), [len(labels), count]; rounded once, so the bits agree on every device."""
    centred = (words(seed, labels, count, device) >> 8) - (1 << 23)
    return centred.float() * (bound / (1 << 23))


def permutations(seed: int, labels: Sequence[str], count: int, device: torch.device | str = "cpu") -> Tensor:
    """Random orders of 0 … count − 1 as int64, [len(labels), count]."""
    keys = (words(seed, labels, count, device) << 31) | torch.arange(count, device=device)
    if keys.device.type == "cpu":
        keys.numpy().sort(axis=1)  # in place; many times faster than torch's sort, which also keeps track of indices
    else:
        keys = keys.sort(dim=1).values
    return keys & 0x7FFFFFFF
