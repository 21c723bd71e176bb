"""The interface of a training task: a model, its data and its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from samplesoft._random import mix64
from samplesoft.models.linear import Gradient
from samplesoft.optimizers.base import Optimizer
from samplesoft.training.checkpoint import Arrays

# The largest number of examples whose contexts a task stores in a checkpoint.
NUM_EXAMPLES = 300


class Task(ABC):
    """A model and its data: the interface that `samplesoft.training.fit` trains.

    A minimal task sets the attributes and implements `step`. For `samplesoft.training.train`, which
    writes files, it also implements `config` and `validate`. The other methods have defaults.

    The randomness of a step must depend only on a seed and the number of the step. All other state
    must be in `parameters` or `state`, or be computed from them by `refresh`. A run that was
    interrupted and resumed then ends with the same bits as an uninterrupted one.

    Attributes
    ----------
    parameters : dict of str to ndarray
        Parameters by name. The optimizer updates these arrays in place.
    num_steps : int
        Steps in an epoch.
    num_examples : int
        Examples in a step; used in the log.

    Examples
    --------
    >>> import tempfile
    >>> from samplesoft.training import Settings, train
    >>> class Parabola(Task):
    ...     def __init__(self):
    ...         self.parameters, self.num_steps, self.num_examples = {"x": np.ones(1)}, 10, 1
    ...     def config(self):
    ...         return {"model": "parabola"}
    ...     def step(self, epoch, index):
    ...         return self.validate()["loss"], {"x": 2.0 * self.parameters["x"]}
    ...     def validate(self):
    ...         return {"loss": float(self.parameters["x"][0] ** 2)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     at = train(Parabola(), Settings(epochs=2, learning_rate=0.1), folder)
    >>> at.best_loss < 1e-3
    True
    """

    parameters: Arrays
    num_steps: int
    num_examples: int

    def config(self) -> dict[str, Any]:
        """Return the settings that identify the model, its data and its seed, in plain JSON."""
        raise NotImplementedError(f"{type(self).__name__} has no `config`, which `train` needs.")

    def start(self, optimizer: Optimizer) -> Any:
        """Prepare for training, and return the optimizer to use, by default the given one."""
        return optimizer

    def begin_epoch(self, epoch: int, index: int) -> None:  # noqa: B027
        """Prepare for an epoch from step `index` on; `epoch` and `index` are counted from 0."""

    @abstractmethod
    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of a step, in nats per example, and gradients by parameter name."""

    def fused_block_end(self, optimizer: Any, epoch: int, index: int) -> int | None:
        """Return the end (exclusive) of the fused block of steps that contains step `index`.

        `run_fused_steps` takes the steps of a block in one call. None means that there are no fused
        blocks, and that `step` takes the steps one by one.
        """
        return None

    def run_fused_steps(self, optimizer: Any, epoch: int, first: int, last: int) -> list[float]:
        """Take steps [first, last) of an epoch in one call; return the mean loss of each.

        The resulting parameters must not depend on how the steps are divided among calls.
        """
        raise NotImplementedError

    def num_examples_in(self, index: int) -> int:
        """Return the number of examples in step `index` of an epoch."""
        return self.num_examples

    def validate(self) -> dict[str, float]:
        """Return metrics on the validation data by name; training minimises ``loss``."""
        raise NotImplementedError(f"{type(self).__name__} has no `validate`, which `train` needs.")

    def after_step(self, gradients: dict[str, Gradient]) -> None:  # noqa: B027
        """Update other state, such as a sampler, after the optimizer has changed the parameters."""

    def refresh(self) -> None:  # noqa: B027
        """Rebuild all state that is computed from the parameters, such as a sampler's sums.

        A run calls this when it writes a checkpoint and when it has read one. Sums that were
        updated over many steps differ from rebuilt sums in their last bits, so that a resumed run
        would otherwise differ from an uninterrupted one.
        """

    def examples(self) -> Arrays:
        """Return arrays that a checkpoint stores for other programs; training does not use them."""
        return {}

    def state(self) -> Arrays:
        """Return the state that a resumed run needs in addition to the parameters."""
        return {}

    def load_state(self, state: Arrays) -> None:  # noqa: B027
        """Restore a state, given the result of `state`."""


def derive_seed(seed: int | np.uint64, *path: int) -> int:
    """Return a seed below ``2**64``, derived from `seed` and the integers in `path`.

    Different paths give independent random streams.
    """
    # mix the integers one after another, so that the paths (1, 2) and (2, 1) give different seeds
    for number in path:
        seed = mix64(np.uint64(seed), np.uint64(number))
    return int(seed)
