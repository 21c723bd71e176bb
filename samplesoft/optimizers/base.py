"""The base class of optimizers, which change named parameters in place, all rows or a few.

A kernel takes a step over the rows that have a gradient in one pass. It takes ``ids`` (k,), rows
that ascend, each once; `gradients` (k, d); `parameters` (n, d) and a tuple of states of the same
shape, which change in place; and a tuple of numbers, in the type of the parameters, so that float32
stays float32. A gradient of all of a parameter is one long row, whatever its shape.
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
    as_named_arrays,
    as_nonnegative,
    require_mapping,
    writable,
)
from samplesoft.losses.base import SparseRows
from samplesoft.optimizers.updates import LARGEST, Array, Update, as_update

_SMALLEST = 1e-37  # a number of float32 with all its digits


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
            update = as_update(name, parameters[name], gradients[name], self.squares)
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


def _as_state(name: str, state: Mapping[str, Array]) -> Array:
    array = np.array(as_array(f"state[{name!r}]", state[name]), order="C")
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(
            f"`state` must hold finite floating-point numbers, got {name!r} of {array.dtype} with "
            f"{np.ravel(array)[:3]}...; save it again."
        )
    return array


def as_epsilon(name: str, value: Any) -> float:
    """Return `value` as a float that is greater than 0 in float32 too."""
    number = as_nonnegative(name, value)
    if number < _SMALLEST:
        raise ValueError(f"`{name}` must be at least {_SMALLEST}, got {value}; 1e-8 is usual.")
    return number
