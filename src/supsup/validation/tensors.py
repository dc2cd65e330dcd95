"""Any array of numbers as a plain tensor: dense, real, with values, without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.errors import SupSupError
from supsup.validation.values import shown


def plain_tensor(values: Any, what: str) -> Tensor:
    """The values as a tensor; memory is shared where it can be."""
    try:
        tensor = values if isinstance(values, Tensor) else _from_array(values, what)
        fault = _fault(tensor)
    except SupSupError:
        raise
    except Exception as error:  # what is no array of numbers makes numpy and torch raise nearly anything
        raise SupSupError(f"{what} must be a tensor or an array of numbers, not {shown(values)}: {error}") from error
    if fault is not None:
        raise SupSupError(f"{what} must be a tensor or an array of real numbers; got one {fault}")
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor.clone() if tensor.is_inference() else tensor  # one made in inference mode cannot be trained on


def _fault(tensor: Tensor) -> str | None:
    if tensor.is_meta:
        return "on 'meta', which has no values"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "that is sparse, nested or in a layout of its own: make it dense first, with to_dense()"
    if tensor.is_quantized:
        return "that is quantised: dequantize() it first"
    if tensor.is_complex():
        return f"of {tensor.dtype}"
    return None


def _from_array(values: Any, what: str) -> Tensor:
    if isinstance(values, np.ma.MaskedArray):
        raise SupSupError(f"{what} are a masked array; fill its holes first, with filled(…)")
    if not isinstance(values, np.ndarray):
        return torch.as_tensor(values)
    if values.dtype.kind not in "biuf":
        raise SupSupError(f"{what} must be an array of numbers, not of {values.dtype}")
    if values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if not values.flags.writeable or any(step < 0 for step in values.strides):
        values = values.copy()  # torch shares neither
    return torch.from_numpy(values)
