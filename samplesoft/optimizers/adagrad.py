"""Adagrad: each step is the gradient, divided by the root of the sum of all squared gradients."""

from __future__ import annotations

from math import sqrt
from typing import Any

from samplesoft._jit import njit
from samplesoft._validation import IntArray, as_nonnegative
from samplesoft.optimizers.base import Optimizer, as_epsilon
from samplesoft.optimizers.updates import Array


@njit
def adagrad_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, hyper_parameters: Any
) -> None:
    """Update the rows `ids` of `parameters` and `states` in place, by one step of Adagrad.

    A step divides the gradient by the root of the sum of all squared gradients so far, which is the
    only state. `hyper_parameters` are the learning rate, epsilon and the initial sum.
    """
    rate = hyper_parameters[0]
    epsilon = hyper_parameters[1]
    initial = hyper_parameters[2]

    for i in range(len(ids)):
        gradient = gradients[i]
        row = parameters[ids[i]]
        square = states[0][ids[i]]
        for c in range(len(row)):
            # the initial sum is not in the state, so that the state of rows without a gradient
            # stays 0
            square[c] += gradient[c] * gradient[c]
            row[c] -= rate * gradient[c] / (sqrt(initial + square[c]) + epsilon)


class Adagrad(Optimizer):
    r"""Adagrad: the step size of each entry shrinks with its past gradients.

    .. math:: s \leftarrow s + g^2, \qquad w \leftarrow w - \eta g / (\sqrt{s_0 + s} + \epsilon)

    Parameters
    ----------
    learning_rate : float
        Size of a step :math:`\eta`; finite and at least 0.
    epsilon : float
        Added to the root, so that first steps are finite, :math:`\epsilon`; at least 1e-37.
    initial_accumulator : float
        Sum of squares before the first gradient, :math:`s_0`; finite and at least 0. TensorFlow
        uses 0.1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    The state is :math:`s` without :math:`s_0`, so that rows without a gradient stay 0.

    References
    ----------
    .. [1] J. Duchi, E. Hazan and Y. Singer, "Adaptive Subgradient Methods for Online Learning and
       Stochastic Optimization", JMLR 12, 2011, figure 1 with diagonal matrices.

    Examples
    --------
    >>> import numpy as np
    >>> parameters, optimizer = {"w": np.zeros(2)}, Adagrad(1.0)
    >>> optimizer.step(parameters, {"w": np.array([100.0, -0.1])})
    >>> parameters["w"].round(6)
    array([-1.,  1.])
    """

    _kernel = staticmethod(adagrad_rows)
    _state_names = ("sum_of_squares",)
    squares = True

    def __init__(
        self, learning_rate: float, epsilon: float = 1e-10, initial_accumulator: float = 0.0
    ) -> None:
        super().__init__(learning_rate)
        self.epsilon = as_epsilon("epsilon", epsilon)
        self.initial_accumulator = as_nonnegative("initial_accumulator", initial_accumulator)

    def _step_parameters(self) -> tuple[float, ...]:
        return self.learning_rate, self.epsilon, self.initial_accumulator
