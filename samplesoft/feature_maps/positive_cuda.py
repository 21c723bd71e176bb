"""Positive random features on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import empty, first_found, launch_warps
from samplesoft.kernels.arrays.checks_cuda import find_greatest_outside
from samplesoft.kernels.features.fourier_cuda import positive_shifts, write_positive


class CudaPositive:
    """The twin of `HostPositive`."""

    @staticmethod
    def write(phi: Any, X: Any, out: Any) -> None:
        """Write the features of `X` (N, d) by the map `phi` into `out` (N, F)."""
        number, num = X.dtype.type, X.shape[0]
        shifts = empty(num, X.dtype)
        half, constant = number(0.5 * phi.tau), number(0.5 * np.log(phi.num_features))
        launch_warps(positive_shifts, num, X, half, constant, shifts)
        phi.projections.project(write_positive, X, out, (shifts,))
        row = first_found(launch_warps, find_greatest_outside, num, out, 0.0, np.inf)
        if row is not None:
            phi.require_in_range(out[row : row + 1].copy_to_host())
