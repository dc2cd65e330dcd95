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
    index = numba.types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row = ir.VectorType(ir.FloatType(), WIDTH).as_pointer()

        def pointer(position: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            start = builder.mul(arguments[position + 1], context.get_constant(index, WIDTH))
            return builder.bitcast(builder.gep(array.data, [start]), row)

        values = [builder.load(pointer(position), align=4) for position in (2, 4)]
        builder.store(builder.fadd(*values), pointer(0), align=4)
        return context.get_dummy_value()

    return numba.types.void(target, index, left, index, right, index), generate
