"""The idx format, in which MNIST and its relatives are published: unsigned bytes in any number of dimensions."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch
from torch import Tensor

from supsup.errors import SupSupError

_UNSIGNED_BYTES = 0x08


def parse(content: bytes, where: str) -> Tensor:
    """The uint8 tensor in the content of an idx file; `where` names the file in errors."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[3] == 0:
        raise SupSupError(f"{where} is not an idx file (it starts with {content[:4].hex(' ')!r}); get it again")
    kind, dimensions = content[2], content[3]
    if kind != _UNSIGNED_BYTES:
        raise SupSupError(f"{where} holds idx values of type 0x{kind:02x}; only unsigned bytes (0x08) are read")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise SupSupError(f"{where} is cut short: {len(content)} bytes, its header alone has {start}; get it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected:
        fault = "is cut short" if len(content) < expected else "goes on after its end"
        raise SupSupError(
            f"{where} {fault}: {len(content)} bytes, its header {list(shape)} asks for {expected}; get it again"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
