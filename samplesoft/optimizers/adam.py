"""Adam: each step follows a moving average of gradients, scaled by an average of their squares."""

from __future__ import annotations

from math import sqrt
from typing import Any

from samplesoft._jit import njit
from samplesoft._validation import IntArray, as_nonnegative
from samplesoft.optimizers.base import Optimizer, as_epsilon
from samplesoft.optimizers.updates import Array


@njit
def adam_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, hyper_parameters: Any
) -> None:
    """Update the rows `ids` of `parameters` and `states` in place, by one step of Adam.

    `states` are the moving averages of gradients and of squared gradients. `hyper_parameters` are

    - the learning rate, divided by ``1 - beta1**t``, the bias correction of the first average;
    - ``1 - beta1`` and ``1 - beta2``, the weights of a new gradient in the two averages;
    - ``1 / sqrt(1 - beta2**t)``, the bias correction of the root of the second average;
    - epsilon.
    """
    rate = hyper_parameters[0]
    new_first = hyper_parameters[1]
    new_second = hyper_parameters[2]
    correction = hyper_parameters[3]
    epsilon = hyper_parameters[4]

    for i in range(len(ids)):
        gradient = gradients[i]
        row = parameters[ids[i]]
        mean = states[0][ids[i]]
        square = states[1][ids[i]]
        for c in range(len(row)):
            g = gradient[c]
            # For beta1 = 0, new_first is 1, and the old mean vanishes exactly. In the shorter
            # formula mean + new_first * (g - mean), a rounding error of the old mean would remain.
            mean[c] = (mean[c] - new_first * mean[c]) + new_first * g
            square[c] = (square[c] - new_second * square[c]) + new_second * g * g
            row[c] -= rate * mean[c] / (correction * sqrt(square[c]) + epsilon)


class Adam(Optimizer):
    r"""Adam: a step is the mean of gradients, divided by the root of the mean of their squares.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        w \leftarrow w - \eta \hat m / (\sqrt{\hat v} + \epsilon)

    with :math:`\hat m = m / (1 - \beta_1^t)` and :math:`\hat v = v / (1 - \beta_2^t)` after t
    steps.

    Parameters
    ----------
    learning_rate : float
        Size of a step :math:`\eta`; finite and at least 0.
    beta1, beta2 : float
        Factors by which a step multiplies the means of gradients and of squares; at least 0 and
        less than 1.
    epsilon : float
        Added to the root, so that steps with small gradients are finite, :math:`\epsilon`; at
        least 1e-37.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    With `SparseRows`, the means of a row change only when the row has a gradient, and t counts all
    steps. As in the paper, :math:`\epsilon` is added after the correction of :math:`v`;
    ``torch.optim.SparseAdam`` adds it before.

    References
    ----------
    .. [1] D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015,
       algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> parameters, optimizer = {"w": np.zeros(2)}, Adam(0.1)
    >>> for _ in range(3):
    ...     optimizer.step(parameters, {"w": np.array([100.0, -0.1])})
    >>> parameters["w"].round(6)
    array([-0.3,  0.3])
    """

    _kernel = staticmethod(adam_rows)
    _state_names = ("first_moment", "second_moment")
    squares = True

    def __init__(
        self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        super().__init__(learning_rate)
        self.beta1 = as_nonnegative("beta1", beta1, below=1.0)
        self.beta2 = as_nonnegative("beta2", beta2, below=1.0)
        self.epsilon = as_epsilon("epsilon", epsilon)

    def _step_parameters(self) -> tuple[float, ...]:
        # the bias corrections of algorithm 1, which are the same for all entries
        rate = self.learning_rate / (1.0 - self.beta1**self.steps)
        correction = 1.0 / sqrt(1.0 - self.beta2**self.steps)
        return rate, 1.0 - self.beta1, 1.0 - self.beta2, correction, self.epsilon
