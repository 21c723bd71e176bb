"""Optimizers that change named parameters in place, all rows of them or a few.

A kernel takes a step over the rows that have a gradient in one pass. It takes ``ids`` (k,), rows
that ascend, each once; `gradients` (k, d); `parameters` (n, d) and a tuple of states of the same
shape, which change in place; and a tuple of numbers, in the type of the parameters, so that float32
stays float32. A gradient of all of a parameter is one long row, whatever its shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import Backend, backend, cpu
from samplesoft._device.select import device_of, on_device, to_host
from samplesoft._jit import njit
from samplesoft._validation import (
    IntArray,
    as_array,
    as_choice,
    as_flag,
    as_named_arrays,
    as_nonnegative,
    require_mapping,
    require_plain,
    writable,
)
from samplesoft.losses.base import SparseRows

Array = NDArray[Any]

LARGEST = {np.dtype(t): float(np.finfo(t).max) for t in (np.float32, np.float64)}
_SMALLEST = 1e-37  # a number of float32 with all its digits
_INT64 = np.dtype(np.int64)
_FIRST = np.zeros(1, np.int64)  # the only row of a table that is one row
_ROOM = 2.0**-10  # a million of the largest squares have a finite sum


def largest_gradient(dtype: np.dtype[Any], squares: bool) -> Any:
    """Return how large a number of a gradient may be, of which squares may be added up."""
    limit = LARGEST[dtype]
    # an infinite sum of squares would end all learning of its entry, without a word
    return dtype.type(limit**0.5 * _ROOM if squares else limit)


# of a type as of the numbers that kernels compare with it, and by whether squares are added up
_LIMITS = {
    squares: {dtype: largest_gradient(dtype, squares) for dtype in LARGEST}
    for squares in (False, True)
}


@dataclass(slots=True, eq=False)
class Update:
    """A parameter and its gradient, both C-contiguous and of one type, as kernels take them."""

    name: str
    parameter: Array
    arrays: Backend  # where the parameter lies
    table: Array  # (n, d): the parameter, or (1, parameter.size) where all of it has a gradient
    ids: IntArray  # (k,): the rows of the table that have a gradient
    rows: Array  # (k, d): the gradient
    states: tuple[Array, ...] = ()  # of the shape of the parameter


class Optimizer(ABC):
    """Changes parameters in place by their gradients, of all rows or of a few.

    A new optimizer is a kernel, a subclass with the names of its state and the numbers of a step,
    and a line in `OPTIMIZERS`.

    Parameters
    ----------
    learning_rate : float
        Size of a step; finite and at least 0.

    Attributes
    ----------
    steps : int
        Steps taken.
    schedule : callable or None
        Returns the factor of the learning rate in a step, counted from 1. It is set for a time, as
        `samplesoft.training.fit` does, and is no part of a copy.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    A gradient that is `SparseRows` touches only its rows, of the parameter and of the state: the
    others keep their values and their state, which does not decay meanwhile, as in LazyAdam of
    TensorFlow Addons and ``torch.optim.SparseAdam``. Where it has all rows, the result equals the
    dense one to the last bit. The cost of a step does not depend on how many rows there are
    besides; state is made of zeros when a parameter has its first gradient, with a shape and a
    type like the parameter.
    """

    # the names stand before those of the parameters in a saved state: "velocity/w"
    _state_names: ClassVar[tuple[str, ...]] = ()
    squares: ClassVar[bool] = False  # whether the kernel adds up squares of gradients
    _kernel: ClassVar[Callable[..., None]]
    schedule: Callable[[int], float] | None = None

    def __init__(self, learning_rate: float) -> None:
        self.steps = 0
        self.learning_rate = learning_rate
        self._state: dict[str, tuple[Array, ...]] = {}

    @abstractmethod
    def _numbers(self) -> tuple[float, ...]:
        """Return the numbers that the kernel takes, for the step that `steps` counts."""

    @property
    def learning_rate(self) -> float:
        """Size of the last step: what has been set, times the factor of `schedule` for that step.

        Before the first step it is that of the first; without a schedule the factor is 1. What is
        set is the learning rate before the schedule.
        """
        if self.schedule is None:
            return self._learning_rate
        step = max(self.steps, 1)
        factor = self.schedule(step)
        if not 0.0 <= factor < inf:
            raise ValueError(
                "`schedule` must return a finite factor of at least 0 for each step, got "
                f"{factor} for step {step}."
            )
        return self._learning_rate * factor

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = as_nonnegative("learning_rate", value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "schedule": None}

    def step(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array | SparseRows]
    ) -> None:
        """Change parameters in place.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            C-contiguous float32 or float64. Those without a gradient stay as they are. Those on a
            GPU change there.
        gradients : mapping of str to ndarray or SparseRows
            By the same names: of the shape of the parameter, or some of its rows.

        Raises
        ------
        TypeError, ValueError
            If a name, a shape, a type or a row number is wrong, or a gradient is not finite, nor,
            on the processor, a row that it changes; no parameter and no state has changed then.
        """
        require_mapping("parameters", parameters)
        require_mapping("gradients", gradients)
        # everything is read and checked before the first number changes, so that an error in the
        # second parameter leaves the first as it was
        updates: dict[str, Update] = {}
        for name in gradients:
            if name not in parameters:
                raise ValueError(
                    f"`gradients` has {name!r}, which `parameters` has not; it has "
                    f"{', '.join(map(repr, parameters))}."
                )
            update = _as_update(name, parameters[name], gradients[name], self.squares)
            if self._state_names:
                update.states = self._states_of(update)
            updates[name] = update
        # Adam's corrections need the number of this step; it is taken back where it is refused
        numbers = self.next_numbers()
        largest = max(numbers)
        for name in updates:
            dtype = updates[name].table.dtype
            # a rate beyond float32 would become infinity on its way into the kernel; NaN fails too
            if not largest <= LARGEST[dtype]:
                self.steps -= 1
                raise ValueError(
                    f"`learning_rate` must be within the range of {dtype} for {name!r}, got "
                    f"{self.learning_rate}; lower it."
                )
        for name in updates:
            update = updates[name]
            table, states = update.table, update.states
            self._state[name] = states
            if self._state_names:
                states = tuple([state.reshape(table.shape) for state in states])
            # a float64 among the numbers would make all arithmetic of a float32 kernel float64
            typed = tuple(map(table.dtype.type, numbers))
            update.arrays.step_rows(self._kernel, update.ids, update.rows, table, states, typed)

    def with_states(self, parameters: Mapping[str, Array]) -> dict[str, tuple[Array, ...]]:
        """Return each parameter and its states, for callers that take steps with the kernel."""
        for name, array in parameters.items():
            if name not in self._state:
                self._state[name] = tuple(np.zeros_like(array) for _ in self._state_names)
            for state in self._state[name]:
                _require_like(name, array, state)
            self._state[name] = tuple(map(writable, self._state[name]))
        return {name: (array, *self._state[name]) for name, array in parameters.items()}

    def next_numbers(self) -> tuple[float, ...]:
        """Count a step, and return the numbers that the kernel takes for it."""
        self.steps += 1
        try:
            return self._numbers()
        except BaseException:  # of a schedule
            self.steps -= 1
            raise

    def _states_of(self, update: Update) -> tuple[Array, ...]:
        """Return the states of a parameter, which can be written."""
        like, arrays = update.parameter, update.arrays
        before = self._state.get(update.name)
        if before is None:
            # at the first gradient: the state of parameters that never have one takes no room
            return tuple(arrays.placed(np.zeros(like.shape, like.dtype)) for _ in self._state_names)
        state = tuple(map(arrays.writable, before))
        for array in state:
            _require_like(update.name, like, array)
        return state

    def state(self) -> dict[str, Array]:
        """Return a copy of all that the next steps depend on, but for the settings.

        Returns
        -------
        dict of str to ndarray
            ``"steps"``, and by names such as ``"velocity/class_embeddings"`` the state of each
            parameter; fit for `numpy.savez`. An optimizer of the same settings that loads it goes
            on to the last bit as this one would.
        """
        # copies, for the arrays go on to change; from a GPU they come to the host
        state = {"steps": np.array(self.steps)}
        for parameter, arrays in self._state.items():
            for name, array in zip(self._state_names, arrays, strict=True):
                state[f"{name}/{parameter}"] = to_host(array).copy()
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned.

        Parameters
        ----------
        state : mapping of str to ndarray
            Of an optimizer of this class.

        Raises
        ------
        TypeError, ValueError
            If a name is missing or unknown, or arrays are malformed; nothing has changed then.
        """
        state = as_named_arrays("state", state)
        steps = as_array("state['steps']", state.get("steps"))
        if steps.ndim != 0 or steps.dtype.kind not in "iu" or steps < 0:
            raise ValueError(f"`state` must have `steps`, an integer of at least 0, got {steps!r}.")
        # names of parameters may hold dots, and slashes too, but names of states do not
        parameters = [name.split("/", 1)[-1] for name in state if name != "steps"]
        # each parameter has all arrays of its state, or none
        wanted = {f"{name}/{key}" for key in parameters for name in self._state_names} | {"steps"}
        if wanted != set(state):
            raise ValueError(
                f"`state` of {type(self).__name__} must have {', '.join(sorted(wanted))}; got "
                f"{', '.join(sorted(state))}; load the state of an optimizer of the same class."
            )
        # made before anything is assigned: a state that is refused changes nothing
        loaded = {
            key: tuple(_as_state(f"{name}/{key}", state) for name in self._state_names)
            for key in parameters
        }
        self.steps, self._state = int(steps), loaded


def _require_like(name: str, parameter: Array, state: Array) -> None:
    """Raise unless the state of a parameter is one of its shape and its type."""
    if state.shape != parameter.shape or state.dtype != parameter.dtype:
        raise ValueError(
            f"`parameters` has {name!r} of shape {parameter.shape} and {parameter.dtype}, but its "
            f"state is of shape {state.shape} and {state.dtype}; make a new optimizer for new "
            "parameters."
        )


@njit
def sgd_rows(ids: IntArray, gradients: Array, parameters: Array, states: Any, numbers: Any) -> None:
    """Step against the gradient."""
    rate = numbers[0]
    for i in range(len(ids)):
        gradient, row = gradients[i], parameters[ids[i]]
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

    def _numbers(self) -> tuple[float, ...]:
        return (self.learning_rate,)


@njit
def momentum_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, numbers: Any
) -> None:
    """Add to a sum of gradients that decays by `momentum`; step against a mixture of the two."""
    momentum, of_gradient, of_velocity = numbers[0], numbers[1], numbers[2]
    for i in range(len(ids)):
        gradient, row = gradients[i], parameters[ids[i]]
        velocity = states[0][ids[i]]
        for c in range(len(row)):
            # Nesterov's step is by g + mu v, the plain one by v: two factors say which
            velocity[c] = momentum * velocity[c] + gradient[c]
            row[c] -= of_gradient * gradient[c] + of_velocity * velocity[c]


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


@njit
def adagrad_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, numbers: Any
) -> None:
    """Step by the gradient over the root of `initial` and the squares of all gradients so far."""
    rate, epsilon, initial = numbers[0], numbers[1], numbers[2]
    for i in range(len(ids)):
        gradient, row = gradients[i], parameters[ids[i]]
        square = states[0][ids[i]]
        for c in range(len(row)):
            # the initial sum is added in the root alone: rows that are never touched stay zeros
            square[c] += gradient[c] * gradient[c]
            row[c] -= rate * gradient[c] / (sqrt(initial + square[c]) + epsilon)


class Adagrad(Optimizer):
    r"""Adagrad: each entry has a step of its own, which shrinks with its gradients so far.

    .. math:: s \leftarrow s + g^2, \qquad w \leftarrow w - \eta g / (\sqrt{s_0 + s} + \epsilon)

    Parameters
    ----------
    learning_rate : float
        Size of a step :math:`\eta`; finite and at least 0.
    epsilon : float
        What keeps the first steps finite, :math:`\epsilon`; at least 1e-37.
    initial_accumulator : float
        Sum of squares before the first gradient, :math:`s_0`; finite and at least 0. TensorFlow
        takes 0.1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    The state holds :math:`s` without :math:`s_0`, so that rows without a gradient stay zeros.

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
        self.epsilon = _as_epsilon("epsilon", epsilon)
        self.initial_accumulator = as_nonnegative("initial_accumulator", initial_accumulator)

    def _numbers(self) -> tuple[float, ...]:
        return self.learning_rate, self.epsilon, self.initial_accumulator


@njit
def adam_rows(
    ids: IntArray, gradients: Array, parameters: Array, states: Any, numbers: Any
) -> None:
    """Step by the mean of gradients over the root of the mean of their squares.

    `new_first` and `new_second` are what a new gradient weighs in the means, 1 - beta; `rate` and
    `correction` hold the corrections of the bias of the first mean and of the root of the second.
    """
    rate, new_first, new_second = numbers[0], numbers[1], numbers[2]
    correction, epsilon = numbers[3], numbers[4]
    for i in range(len(ids)):
        gradient, row = gradients[i], parameters[ids[i]]
        mean, square = states[0][ids[i]], states[1][ids[i]]
        for c in range(len(row)):
            g = gradient[c]
            # in this order, and not as a step towards g, a beta of 0 leaves nothing of the old
            mean[c] = (mean[c] - new_first * mean[c]) + new_first * g
            square[c] = (square[c] - new_second * square[c]) + new_second * g * g
            row[c] -= rate * mean[c] / (correction * sqrt(square[c]) + epsilon)


class Adam(Optimizer):
    r"""Adam: steps by the mean of gradients, relative to the root of the mean of their squares.

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
        What remains of the means after a step; at least 0 and less than 1.
    epsilon : float
        What keeps steps by small gradients finite, :math:`\epsilon`; at least 1e-37.

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
        self.epsilon = _as_epsilon("epsilon", epsilon)

    def _numbers(self) -> tuple[float, ...]:
        # both corrections of the bias are computed once for a step, not for each number: the last
        # lines of algorithm 1, with epsilon added to the corrected root
        rate = self.learning_rate / (1.0 - self.beta1**self.steps)
        correction = 1.0 / sqrt(1.0 - self.beta2**self.steps)
        return rate, 1.0 - self.beta1, 1.0 - self.beta2, correction, self.epsilon


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
}


def make_optimizer(name: str, learning_rate: float, **options: Any) -> Optimizer:
    """Make an optimizer by its name in `OPTIMIZERS`.

    Parameters
    ----------
    name : str
        A key of `OPTIMIZERS`.
    learning_rate : float
        Size of a step; finite and at least 0.
    **options : float or bool
        What else its class takes.

    Returns
    -------
    Optimizer
        A new optimizer.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or its class refuses the learning rate or an option.

    Examples
    --------
    >>> make_optimizer("momentum", 0.1, nesterov=True).nesterov
    True
    """
    return OPTIMIZERS[as_choice("name", name, OPTIMIZERS)](learning_rate, **options)


def _as_epsilon(name: str, value: Any) -> float:
    """Return `value` as a float that is greater than 0 in float32 too."""
    number = as_nonnegative(name, value)
    if number < _SMALLEST:
        raise ValueError(f"`{name}` must be at least {_SMALLEST}, got {value}; 1e-8 is usual.")
    return number


def _as_state(name: str, state: Mapping[str, Array]) -> Array:
    array = np.array(as_array(f"state[{name!r}]", state[name]), order="C")
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(
            f"`state` must hold finite floating-point numbers, got {name!r} of {array.dtype} with "
            f"{np.ravel(array)[:3]}...; save it again."
        )
    return array


def _as_update(name: str, parameter: Any, gradient: Any, squares: bool) -> Update:
    """Return the update of a parameter; the gradient, or its `squares` too, must be finite."""
    # as in most steps, a matrix and rows of its gradient, which are computed with as they are
    if (
        type(gradient) is SparseRows
        and type(parameter) is type(gradient.ids) is type(gradient.rows) is np.ndarray
        and parameter.dtype in LARGEST
        and parameter.ndim == 2
        and parameter.flags.carray
        and gradient.ids.dtype == _INT64
        and gradient.ids.ndim == 1
        and gradient.ids.flags.c_contiguous
        and gradient.rows.dtype == parameter.dtype
        and gradient.rows.shape == (gradient.ids.shape[0], parameter.shape[1])
        and gradient.rows.flags.c_contiguous
    ):
        update = Update(
            name=name,
            parameter=parameter,
            arrays=cpu,
            table=parameter,
            ids=gradient.ids,
            rows=gradient.rows,
        )
    else:
        update = _converted(name, parameter, gradient)
    table = update.table
    limit, largest = _LIMITS[squares][table.dtype], _LIMITS[False][table.dtype]
    if not update.arrays.can_step(update.ids, update.rows, table, limit, largest):
        raise _wrong_step(update, gradient, float(limit))
    return update


def _converted(name: str, parameter: Any, gradient: Any) -> Update:
    """Return the update of a parameter on any device, by a gradient of any form."""
    device = device_of(parameter)
    arrays, there = backend(device), device != "cpu"
    if not there:
        check_changeable("parameters", name, parameter)
    parameter = arrays.viewed(parameter)
    if there and not (parameter.dtype in LARGEST and parameter.flags["C_CONTIGUOUS"]):
        raise TypeError(
            f"`parameters` must hold C-contiguous arrays of float32 or float64, got "
            f"{parameter.dtype} with strides {parameter.strides} for {name!r}."
        )
    whole = tuple(parameter.shape)
    if isinstance(gradient, SparseRows):
        some, values = gradient.ids, gradient.rows
        if not (there and on_device(some)):
            some = _as_row_ids(name, some, whole)
        # of any integer type, as one type spares the kernels a version for each
        ids = arrays.typed(f"gradients[{name!r}]", some, _INT64)
        shape = (ids.shape[0], *whole[1:])
        table = parameter.reshape(whole[0], prod(whole[1:]))
    else:
        values, shape = gradient, whole
        ids = arrays.placed(_FIRST)
        table = parameter.reshape(1, prod(whole))
    if not (there and on_device(values)):
        _require_floats(name, values)
    # a gradient in float64 for a parameter in float32 is taken, and cast once:
    # what is too large for float32 becomes infinite, and is refused next
    rows = arrays.typed(f"gradients[{name!r}]", values, parameter.dtype)
    if rows.shape != shape:
        raise _wrong_shape(name, rows.shape, shape, whole, gradient)
    columns = (ids.shape[0], table.shape[1])
    rows = rows if shape == columns else rows.reshape(columns)
    return Update(name=name, parameter=parameter, arrays=arrays, table=table, ids=ids, rows=rows)


def _wrong_step(update: Update, gradient: Any, limit: float) -> ValueError:
    """Return the error for an update that cannot be made, by a gradient as it was given."""
    name, table, arrays = update.name, update.table, update.arrays
    if not arrays.are_rows(update.ids, table.shape[0]):
        ids = to_host(update.ids)
        return ValueError(
            f"`gradients` must have ids that ascend, each once, in 0..{table.shape[0] - 1} for "
            f"{name!r}, got {ids[:5].tolist()}{'...' if len(ids) > 5 else ''}; add up rows that "
            "have the same id first."
        )
    place = arrays.first_outside(update.rows, -limit, limit)
    if place is not None:
        values = gradient.rows if isinstance(gradient, SparseRows) else gradient
        worst = to_host(values).flat[place]
        return ValueError(
            f"`gradients` must be finite, and at most {limit:.2g} for a {table.dtype} parameter, "
            f"got {worst} for {name!r}; clip it, or look for the first step that is too large."
        )
    return ValueError(
        f"`parameters` must be finite, got NaN or infinity in a row of {name!r} that has a "
        "gradient; training has diverged: go back to a checkpoint, and lower the learning "
        "rate."
    )


def check_changeable(argument: str, name: str, array: Any) -> None:
    """Require that the array `name` of a mapping is of floats and can be changed in place."""
    require_plain(f"{argument}[{name!r}]", array)
    if not isinstance(array, np.ndarray) or array.dtype not in LARGEST:
        raise TypeError(
            f"`{argument}` must hold arrays of float32 or float64, got "
            f"{getattr(array, 'dtype', type(array).__name__)} for {name!r}."
        )
    if not array.flags.carray:
        raise ValueError(
            f"`{argument}` must be C-contiguous and writable, to change in place, but {name!r} is "
            "not; copy it with numpy.array(..., order='C')."
        )


def _require_floats(name: str, values: Any) -> None:
    require_plain(f"gradients[{name!r}]", values)
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        raise TypeError(
            f"`gradients` must hold arrays or SparseRows of floating-point numbers, got "
            f"{getattr(values, 'dtype', type(values).__name__)} for {name!r}; convert it with "
            "astype."
        )


def _as_row_ids(name: str, ids: Any, whole: tuple[int, ...]) -> IntArray:
    array = ids if type(ids) is np.ndarray else as_array(f"gradients[{name!r}]", ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not whole:
        raise TypeError(
            f"`gradients` must have ids of shape (k,) and an integer type for {name!r}, of shape "
            f"{whole}; got shape {array.shape} of {array.dtype}."
        )
    return array


def _wrong_shape(
    name: str,
    got: tuple[int, ...],
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    gradient: Any,
) -> ValueError:
    """Return the error for a gradient that has not the shape of its parameter."""
    rows = f" and there are {len(gradient.ids)} ids" if isinstance(gradient, SparseRows) else ""
    return ValueError(
        f"`gradients` must have shape {shape} for {name!r}, got {got}; the parameter has shape "
        f"{whole}{rows}."
    )
