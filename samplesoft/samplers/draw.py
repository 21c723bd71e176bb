"""What a sampler returns: the drawn classes with the probability of each draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.arrays import ARRAYS
from samplesoft._device.select import device_of, to_host, twin
from samplesoft._validation import FloatArray, IntArray

Rows = NDArray[Any]  # float32 or float64 vectors, one in each row
NO_CLASS = -1  # in arrays of classes inside the library: here there is none


@dataclass(frozen=True, eq=False)
class Draw:
    """Sampled classes and the probability of each draw.

    Parameters
    ----------
    ids : ndarray of int64, shape (B, m)
        Sampled classes; shape (1, m) for one set shared by the batch.
    log_q : ndarray of float64, shape (B, m)
        Natural logarithm of the probability that one draw gives this class, in the distribution
        that was drawn from: that without the excluded class where one was excluded.
    log_inclusion : ndarray of float64, shape (B, m), or None
        Where draws are without replacement, the natural logarithm of the probability that the
        set of m contains this class; where some classes are certain, that of how often it contains
        this class in the mean; else None.
    """

    ids: IntArray
    log_q: FloatArray
    log_inclusion: FloatArray | None = None

    @property
    def log_expected_count(self) -> FloatArray:
        """Natural logarithm of how often a draw of m contains each class in the mean.

        That is ``log(m q)`` with replacement, and else `log_inclusion`.
        """
        if self.log_inclusion is not None:
            return self.log_inclusion
        log_counts: FloatArray = twin(device_of(self.log_q), ARRAYS).plus(
            self.log_q, np.log(self.ids.shape[1])
        )
        return log_counts

    def to_host(self) -> Draw:
        """Return the same in NumPy arrays, copied if they lie on a GPU."""
        inclusion = None if self.log_inclusion is None else to_host(self.log_inclusion)
        return Draw(to_host(self.ids), to_host(self.log_q), inclusion)


def last_of_each(ids: IntArray, rows: Rows) -> tuple[IntArray, Rows]:
    """Return ids (k,) rising and each once, with the last of the rows (k, d) of each."""
    if (ids[1:] > ids[:-1]).all():  # as from a gradient
        return ids, rows
    ids, last = np.unique(ids[::-1], return_index=True)
    return ids, rows[len(rows) - 1 - last]
