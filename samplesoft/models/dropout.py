"""Dropout whose masks depend on their key and place, never on the thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._limits import quiet
from samplesoft._random import as_key, uniform_block
from samplesoft._validation import as_flag, as_nonnegative, require_plain
from samplesoft.models.module import ParameterGradients, Parameters, check_array, check_finite


class Dropout:
    """Set each number to 0 with probability `rate`, and divide the others by ``1 - rate``.

    Parameters
    ----------
    rate : float
        Probability in [0, 1).

    Attributes
    ----------
    rate : float
        As above.
    parameters : dict
        Empty.

    Raises
    ------
    TypeError, ValueError
        If `rate` is not a number in [0, 1).

    References
    ----------
    Srivastava et al. (2014), Dropout: A Simple Way to Prevent Neural Networks from Overfitting,
    section 10, for dividing during training.

    Examples
    --------
    >>> import numpy as np
    >>> y, cache = Dropout(0.5).forward(np.ones((2, 4)), rng=0, training=True)
    >>> y
    array([[2., 0., 2., 0.],
           [2., 2., 2., 2.]])
    """

    def __init__(self, rate: float) -> None:
        self.rate = as_nonnegative("rate", rate, below=1.0)
        self.parameters: Parameters = {}

    def forward(
        self,
        x: NDArray[Any],
        *,
        rng: int | np.random.Generator | None = None,
        training: bool = False,
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return `x` with some numbers dropped, or `x` itself outside training.

        Parameters
        ----------
        x : ndarray of float32 or float64, shape (..., d)
            Input.
        rng : int or numpy.random.Generator or None
            Source of the mask: the same seed gives the same mask.
        training : bool
            Whether to drop.

        Returns
        -------
        y : ndarray, shape (..., d)
            Output.
        cache : ndarray, shape (..., d), or None
            The factor of each number; None where there is none.

        Raises
        ------
        TypeError, ValueError
            If `x` or `rng` is of another type, or what goes on is not finite.
        """
        if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float64):
            kind = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"`x` must be an array of float32 or float64, got {kind}.")
        require_plain("x", x)
        if not as_flag("training", training) or self.rate == 0.0:
            check_finite("x", x)
            return x, None
        width = x.shape[-1] if x.ndim else 1
        uniforms = uniform_block(as_key(rng), x.size // max(width, 1), width).reshape(x.shape)
        factors = (uniforms >= self.rate) * x.dtype.type(1.0 / (1.0 - self.rate))
        with quiet():
            y = x * factors
        check_finite("x", y)
        return y, factors

    def backward(
        self, cache: NDArray[Any] | None, dy: NDArray[Any]
    ) -> tuple[NDArray[Any], ParameterGradients]:
        """Return the derivatives in the input, and no gradients."""
        if cache is None:
            return dy, {}
        check_array("dy", dy, cache.shape, cache.dtype)
        return dy * cache, {}
