"""Features of classes and of contexts: what a tree sums up, and what it multiplies them by."""

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
    """A transform whose results are checked; None for rows that are features themselves.

    The first of `rows` (n, d) tells F, which is `dim`. A `FeatureMap` writes what it should, and
    need not check rows that have been checked.
    """

    def __init__(self, transform: Transform | None, rows: Rows) -> None:
        self._transform = transform
        self.dim = 0  # not known before the first features
        self.dim = rows.shape[1] if transform is None else int(self._checked(rows[:1]).shape[1])

    def __call__(self, rows: Rows) -> Rows:
        """Return features (k, F) of the type of `rows` (k, d)."""
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
        num = rows.shape[0]
        there = on_device(rows)
        with np.errstate(over="ignore"):
            features: Any = self._transform(rows)
            if there and not on_device(features):
                raise TypeError(
                    "`transform` must return an array on the GPU with device='cuda', got "
                    f"{type(features).__name__}; make the feature map with device='cuda'."
                )
            features = backend_of(rows).viewed(features)
            wanted = num, self.dim or max(1, features.shape[1] if features.ndim == 2 else 1)
            # only on the processor are they turned into the type of the rows
            fits = features.dtype == rows.dtype if there else features.dtype.kind in "biuf"
            if features.shape != wanted or not fits:
                raise ValueError(
                    f"`transform` must give real features of shape {wanted} for {num} rows"
                    f"{f', in {rows.dtype}' if there else ''}, got {features.dtype} of shape "
                    f"{features.shape}."
                )
            return features if there else np.ascontiguousarray(features, rows.dtype)
