"""What all optimizers share: one step over named parameters, threads, and checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.select import device_of, to_host, twin
from samplesoft._validation import (
    as_array,
    as_named_arrays,
    as_nonnegative,
    require_mapping,
)
from samplesoft.losses.base import SparseRows
from samplesoft.models.optimizers.updates import LARGEST, Update

Array = NDArray[Any]


class Optimizer(ABC):
    """Changes parameters in place by their gradients, of all rows or of a few.

    A new optimizer is a subclass in a file of its own: its kernel in
    `samplesoft.kernels.models.optimizer_rows`, the names of its state, the numbers of a step, and a
    line in `OPTIMIZERS`.

    Parameters
    ----------
    learning_rate : float
        Size of a step; finite and at least 0.

    Attributes
    ----------
    steps : int
        Steps taken.

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

    _state_names: ClassVar[tuple[str, ...]] = ()
    _squares: ClassVar[bool] = False  # whether the kernel adds up squares of gradients
    _kernel: ClassVar[Callable[..., None]]

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.steps = 0
        self._state: dict[str, tuple[Array, ...]] = {}

    @abstractmethod
    def _numbers(self) -> tuple[float, ...]:
        """Return what the kernel takes after the arrays, for the step that `steps` counts."""

    @property
    def learning_rate(self) -> float:
        """Size of a step, which a schedule may set before any of them."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = as_nonnegative("learning_rate", value)

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
        updates = [self._read(name, parameters, gradients[name]) for name in gradients]
        states = {update.name: self._state_of(update) for update in updates}
        numbers = self._next_numbers(updates)
        self._state.update(states)
        for update in updates:
            self._apply(update, states[update.name], numbers)

    def _read(self, name: str, parameters: Mapping[str, Array], gradient: Any) -> Update:
        if name not in parameters:
            raise ValueError(
                f"`gradients` has {name!r}, which `parameters` has not; it has "
                f"{', '.join(map(repr, parameters))}."
            )
        update: Update = _steps_of(parameters[name]).as_update(
            name, parameters, gradient, self._squares
        )
        return update

    def _next_numbers(self, updates: list[Update]) -> tuple[float, ...]:
        """Count a step, and return its numbers; if a type cannot hold them, there is no step."""
        self.steps += 1
        numbers = self._numbers()
        for update in updates:
            if not max(numbers) <= LARGEST[update.parameter.dtype]:
                self.steps -= 1
                raise ValueError(
                    f"`learning_rate` must be within the range of {update.parameter.dtype} for "
                    f"{update.name!r}, got {self._learning_rate}; lower it."
                )
        return numbers

    def _state_of(self, update: Update) -> tuple[Array, ...]:
        like = update.parameter
        found: tuple[Any, ...] = self._state.get(update.name) or (None,) * len(self._state_names)
        state = tuple(_steps_of(like).state_like(like, array) for array in found)
        for array in state:
            if array.shape != like.shape or array.dtype != like.dtype:
                raise ValueError(
                    f"`parameters` has {update.name!r} of shape {like.shape} and {like.dtype}, but "
                    f"its state is of shape {array.shape} and {array.dtype}; make a new optimizer "
                    "for new parameters."
                )
        return state

    def _apply(self, update: Update, state: tuple[Array, ...], numbers: tuple[float, ...]) -> None:
        number = update.parameter.dtype.type
        _steps_of(update.parameter).apply(self._kernel, update, state, tuple(map(number, numbers)))

    def state(self) -> dict[str, Array]:
        """Return a copy of all that the next steps depend on, but for the settings.

        Returns
        -------
        dict of str to ndarray
            ``"steps"``, and by names such as ``"velocity/class_embeddings"`` the state of each
            parameter; fit for `numpy.savez`. An optimizer of the same settings that loads it goes
            on to the last bit as this one would.
        """
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
        parameters = [name.split("/", 1)[-1] for name in state if name != "steps"]
        wanted = {f"{name}/{key}" for key in parameters for name in self._state_names} | {"steps"}
        if wanted != set(state):
            raise ValueError(
                f"`state` of {type(self).__name__} must have {', '.join(sorted(wanted))}; got "
                f"{', '.join(sorted(state))}; load the state of an optimizer of the same class."
            )
        loaded = {
            key: tuple(_as_state(f"{name}/{key}", state) for name in self._state_names)
            for key in parameters
        }
        self.steps, self._state = int(steps), loaded


def _as_state(name: str, state: Mapping[str, Array]) -> Array:
    array = np.array(as_array(f"state[{name!r}]", state[name]), order="C")
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(
            f"`state` must hold finite floating-point numbers, got {name!r} of {array.dtype} with "
            f"{np.ravel(array)[:3]}...; save it again."
        )
    return array


def _steps_of(parameter: Any) -> Any:
    """Return what checks and changes a parameter where it lies."""
    return twin(device_of(parameter), "samplesoft.models.optimizers.steps:Steps")
