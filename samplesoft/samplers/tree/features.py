"""The feature map of a kernel tree, applied to class vectors and to contexts."""

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
    """A feature map from rows (k, d) to features (k, F), with checks of the user's `transform`.

    With ``transform=None`` the features are the rows themselves. The attribute `dim` is the number
    of features F, measured on the first of `rows` (n, d). Results of a `FeatureMap` are not
    checked, because their shape and dtype are known.
    """

    def __init__(self, transform: Transform | None, rows: Rows) -> None:
        self._transform = transform
        self.dim = 0  # with 0, `_checked_features` accepts any number of features
        if transform is None:
            self.dim = rows.shape[1]
        else:
            self.dim = int(self._checked_features(rows[:1]).shape[1])

    def __call__(self, rows: Rows) -> Rows:
        """Return the features (k, F) of `rows` (k, d), in the dtype of `rows`."""
        if self._transform is None:
            return rows
        if not isinstance(self._transform, FeatureMap):
            return self._checked_features(rows)

        features: Rows = backend_of(rows).empty((rows.shape[0], self.dim), rows.dtype)
        with np.errstate(over="ignore"):
            self._transform._write(rows, features)
        return features

    def _checked_features(self, rows: Rows) -> Rows:
        """Return the transform of `rows` (k, d); raise if it is not an array of real features."""
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

            # features of another dtype are converted on the CPU, and are an error on the GPU
            dtype_fits = features.dtype == rows.dtype if on_gpu else features.dtype.kind in "biuf"
            if features.shape != expected or not dtype_fits:
                raise ValueError(
                    f"`transform` must give real features of shape {expected} for {num_rows} rows"
                    f"{f', in {rows.dtype}' if on_gpu else ''}, got {features.dtype} of shape "
                    f"{features.shape}."
                )

            return features if on_gpu else np.ascontiguousarray(features, rows.dtype)
