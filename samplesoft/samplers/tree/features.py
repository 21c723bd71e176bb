"""Features of classes, which a tree sums, and of contexts, which it multiplies the sums by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend_of
from samplesoft._device.select import on_device
from samplesoft.feature_maps import FeatureMap
from samplesoft.samplers.base import Rows

Transform = Callable[[Rows], NDArray[Any]]


class Features:
    """A transform with checked results; with ``transform=None`` rows are their own features.

    The number of features F, `dim`, is measured on the first of `rows` (n, d). A `FeatureMap`
    writes an array of known shape and type, so its results are not checked.
    """

    def __init__(self, transform: Transform | None, rows: Rows) -> None:
        self._transform = transform
        self.dim = 0  # not known before the first features
        self.dim = rows.shape[1] if transform is None else int(self._checked(rows[:1]).shape[1])

    def __call__(self, rows: Rows) -> Rows:
        """Return the features (k, F) of `rows` (k, d), in their dtype."""
        if self._transform is None:
            return rows
        if not isinstance(self._transform, FeatureMap):
            return self._checked(rows)
        features: Rows = backend_of(rows).empty((rows.shape[0], self.dim), rows.dtype)
        with np.errstate(over="ignore"):
            self._transform._write(rows, features)
        return features

    def _checked(self, rows: Rows) -> Rows:
        assert self._transform is not None
        num_rows = rows.shape[0]
        on_gpu = on_device(rows)
        with np.errstate(over="ignore"):
            features: Any = self._transform(rows)
            if on_gpu and not on_device(features):
                raise TypeError(
                    "`transform` must return an array on the GPU with device='cuda', got "
                    f"{type(features).__name__}; make the feature map with device='cuda'."
                )
            features = backend_of(rows).viewed(features)
            expected = num_rows, self.dim or max(1, features.shape[1] if features.ndim == 2 else 1)
            # features of another dtype are converted on the CPU and refused on the GPU
            dtype_fits = features.dtype == rows.dtype if on_gpu else features.dtype.kind in "biuf"
            if features.shape != expected or not dtype_fits:
                raise ValueError(
                    f"`transform` must give real features of shape {expected} for {num_rows} rows"
                    f"{f', in {rows.dtype}' if on_gpu else ''}, got {features.dtype} of shape "
                    f"{features.shape}."
                )
            return features if on_gpu else np.ascontiguousarray(features, rows.dtype)
