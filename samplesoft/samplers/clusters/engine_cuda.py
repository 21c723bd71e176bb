"""The cells of a cluster sampler on a CUDA device: what it does in another way."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import empty, to_device
from samplesoft._device import cuda
from samplesoft._device.select import to_host
from samplesoft._jit import chunks
from samplesoft.kernels.lanes_cuda import run_on_warps
from samplesoft.samplers.clusters import descent
from samplesoft.samplers.clusters.descent import Paths, Room
from samplesoft.samplers.clusters.engine import HostClusters

_NUMBERS = 1 << 26  # weights of children that are held at a time


class CudaClusters(HostClusters):
    """The twin of `HostClusters`: classes are divided on the processor, and drawn here."""

    _arrays = cuda

    def _descend(self, contexts: Any, known: Any, paths: Paths) -> None:
        # each path is a visit of its own, and has a warp
        b, k = np.indices(paths.at.shape).reshape(2, -1)
        visits, num = to_device(np.stack([b, k, k + 1], axis=1)), paths.at.size
        room = self._room(num)
        for level, children in enumerate(known, start=-1):
            asked = self._tree, contexts, level, visits, to_device(children), paths, room
            run_on_warps(descent.step, num, *asked)

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return the probabilities (B, n) of all classes."""
        n, probs = len(self._places), []
        # classes at a time for which one context has room
        for part in chunks(n, self._contexts_at_a_time(1, 1)):
            ids = np.broadcast_to(np.arange(n)[part], (h.shape[0], part.stop - part.start))
            probs.append(np.exp(to_host(self.log_prob(h, ids, exclude))))
        return to_device(np.concatenate(probs, axis=1))

    def _contexts_at_a_time(self, k: int, batch: int) -> int:
        return max(1, _NUMBERS // (2 * k * self._width))

    def _room(self, num: int) -> Room:
        # in float64, whatever the vectors are: weights are only read here
        logits, weights = (empty((num, self._width), np.float64) for _ in range(2))
        return Room(logits, weights, empty((num, 2), np.float64))
