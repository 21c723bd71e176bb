"""Products with random signs and Walsh-Hadamard matrices on the device, in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from samplesoft._cuda import WARP_SIZE, cuda, kernel, lane, warp_sync

_SHARED_BYTES = 48 << 10  # what every device gives to a block


def project(
    finish: Callable[..., None], x: Any, signs: Any, num: int, out: Any, parameters: Any
) -> None:
    """Call ``finish(out, i, j, product, parameters)`` for each row and each of `num` frequencies.

    `finish` is a device function that writes to `out`. The rows `x` (N, d) are as if padded with
    zeros to p numbers; `signs` (blocks, 3, p) holds diagonals in the order in which they are
    applied, of the type of `x`. Raises `ValueError` where a row does not fit the shared memory of a
    block.
    """
    blocks, _, size = signs.shape
    memory = size * x.dtype.itemsize
    if memory > _SHARED_BYTES:
        most = 1 << (_SHARED_BYTES // x.dtype.itemsize).bit_length() - 1
        raise ValueError(
            f"`frequencies` must not be 'structured' on the device for rows of more than {most} "
            f"numbers in {x.dtype}, got {x.shape[1]}; take 'iid' or 'orthogonal'."
        )
    _kernel(finish)[x.shape[0] * blocks, WARP_SIZE, 0, memory](x, signs, num, out, parameters)


@cache
def _kernel(finish: Callable[..., None]) -> Any:
    def structured(x: Any, signs: Any, num: int, out: Any, parameters: Any) -> None:
        row, block = cuda.blockIdx.x // signs.shape[0], cuda.blockIdx.x % signs.shape[0]
        values = cuda.shared.array(0, x.dtype)
        size = signs.shape[2]
        for k in range(lane(), size, WARP_SIZE):
            values[k] = x[row, k] if k < x.shape[1] else x.dtype.type(0)
        for factor in range(signs.shape[1]):
            for k in range(lane(), size, WARP_SIZE):
                values[k] *= signs[block, factor, k]
            half = size // 2
            while half > 0:
                warp_sync()
                for pair in range(lane(), size // 2, WARP_SIZE):
                    low = 2 * pair - (pair & (half - 1))
                    a, b = values[low], values[low + half]
                    values[low], values[low + half] = a + b, a - b
                half //= 2
            warp_sync()
        for k in range(lane(), min(size, num - block * size), WARP_SIZE):
            finish(out, row, block * size + k, values[k], parameters)

    structured.__name__ = f"project_{finish.__name__}"
    return kernel(structured)
