"""Samplers on a CUDA device whose distribution is the same for every context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from samplesoft._cuda import empty, first_found, launch_threads, to_device
from samplesoft._device.arrays_cuda import repeat_row
from samplesoft.kernels.arrays.elementwise_cuda import exponentiate
from samplesoft.kernels.samplers import static_cuda
from samplesoft.samplers.base import Draw


class CudaStatic(ABC):
    """The distribution of a `StaticSampler`, for checked arguments that lie on the device."""

    def __init__(self, sampler: Any) -> None:
        self._num_classes = sampler.num_classes

    def sample(self, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Return draws (B, m), with replacement."""
        self._require_left(exclude)
        ids = empty((exclude.shape[0], m), np.int64)
        self._draw(key, exclude, ids)
        return Draw(ids, self._log_q(ids, exclude))

    def log_prob(self, ids: Any, exclude: Any) -> Any:
        """Return log-probabilities (B, k)."""
        self._require_left(exclude)
        return self._log_q(ids, exclude)

    def probs(self, exclude: Any) -> Any:
        """Return probabilities (B, n)."""
        every = repeat_row(to_device(np.arange(self._num_classes)[None]), exclude.shape[0])
        q = self.log_prob(every, exclude)
        launch_threads(exponentiate, q.size, q.reshape(-1))
        return q

    def _require_left(self, exclude: Any) -> None:  # noqa: B027
        """Raise where an excluded class is the only one."""

    @abstractmethod
    def _draw(self, key: np.uint64, exclude: Any, ids: Any) -> None: ...

    @abstractmethod
    def _log_q(self, ids: Any, exclude: Any) -> Any: ...


class CudaUniform(CudaStatic):
    """Equally likely classes."""

    def _draw(self, key: np.uint64, exclude: Any, ids: Any) -> None:
        launch_threads(static_cuda.uniform_rows, ids.size, key, self._num_classes, exclude, ids)

    def _log_q(self, ids: Any, exclude: Any) -> Any:
        out, n = empty(ids.shape, np.float64), self._num_classes
        log_left = float(np.log(max(1, n - 1)) - np.log(n))
        asked = float(-np.log(n)), log_left, ids, exclude, out
        launch_threads(static_cuda.log_uniform, ids.size, *asked)
        return out


class CudaWeighted(CudaStatic):
    """Classes by weight: from the alias table of all, or from that of all but the heaviest."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)
        every, self._top = np.arange(sampler.num_classes), sampler._top
        self._one_alone = bool(sampler._positive.sum() == 1)  # who cannot be excluded
        if self._one_alone:
            log_left = np.insert(sampler._log_left(every[every != self._top]), self._top, -np.inf)
            tables = sampler._table, sampler._table
        else:
            log_left = sampler._log_left(every)
            tables = sampler._table, sampler._others[0]
        self._tables = tuple(tuple(map(to_device, table)) for table in tables)
        self._every_log_q, self._log_left = to_device(sampler._log_q(every)), to_device(log_left)

    def _require_left(self, exclude: Any) -> None:
        if not self._one_alone:
            return
        search = static_cuda.find_nothing_left
        size = exclude.shape[0]
        if first_found(launch_threads, search, size, self._log_left, exclude) is not None:
            raise ValueError(
                f"`exclude` must leave a class to draw, got {self._top}, the only one with a "
                "weight greater than 0; leave `exclude` out or give another class a weight."
            )

    def _draw(self, key: np.uint64, exclude: Any, ids: Any) -> None:
        drawn = key, self._tables, self._top, exclude, ids
        launch_threads(static_cuda.alias_rows, ids.size, *drawn)

    def _log_q(self, ids: Any, exclude: Any) -> Any:
        out = empty(ids.shape, np.float64)
        asked = self._every_log_q, self._log_left, ids, exclude, out
        launch_threads(static_cuda.log_weighted, ids.size, *asked)
        return out
