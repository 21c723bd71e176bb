"""The base class of optimizers, which update all rows or a few rows of named parameters in place.

The kernel of an optimizer updates the rows that have a gradient in one pass. Its arguments are

- ``ids`` (k,), distinct row indices in ascending order;
- `gradients` (k, d), the gradients of these rows;
- `parameters` (n, d) and a tuple of states of the same shape, which are updated in place;
- a tuple of hyper-parameters, in the dtype of the parameters, so that float32 stays float32.

For a dense gradient, the parameter and its gradient are reshaped to one long row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np

from samplesoft._device.select import to_host
from samplesoft._validation import (
    as_array,
    as_array_dict,
    as_nonnegative,
    require_mapping,
    writable,
)
from samplesoft.losses.base import SparseRows
from samplesoft.optimizers.updates import MAX_FLOAT, Array, Update, checked_update

_MIN_EPSILON = 1e-37  # nearly the smallest normal number of float32


class Optimizer(ABC):
    """Base class of optimizers, which update parameters in place by gradients of all or some rows.

    A new optimizer consists of a kernel; a subclass, with the names of the states and a method
    `_step_parameters`; and a line in `OPTIMIZERS`.

    Parameters
    ----------
    learning_rate : float
        Size of a step; finite and at least 0.

    Attributes
    ----------
    steps : int
        Number of steps taken.
    schedule : callable or None
        ``schedule(step)`` returns the factor of the learning rate in a step; steps are counted from
        1. `samplesoft.training.fit` sets it during training. It is not copied or pickled.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    A `SparseRows` gradient changes only its rows of the parameter and of the state. The state of
    all other rows does not decay, as in LazyAdam of TensorFlow Addons and
    ``torch.optim.SparseAdam``. If the gradient has all rows, the result equals the result for a
    dense gradient, to the last bit. The cost of a step does not depend on the number of rows
    without a gradient. The state of a parameter is allocated, with zeros, at its first gradient.
    """

    # names of the states; a saved state has keys such as "velocity/w" for the parameter w
    _state_names: ClassVar[tuple[str, ...]] = ()
    squares: ClassVar[bool] = False  # whether the kernel sums squares of gradients
    _kernel: ClassVar[Callable[..., None]]
    schedule: Callable[[int], float] | None = None

    def __init__(self, learning_rate: float) -> None:
        self.steps = 0
        self.learning_rate = learning_rate
        self._state: dict[str, tuple[Array, ...]] = {}

    @abstractmethod
    def _step_parameters(self) -> tuple[float, ...]:
        """Return the hyper-parameters of the kernel for the step whose number is `steps`."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last step: the base rate times the factor of `schedule`.

        Before the first step it is the rate of that step. Without a schedule the factor is 1.
        Assigning to it sets the base rate.
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
        """Update parameters in place.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            Arrays in C order, float32 or float64. Parameters without a gradient do not change.
            Parameters on a GPU are updated there.
        gradients : mapping of str to ndarray or SparseRows
            Gradients by parameter name: arrays of the shape of the parameter, or some of its rows.

        Raises
        ------
        TypeError, ValueError
            If a name, a shape, a dtype or a row index is wrong; if a gradient is not finite; or, on
            the CPU, if a row to be updated is not finite. Parameters and states are then unchanged.
        """
        require_mapping("parameters", parameters)
        require_mapping("gradients", gradients)

        # validate everything before the first update, so that an error in the second parameter
        # leaves the first unchanged
        updates: dict[str, Update] = {}
        for name in gradients:
            if name not in parameters:
                raise ValueError(
                    f"`gradients` has {name!r}, which `parameters` has not; it has "
                    f"{', '.join(map(repr, parameters))}."
                )
            update = checked_update(name, parameters[name], gradients[name], self.squares)
            if self._state_names:
                update.states = self._writable_states(update)
            updates[name] = update

        # Increment the number of steps, which Adam's bias corrections need. An error below
        # decrements it again.
        hyper_parameters = self.advance()
        max_hyper_parameter = max(hyper_parameters)

        for name in updates:
            dtype = updates[name].table.dtype
            # A hyper-parameter beyond the dtype's range would become infinite in the kernel. The
            # comparison also rejects NaN.
            if not max_hyper_parameter <= MAX_FLOAT[dtype]:
                self.steps -= 1
                raise ValueError(
                    f"`learning_rate` must be within the range of {dtype} for {name!r}, got "
                    f"{self.learning_rate}; lower it."
                )

        for name in updates:
            update = updates[name]
            table = update.table
            states = update.states
            self._state[name] = states
            if self._state_names:
                states = tuple([state.reshape(table.shape) for state in states])
            # hyper-parameters of the parameter's dtype, because one in float64 would make all
            # arithmetic of a float32 kernel float64
            typed_parameters = tuple(map(table.dtype.type, hyper_parameters))
            update.backend.step_rows(
                self._kernel, update.ids, update.rows, table, states, typed_parameters
            )

    def parameters_with_states(
        self, parameters: Mapping[str, Array]
    ) -> dict[str, tuple[Array, ...]]:
        """Return, by name, each parameter and its states as one tuple.

        It is for callers that run the kernel themselves. States that do not exist yet are created.
        """
        for name, array in parameters.items():
            if name not in self._state:
                self._state[name] = tuple(np.zeros_like(array) for _ in self._state_names)
            for state in self._state[name]:
                _require_shape_and_dtype_of(name, array, state)
            self._state[name] = tuple(map(writable, self._state[name]))
        return {name: (array, *self._state[name]) for name, array in parameters.items()}

    def advance(self) -> tuple[float, ...]:
        """Increment `steps`, and return the hyper-parameters of the kernel for the new step."""
        self.steps += 1
        try:
            return self._step_parameters()
        except BaseException:  # a schedule may raise anything
            self.steps -= 1
            raise

    def _writable_states(self, update: Update) -> tuple[Array, ...]:
        """Return the states of a parameter as writable arrays; zeros at its first gradient."""
        parameter = update.parameter
        arrays = update.backend
        states = self._state.get(update.name)
        if states is None:
            # allocated at the first gradient, so that parameters without gradients have no states
            return tuple(
                arrays.to_device(np.zeros(parameter.shape, parameter.dtype))
                for _ in self._state_names
            )

        states = tuple(map(arrays.writable, states))
        for state in states:
            _require_shape_and_dtype_of(update.name, parameter, state)
        return states

    def state(self) -> dict[str, Array]:
        """Return a copy of the optimizer's state: all that next steps depend on but its settings.

        Returns
        -------
        dict of str to ndarray
            ``"steps"``, and the state of each parameter under names such as
            ``"velocity/class_embeddings"``; suitable for `numpy.savez`. An optimizer with the same
            settings that loads this state computes the same next steps, to the last bit.
        """
        # copies in host memory, because the arrays are updated in place
        state = {"steps": np.array(self.steps)}
        for parameter, arrays in self._state.items():
            for name, array in zip(self._state_names, arrays, strict=True):
                state[f"{name}/{parameter}"] = to_host(array).copy()
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Restore a state that `state` returned.

        Parameters
        ----------
        state : mapping of str to ndarray
            State of an optimizer of this class.

        Raises
        ------
        TypeError, ValueError
            If a name is missing or unknown, or an array is malformed. The optimizer is then
            unchanged.
        """
        state = as_array_dict("state", state)
        steps = as_array("state['steps']", state.get("steps"))
        if steps.ndim != 0 or steps.dtype.kind not in "iu" or steps < 0:
            raise ValueError(f"`state` must have `steps`, an integer of at least 0, got {steps!r}.")

        # a key is "state name/parameter name"; state names have no slash, parameter names may
        parameters = [name.split("/", 1)[-1] for name in state if name != "steps"]

        # a parameter that has one of the states must have all of them
        expected = {f"{name}/{key}" for key in parameters for name in self._state_names} | {"steps"}
        if expected != set(state):
            raise ValueError(
                f"`state` of {type(self).__name__} must have {', '.join(sorted(expected))}; got "
                f"{', '.join(sorted(state))}; load the state of an optimizer of the same class."
            )

        # validate all arrays before assigning any, so that a rejected state changes nothing
        loaded = {
            key: tuple(_checked_state_array(f"{name}/{key}", state) for name in self._state_names)
            for key in parameters
        }
        self.steps = int(steps)
        self._state = loaded


def _require_shape_and_dtype_of(name: str, parameter: Array, state: Array) -> None:
    """Raise unless the `state` array of a parameter has the parameter's shape and dtype."""
    if state.shape != parameter.shape or state.dtype != parameter.dtype:
        raise ValueError(
            f"`parameters` has {name!r} of shape {parameter.shape} and {parameter.dtype}, but its "
            f"state is of shape {state.shape} and {state.dtype}; make a new optimizer for new "
            "parameters."
        )


def _checked_state_array(name: str, state: Mapping[str, Array]) -> Array:
    array = np.array(as_array(f"state[{name!r}]", state[name]), order="C")
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(
            f"`state` must hold finite floating-point numbers, got {name!r} of {array.dtype} with "
            f"{np.ravel(array)[:3]}...; save it again."
        )
    return array


def as_epsilon(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is large enough to be a normal float32 number."""
    number = as_nonnegative(name, value)
    if number < _MIN_EPSILON:
        raise ValueError(f"`{name}` must be at least {_MIN_EPSILON}, got {value}; 1e-8 is usual.")
    return number
