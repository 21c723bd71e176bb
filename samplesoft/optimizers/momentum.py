"""Gradient descent with momentum, Polyak's or Nesterov's."""

from __future__ import annotations

from typing import Any

from samplesoft._jit import njit
from samplesoft._validation import IntArray, as_flag, as_nonnegative
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.updates import Array


@njit
def momentum_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, hyper_parameters: Any
) -> None:
    """Update the rows `ids` of `parameters` and `states` in place, by one step with momentum.

    The state is the velocity, a decaying sum of gradients. A step is a linear combination of
    gradient and velocity. `hyper_parameters` are the decay factor of the velocity, and the
    coefficients of gradient and velocity in the step.
    """
    momentum = hyper_parameters[0]
    gradient_rate = hyper_parameters[1]
    velocity_rate = hyper_parameters[2]

    for i in range(len(ids)):
        gradient = gradients[i]
        row = parameters[ids[i]]
        velocity = states[0][ids[i]]
        for c in range(len(row)):
            # Polyak's step is eta v, so gradient_rate is 0; Nesterov's step is eta g + eta mu v
            velocity[c] = momentum * velocity[c] + gradient[c]
            row[c] -= gradient_rate * gradient[c] + velocity_rate * velocity[c]


class Momentum(Optimizer):
    r"""Gradient descent along a decaying sum of gradients.

    .. math:: v \leftarrow \mu v + g, \qquad w \leftarrow w - \eta v

    or with Nesterov's correction :math:`w \leftarrow w - \eta (g + \mu v)`.

    Parameters
    ----------
    learning_rate : float
        Size of a step :math:`\eta`; finite and at least 0.
    momentum : float
        Factor :math:`\mu` by which a step multiplies the sum; at least 0 and less than 1.
    nesterov : bool
        Use Nesterov's correction, a look-ahead by one step.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    As in PyTorch, the learning rate multiplies the sum :math:`v`. In the papers it is inside the
    sum, which is equivalent for a constant rate. With `SparseRows`, the velocity of a row decays
    only when the row has a gradient.

    References
    ----------
    .. [1] B. T. Polyak, "Some methods of speeding up the convergence of iteration methods", USSR
       Computational Mathematics and Mathematical Physics 4, 1964.
    .. [2] I. Sutskever et al., "On the importance of initialization and momentum in deep
       learning", ICML 2013, equations 1 to 4.

    Examples
    --------
    >>> import numpy as np
    >>> parameters, optimizer = {"w": np.zeros(2)}, Momentum(1.0, momentum=0.5)
    >>> for _ in range(2):
    ...     optimizer.step(parameters, {"w": np.array([1.0, 0.0])})
    >>> parameters["w"]
    array([-2.5,  0. ])
    """

    _kernel = staticmethod(momentum_rows)
    _state_names = ("velocity",)

    def __init__(
        self, learning_rate: float, momentum: float = 0.9, *, nesterov: bool = False
    ) -> None:
        super().__init__(learning_rate)
        self.momentum = as_nonnegative("momentum", momentum, below=1.0)
        self.nesterov = as_flag("nesterov", nesterov)

    def _step_parameters(self) -> tuple[float, ...]:
        rate = self.learning_rate
        return self.momentum, *((rate, rate * self.momentum) if self.nesterov else (0.0, rate))
