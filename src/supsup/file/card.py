"""What each task's record says of its network, so that the task can be rescued when both copies of the header are gone.

It lies in the metadata of the safetensors bytes that hold the task's extras; who reads the tensors does not notice it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from supsup.runtime.errors import Damaged

_KEY = "network"
_METADATA = "__metadata__"
_LENGTH = 8  # bytes before the header of safetensors, which say how long it is
_ALIGNED = 8


def card(
    seed: int, weights: str, pretrained: bool, architecture: dict[str, Any] | None, image_shape: list[int] | None
) -> str:
    """The facts of a network as text; where it is the user's own, they say which one has to be given."""
    values = {"seed": seed, "weights": weights, "pretrained": pretrained}
    return json.dumps(values | {"architecture": architecture, "image_shape": image_shape}, separators=(",", ":"))


def with_card(extras: bytes, text: str) -> bytes:
    """Safetensors bytes (or none) with the card in their metadata, in place of an older one."""
    return with_text(extras, _KEY, text)


def with_text(extras: bytes, key: str, text: str) -> bytes:
    """Safetensors bytes (or none) with a text in their metadata, in place of an older one under this key."""
    header, tensors = _parts(extras)
    metadata = header.get(_METADATA)
    metadata = {key: text} | {name: value for name, value in (metadata or {}).items() if name != key}
    header = {_METADATA: metadata} | {name: value for name, value in header.items() if name != _METADATA}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % _ALIGNED)
    return len(content).to_bytes(_LENGTH, "little") + content + tensors


def card_of(extras: bytes) -> dict[str, Any] | None:
    """The card among a task's extras, None where there is none: in files of earlier versions."""
    try:
        found = json.loads(_parts(extras)[0][_METADATA][_KEY])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def text_of(extras: bytes, key: str) -> str | None:
    """A text among a task's extras; None where there is none."""
    metadata = _parts(extras)[0].get(_METADATA)
    found = metadata.get(key) if isinstance(metadata, dict) else None
    if found is not None and not isinstance(found, str):
        raise Damaged("its extras cannot be read (metadata that is no text)")
    return found


def holds_tensors(extras: bytes) -> bool:
    """Whether there is more than a card."""
    follows = len(extras) > _LENGTH + int.from_bytes(extras[:_LENGTH], "little")
    return follows or any(name != _METADATA for name in _parts(extras)[0])


def _parts(extras: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of safetensors bytes and what follows it."""
    if not extras:
        return {}, b""
    end = _LENGTH + int.from_bytes(extras[:_LENGTH], "little")
    return _header(extras[_LENGTH:end]), extras[end:]


@lru_cache(maxsize=16)
def _header(content: bytes) -> dict[str, Any]:
    """The header of safetensors bytes, not to be changed; that of one task is mostly that of the next."""
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its extras cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise Damaged("its extras cannot be read (no header of safetensors)")
    return header
