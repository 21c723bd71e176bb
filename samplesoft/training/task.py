"""What can be trained: a model, its data and its state, behind a few methods."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from samplesoft.losses.gradients import SparseRows
from samplesoft.training.checkpoint import Arrays

Gradient = NDArray[Any] | SparseRows


class Task(Protocol):
    """A model and its data, as `samplesoft.training.train` needs them.

    All randomness of a step must follow from a seed and the step, and all else that a step
    depends on must be in `parameters`, in `state`, or be made from them by `refresh`. Then a run
    that was interrupted ends with the bits of one that was not.
    """

    @property
    def parameters(self) -> Arrays:
        """Arrays by name, the same ones in every call; the optimizer changes them in place."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps in an epoch."""
        ...

    @property
    def num_examples(self) -> int:
        """Examples in a step, for the log."""
        ...

    def config(self) -> dict[str, Any]:
        """Return plain JSON that tells this model, its data and its seed from others."""
        ...

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Return the loss of a step, in nats for an example, and gradients by parameter."""
        ...

    def after_step(self, gradients: dict[str, Gradient]) -> None:
        """Take notice that the optimizer has changed the parameters."""
        ...

    def refresh(self) -> None:
        """Make anew whatever follows the parameters, such as a sampler's sums.

        It is called whenever a checkpoint is written and when one has been read, for sums that
        were updated in many steps differ from new ones in their last bits.
        """
        ...

    def validate(self) -> dict[str, float]:
        """Return figures of the validation data, the one to be minimised as ``loss``."""
        ...

    def examples(self) -> Arrays:
        """Return arrays for readers of the checkpoint; they are stored and never loaded."""
        ...

    def state(self) -> Arrays:
        """Return what must survive besides the parameters, such as a hidden state."""
        ...

    def load_state(self, state: Arrays) -> None:
        """Go back to a `state`."""
        ...
