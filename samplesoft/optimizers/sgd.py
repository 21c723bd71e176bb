"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from samplesoft._jit import njit
from samplesoft._validation import IntArray
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.updates import Array


@njit
def sgd_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, hyper_parameters: Any
) -> None:
    """Subtract the learning rate times the gradients from the rows `ids` of `parameters`, in place.

    `hyper_parameters` holds only the learning rate; `states` is empty.
    """
    rate = hyper_parameters[0]
    for i in range(len(ids)):
        gradient = gradients[i]
        row = parameters[ids[i]]
        for c in range(len(row)):
            row[c] -= rate * gradient[c]


class SGD(Optimizer):
    r"""Stochastic gradient descent: :math:`w \leftarrow w - \eta g`.

    Parameters
    ----------
    learning_rate : float
        Size of a step :math:`\eta`; finite and at least 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] H. Robbins and S. Monro, "A Stochastic Approximation Method", Annals of Mathematical
       Statistics 22, 1951.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.losses.base import SparseRows
    >>> parameters = {"bias": np.zeros(4)}
    >>> SGD(0.5).step(parameters, {"bias": SparseRows(np.array([1, 3]), np.array([1.0, -2.0]))})
    >>> parameters["bias"]
    array([ 0. , -0.5,  0. ,  1. ])
    """

    _kernel = staticmethod(sgd_rows)

    def _step_parameters(self) -> tuple[float, ...]:
        return (self.learning_rate,)
