"""Gradient descent with momentum."""

from __future__ import annotations

from samplesoft._validation import as_flag, as_nonnegative
from samplesoft.kernels.models.optimizer_rows import momentum_rows
from samplesoft.models.optimizers.base import Optimizer


class Momentum(Optimizer):
    r"""Gradient descent along a decaying sum of gradients.

    .. math:: v \leftarrow \mu v + g, \qquad w \leftarrow w - \eta v

    or with Nesterov's correction :math:`w \leftarrow w - \eta (g + \mu v)`.

    Parameters
    ----------
    learning_rate : float
        Size of a step :math:`\eta`; finite and at least 0.
    momentum : float
        What remains of the sum after a step, :math:`\mu`; at least 0 and less than 1.
    nesterov : bool
        Step by the gradient and what the sum will step next time.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    As in PyTorch, the learning rate is outside of the sum :math:`v`, where the papers have it
    inside; the two are the same while it does not change. With `SparseRows`, the velocity of a row
    decays only when the row has a gradient.

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

    def _numbers(self) -> tuple[float, ...]:
        rate = self.learning_rate
        return self.momentum, *((rate, rate * self.momentum) if self.nesterov else (0.0, rate))
