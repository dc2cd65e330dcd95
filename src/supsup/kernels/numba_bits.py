"""Bits of 64 masks at a time that choose between a small whole number and 0, in vector instructions.

As for `numba_rows`, numba alone would take them one by one. What is generated is not for one kind of processor.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

LANES = 64  # masks at a time: one byte of each
_BYTE, _SHORT = ir.IntType(8), ir.IntType(16)


@intrinsic
def add_chosen(typing_context, target, to, packed, at, values, of, ahead):  # type: ignore[no-untyped-def]
    """target[to + t] += Σᵢ values[of, i] where bit i of packed[at + t] is set, for t < LANES; nothing is checked.

    target [n] of int16, packed [n] of uint8 and values [n, 8] of int8 are contiguous. Eight values together must fit
    into int8. What lies at packed[ahead] is fetched meanwhile, if it is there.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(position: int, scale: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            offset = builder.mul(arguments[position + 1], context.get_constant(numba.types.intp, scale))
            return builder.gep(array.data, [offset])

        array = context.make_array(signature.args[2])(context, builder, arguments[2])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [array.data.type, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [array.data.type], kind)
        builder.call(fetch, [builder.gep(array.data, [arguments[6]]), *(ir.Constant(number, n) for n in (0, 3, 1))])
        bytes_, shorts = ir.VectorType(_BYTE, LANES), ir.VectorType(_SHORT, LANES)
        bits = builder.load(builder.bitcast(pointer(2, 1), bytes_.as_pointer()), align=1)
        first = pointer(4, 8)
        zero = ir.Constant(bytes_, [0] * LANES)
        total = zero
        for bit in range(8):
            value = builder.load(builder.gep(first, [context.get_constant(numba.types.intp, bit)]))
            lane = builder.insert_element(ir.Constant(bytes_, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            everywhere = builder.shuffle_vector(
                lane, ir.Constant(bytes_, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            )
            is_set = builder.icmp_unsigned("!=", builder.and_(bits, ir.Constant(bytes_, [1 << bit] * LANES)), zero)
            total = builder.add(total, builder.select(is_set, everywhere, zero))
        out = builder.bitcast(pointer(0, 1), shorts.as_pointer())
        builder.store(builder.add(builder.load(out, align=2), builder.sext(total, shorts)), out, align=2)
        return context.get_dummy_value()

    arrays = [each for array in (target, packed, values) for each in (array, numba.types.intp)]
    return numba.types.void(*arrays, numba.types.intp), generate
