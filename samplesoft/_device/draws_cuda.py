"""What samplers on a CUDA device share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import empty, launch_threads
from samplesoft._jit import chunks
from samplesoft.kernels.arrays import elementwise_cuda as arrays


def uniforms(key: np.uint64, batch: int, num: int) -> Any:
    """Return what `uniform_block` does, (batch, num)."""
    out = empty((batch, num), np.float64)
    launch_threads(arrays.fill_uniforms, out.size, key, out)
    return out


_NUMBERS = 1 << 26  # numbers about a batch held at a time


def in_parts(work: Callable[..., None], each: int, *arrays: Any) -> None:
    """Call `work` on arrays (B, ...) for some examples at a time; one takes `each` numbers."""
    batch = arrays[0].shape[0]
    some = max(1, _NUMBERS // each)
    if some >= batch:
        work(*arrays)
        return
    for part in chunks(batch, some):
        work(*(array[part] for array in arrays))
