"""A hint to the processor to fetch a row that will be read soon."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from samplesoft._jit import njit

_cgutils: Any = cgutils
_LINE = 64  # bytes
CACHE = 1 << 23  # bytes of an array up to which there is nothing to gain


def _hint(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Type and generate a call of LLVM's prefetch for ``array[row, column]``."""
    signature = types.void(array, row, column)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        indices = [
            context.cast(builder, value, type_, types.intp)
            for value, type_ in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        made = context.make_array(kind)(context, builder, arguments[0])
        place = _cgutils.get_item_pointer(context, builder, kind, made, indices)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = _cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0i8",
        )
        to_read, into_level_2, data = (ir.Constant(word, value) for value in (0, 2, 1))
        builder.call(function, [builder.bitcast(place, byte), to_read, into_level_2, data])
        return context.get_dummy_value()

    return signature, generate


_compiles = not getattr(numba.config, "DISABLE_JIT", False)
_prefetch: Any = intrinsic(_hint) if _compiles else lambda *_: None


@njit
def prefetch_row(array: NDArray[Any], row: int) -> None:
    """Ask for a row of a matrix, one cache line after another."""
    for column in range(0, array.shape[1], _LINE // array.itemsize):
        _prefetch(array, row, column)
