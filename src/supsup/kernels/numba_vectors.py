"""Vector instructions for numba, generated as LLVM code for any processor.

Numba's compiler vectorises long loops, but unrolls short ones first and then leaves them scalar. Here rows of a few
floats are added at once, and bits of 64 masks at a time select between a small integer and 0.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

WIDTH = 16  # floats in a row: 64 bytes, and a table of 256 rows fits into the first-level cache
LANES = 64  # masks at a time: one byte of each
_BYTE, _SHORT = ir.IntType(8), ir.IntType(16)


@intrinsic
def add_rows(typing_context, target, to, left, of_left, right, of_right):  # type: ignore[no-untyped-def]
    """target[to] = left[of_left] + right[of_right], in contiguous arrays [n, WIDTH] of float32, unchecked."""

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
    """Pointer to the row whose array and index are the arguments from `position` on."""
    array = context.make_array(signature.args[position])(context, builder, arguments[position])
    start = builder.mul(arguments[position + 1], context.get_constant(numba.types.intp, WIDTH))
    return builder.bitcast(builder.gep(array.data, [start]), ir.VectorType(ir.FloatType(), WIDTH).as_pointer())


@intrinsic
def add_chosen(typing_context, target, to, packed, at, values, of, ahead):  # type: ignore[no-untyped-def]
    """target[to + t] += Σᵢ values[of, i] where bit i of packed[at + t] is set, for t < LANES; bounds are not checked.

    target [n] of int16, packed [n] of uint8 and values [n, 8] of int8 are contiguous. Eight values together must fit
    into int8. packed[ahead] is prefetched.
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
