"""A sampler that leaves the work to an engine, of which there may be one for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.samplers.base import Sampler
from samplesoft.samplers.draw import Draw, Rows


class EngineSampler(Sampler):
    """The hooks of `Sampler`, each the method of that name of `_engine`, which a subclass makes."""

    _engine: Any

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        draw: Draw = self._engine.sample(h, m, exclude, key)
        return draw

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q: FloatArray = self._engine.log_prob(h, ids, exclude)
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        probs: FloatArray = self._engine.probs(h, exclude)
        return probs

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        commit: Callable[[], None] = self._engine.prepare(ids, rows)
        return commit
