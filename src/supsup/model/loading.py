"""`load`: the model in a file, of whatever kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from supsup.file.paths import AnyPath
from supsup.model.state import OtherKind
from supsup.model.supsup import SupSup
from supsup.runtime.errors import SupSupError

if TYPE_CHECKING:
    from supsup.hopfield.learner import HopSupSup


def load(
    path: AnyPath,
    net: nn.Module | None = None,
    *,
    in_place: bool = False,
    masks: Literal["memory", "disk"] = "memory",
    device: str | torch.device = "auto",
) -> SupSup | Any:
    """The model in a file (`SupSup` or `HopSupSup`), every mask checked.

    net       your module, where the model was not built from `supsup.nets`
    in_place  commit each task to the file as soon as it is learned or forgotten; use `with` or call `close`
    masks     "disk": masks stay on disk, and a search reads them through the page cache (docs/model-file.md)

    `in_place` and `masks="disk"` are for `SupSup` only: a `HopSupSup` file is one memory, which `save` writes whole.
    """
    try:
        return SupSup.load(path, net, in_place=in_place, masks=masks, device=device)
    except OtherKind:
        if in_place or masks != "memory":
            option = "in_place=True" if in_place else f"masks={masks!r}"
            raise SupSupError(
                f"{path} holds a HopSupSup model, for which there is no {option}: "
                "load it without that option, and save() it when it has changed"
            ) from None
        return _hop_supsup().load(path, net, device=device)


def _hop_supsup() -> type[HopSupSup]:
    """Imported only when a file needs it: `hopfield` is a layer above this one, and most programs never use it."""
    from supsup.hopfield.learner import HopSupSup

    return HopSupSup
