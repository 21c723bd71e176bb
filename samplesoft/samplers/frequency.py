"""Samplers by how frequent classes are: Zipf's law, and counts.

A new one makes weights for a `WeightedSampler`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import to_host
from samplesoft._memory import require_room
from samplesoft._validation import FloatArray, as_count, as_counts, as_positive, as_real_array
from samplesoft.samplers.static import WeightedSampler


class LogUniformSampler(WeightedSampler):
    """Draw class k with probability ``log((k + 2) / (k + 1)) / log(n + 1)``.

    Zipf's law for classes numbered by falling frequency, as TensorFlow's
    ``log_uniform_candidate_sampler`` has it.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    replace : bool
        False to draw without replacement.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many classes do not fit.

    Examples
    --------
    >>> LogUniformSampler(3).probs(None).round(3)
    array([[0.5  , 0.292, 0.208]])
    """

    def __init__(self, num_classes: int, *, replace: bool = True, device: str = "cpu") -> None:
        n = as_count("num_classes", num_classes)
        require_room("num_classes", n, 40.0 * n)  # an alias table is made of them
        super().__init__(log_uniform_weights(n), replace=replace, device=device)


class UnigramSampler(WeightedSampler):
    """Draw each class in proportion to a power of its count.

    A class that never occurs counts as half of the rarest that does.

    Parameters
    ----------
    counts : array_like, shape (n,)
        How often each class occurs, in any unit: at least 0, not all 0.
    power : float
        Distortion: 1 for the counts as they are, near 0 for uniform.
    replace : bool
        False to draw without replacement.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    Mikolov et al. (2013), "Distributed representations of words and phrases and their
    compositionality", section 2.2: the power 0.75.

    Examples
    --------
    >>> UnigramSampler([16, 81, 256]).probs(None).round(3)
    array([[0.081, 0.273, 0.646]])
    """

    def __init__(
        self, counts: ArrayLike, *, power: float = 0.75, replace: bool = True, device: str = "cpu"
    ) -> None:
        checked = as_real_array("counts", to_host(counts), (1,))
        checked = as_counts("counts", checked, len(checked))
        weights = unigram_weights(checked, as_positive("power", power))
        super().__init__(weights, replace=replace, device=device)


def log_uniform_weights(num_classes: int) -> FloatArray:
    """Return Zipf's law (n,), ``log((k + 2) / (k + 1))`` for class k, of sum ``log(n + 1)``."""
    return np.log1p(1.0 / np.arange(1.0, num_classes + 1.0))


def unigram_weights(counts: FloatArray, power: float) -> FloatArray:
    """Return the counts (n,) to a power, divided by the greatest.

    A class that never occurs counts as half of the rarest that does, so that it can be drawn.
    """
    counts = np.where(counts > 0.0, counts, 0.5 * counts[counts > 0.0].min())
    with np.errstate(over="ignore"):  # the power of a ratio below 1 may be 0
        weights: FloatArray = np.exp(power * (np.log(counts) - np.log(counts.max())))
    return weights
