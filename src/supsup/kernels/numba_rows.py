"""Rows of a few floats added in one vector instruction: numba alone would add them one by one.

Its compiler turns long loops into vector instructions, but unrolls short ones first and then leaves them as they are.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

WIDTH = 16  # floats of a row: 64 bytes, and a table of 256 rows fits into the first-level cache


@intrinsic
def add_rows(typing_context, target, to, left, of_left, right, of_right):  # type: ignore[no-untyped-def]
    """target[to] = left[of_left] + right[of_right], in contiguous arrays [n, WIDTH] of float32; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, first, second = (_pointer(context, builder, signature, arguments, position) for position in (0, 2, 4))
        values = [builder.load(pointer, align=4) for pointer in (first, second)]
        builder.store(builder.fadd(*values), out, align=4)
        return context.get_dummy_value()

    return _signature(target, left, right), generate


@intrinsic
def add_two_rows(typing_context, target, to, first, of_first, second, of_second):  # type: ignore[no-untyped-def]
    """target[to] += first[of_first], then += second[of_second]; as `add_rows`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = [_pointer(context, builder, signature, arguments, position) for position in (0, 2, 4)]
        total, one, other = (builder.load(pointer, align=4) for pointer in pointers)
        builder.store(builder.fadd(builder.fadd(total, one), other), pointers[0], align=4)
        return context.get_dummy_value()

    return _signature(target, first, second), generate


def _signature(*arrays: Any) -> Any:
    return numba.types.void(*(each for array in arrays for each in (array, numba.types.intp)))


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, position: int) -> Any:
    """Where the row lies whose array and index are the arguments from a position on."""
    array = context.make_array(signature.args[position])(context, builder, arguments[position])
    start = builder.mul(arguments[position + 1], context.get_constant(numba.types.intp, WIDTH))
    return builder.bitcast(builder.gep(array.data, [start]), ir.VectorType(ir.FloatType(), WIDTH).as_pointer())
