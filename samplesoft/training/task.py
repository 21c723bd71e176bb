"""The interface of a training task: a model, its data and its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from samplesoft._random import mix64
from samplesoft.models.linear import Gradient
from samplesoft.optimizers.base import Optimizer
from samplesoft.training.checkpoint import Arrays

NUM_EXAMPLES = 300  # contexts that a task stores in a checkpoint


class Task(ABC):
    """A model and its data, as `samplesoft.training.fit` needs them.

    A minimal task sets the attributes and implements `step`. For `samplesoft.training.train`, which
    writes files, it also implements `config` and `validate`. The other methods do nothing by
    default.

    All randomness of a step must follow from a seed and the step number. All other state must be in
    `parameters` or `state`, or be computed from them by `refresh`. An interrupted run then ends
    with the same bits as an uninterrupted one.

    Attributes
    ----------
    parameters : dict of str to ndarray
        Always the same arrays; the optimizer updates them in place.
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
        """Return plain JSON that identifies the model, its data and its seed."""
        raise NotImplementedError(f"{type(self).__name__} has no `config`, which `train` needs.")

    def start(self, optimizer: Optimizer) -> Any:
        """Prepare for training; return an object that takes steps, by default the optimizer."""
        return optimizer

    def begin_epoch(self, epoch: int, index: int) -> None:  # noqa: B027
        """Prepare for the steps of an epoch, from `index` on; both are counted from 0."""

    @abstractmethod
    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the mean loss of a step, in nats per example, and gradients by parameter."""

    def fused_block_end(self, optimizer: Any, epoch: int, index: int) -> int | None:
        """Return the end (exclusive) of the fused block of steps that contains `index`.

        None trains step by step.
        """
        return None

    def run_fused_steps(self, optimizer: Any, epoch: int, first: int, last: int) -> list[float]:
        """Take steps [first, last) with an optimizer in one call; return their mean losses.

        The result must not depend on how steps are divided among calls.
        """
        raise NotImplementedError

    def num_examples_in(self, index: int) -> int:
        """Return the number of examples of a step."""
        return self.num_examples

    def validate(self) -> dict[str, float]:
        """Return metrics of the validation data; ``loss`` is the one to be minimised."""
        raise NotImplementedError(f"{type(self).__name__} has no `validate`, which `train` needs.")

    def after_step(self, gradients: dict[str, Gradient]) -> None:  # noqa: B027
        """Update other state after the optimizer has changed the parameters."""

    def refresh(self) -> None:  # noqa: B027
        """Rebuild state that is derived from the parameters, such as a sampler's sums.

        It is called when a checkpoint is written and when one has been read, because sums that are
        updated in many steps differ from rebuilt ones in their last bits.
        """

    def examples(self) -> Arrays:
        """Return arrays to store in the checkpoint for other readers; training never loads them."""
        return {}

    def state(self) -> Arrays:
        """Return the state that a resumed run needs in addition to the parameters."""
        return {}

    def load_state(self, state: Arrays) -> None:  # noqa: B027
        """Restore a `state`."""


def sub_seed(seed: int | np.uint64, *path: int) -> int:
    """Return the seed, below ``2**64``, of the independent random stream at a path of numbers."""
    # mixed in sequence: (1, 2) and (2, 1) are different streams
    for number in path:
        seed = mix64(np.uint64(seed), np.uint64(number))
    return int(seed)
