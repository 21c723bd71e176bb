"""Random Fourier features on a CUDA device."""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import first_found, launch_warps
from samplesoft.kernels.arrays.checks_cuda import find_norm_outside
from samplesoft.kernels.features.fourier_cuda import write_fourier
from samplesoft.kernels.sincos import TERMS


class CudaFourier:
    """The twin of `HostFourier`."""

    @staticmethod
    def write(phi: Any, X: Any, out: Any) -> None:
        """Write the features of `X` (N, d) by the map `phi` into `out` (N, F)."""
        longest = phi.limits[X.dtype] ** 0.5
        row = first_found(launch_warps, find_norm_outside, X.shape[0], X, 0.0, longest)
        if row is not None:
            phi.require_resolved(X[row : row + 1].copy_to_host())
        scale = X.dtype.type(phi.num_features**-0.5)
        phi.turns.project(write_fourier, X, out, (scale, *TERMS[X.dtype]))
