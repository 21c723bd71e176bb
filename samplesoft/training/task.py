"""What can be trained: a model, its data and its state, behind a few methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from samplesoft._random import mix64
from samplesoft.models.linear import Gradient
from samplesoft.optimizers.base import Optimizer
from samplesoft.training.checkpoint import Arrays

NUM_EXAMPLES = 300  # contexts that a task puts into a checkpoint


class Task(ABC):
    """A model and its data, as `samplesoft.training.fit` needs them.

    A small task sets the attributes and implements `step`; for `samplesoft.training.train`, which
    writes files, it also implements `config` and `validate`. The other methods do nothing until
    they are overridden.

    All randomness of a step must follow from a seed and the step, and all else that a step
    depends on must be in `parameters`, in `state`, or be made from them by `refresh`. Then a run
    that was interrupted ends with the bits of one that was not.

    Attributes
    ----------
    parameters : dict of str to ndarray
        The same arrays all the time; the optimizer changes them in place.
    num_steps : int
        Steps in an epoch.
    num_examples : int
        Examples in a step, for the log.

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
        """Return plain JSON that identifies this model, its data and its seed."""
        raise NotImplementedError(f"{type(self).__name__} has no `config`, which `train` needs.")

    def start(self, optimizer: Optimizer) -> Any:
        """Get ready to be trained; return what takes the steps, as the optimizer does."""
        return optimizer

    def begin_epoch(self, epoch: int, index: int) -> None:  # noqa: B027
        """Get ready for the steps of an epoch, from `index` on; both are counted from 0."""

    @abstractmethod
    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the loss of a step, in nats for an example, and gradients by parameter."""

    def end_of_call(self, optimizer: Any, epoch: int, index: int) -> int | None:
        """Return before which step a call of `take` that begins at one ends; None: there is none.

        A task that has no such calls is trained step by step.
        """
        return None

    def take(self, optimizer: Any, epoch: int, first: int, last: int) -> list[float]:
        """Take steps [first, last) with an optimizer; return their losses as `step` does.

        Where calls end has no effect on what is learned.
        """
        raise NotImplementedError

    def examples_of(self, index: int) -> int:
        """Return the number of examples of a step."""
        return self.num_examples

    def validate(self) -> dict[str, float]:
        """Return metrics of the validation data, the one to be minimised as ``loss``."""
        raise NotImplementedError(f"{type(self).__name__} has no `validate`, which `train` needs.")

    def after_step(self, gradients: dict[str, Gradient]) -> None:  # noqa: B027
        """Follow the parameters, which the optimizer has just changed."""

    def refresh(self) -> None:  # noqa: B027
        """Rebuild whatever follows the parameters, such as a sampler's sums.

        It is called whenever a checkpoint is written and when one has been read, for sums that
        were updated in many steps differ from new ones in their last bits.
        """

    def examples(self) -> Arrays:
        """Return arrays for readers of the checkpoint; they are stored and never loaded."""
        return {}

    def state(self) -> Arrays:
        """Return what a resumed run needs besides the parameters, such as a hidden state."""
        return {}

    def load_state(self, state: Arrays) -> None:  # noqa: B027
        """Go back to a `state`."""


def sub_seed(seed: int | np.uint64, *path: int) -> int:
    """Return the seed of a stream of its own, both below ``2**64``, for each path of numbers."""
    # mixed one after another: (1, 2) and (2, 1) are different streams
    for number in path:
        seed = mix64(np.uint64(seed), np.uint64(number))
    return int(seed)
