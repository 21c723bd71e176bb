"""What a fit does: the settings of a user, with every default settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.training.schedules import Schedule, make_schedule


@dataclass(frozen=True)
class Resolved:
    """How a linear softmax model is trained, for a number of classes and of examples.

    ``str`` makes one line of it.

    Parameters
    ----------
    model : LinearSoftmaxSettings
        The model: its loss, sampler, draws and vectors.
    num_classes : int
        Classes n.
    num_examples : int
        Examples in an epoch. Those that are held out to calibrate a model join them halfway.
    epochs : int
        How often it goes over them, at most.
    batch_size : int
        Examples in a step.
    num_steps : int
        Steps in all, at most.
    optimizer : str
        What takes them.
    learning_rate : float
        Of the optimizer, before the schedule.
    schedule : str
        How it changes: a key of `samplesoft.training.SCHEDULES`.
    warmup_steps : int
        Steps at the beginning in which it rises.
    step_by_step : str or None
        Why steps are taken one by one; None where many of them are one compiled call.

    Examples
    --------
    >>> model = LinearSoftmaxSettings(sampler="unigram", num_sampled=300)
    >>> print(Resolved(model, 10_000, 5_000, 5, 128, 200, "adagrad", 0.1, "constant", 0, None))
    10,000 classes, 5,000 examples; sampled-masked, 300 draws by unigram for a batch; vectors of 64,
    of norm 1, tau 10; at most 5 epochs of batches of 128; adagrad at 0.1; compiled steps
    """

    model: LinearSoftmaxSettings
    num_classes: int
    num_examples: int
    epochs: int
    batch_size: int
    num_steps: int
    optimizer: str
    learning_rate: float
    schedule: str
    warmup_steps: int
    step_by_step: str | None

    def stored(self) -> dict[str, Any]:
        """Return all but the model, to be written to a file beside it."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    def make_schedule(self) -> Schedule:
        """Return the factor of the learning rate by the step."""
        return make_schedule(self.schedule, self.num_steps, self.warmup_steps)

    def __str__(self) -> str:
        model = self.model
        loss = model.loss
        if LOSSES[loss].draws:
            drawn = model.sampler if isinstance(model.sampler, str) else "a sampler of your own"
            whose = "a batch" if model.shared else "each example"
            loss += f", {model.num_sampled:,} draws by {drawn} for {whose}"
        elif not LOSSES[loss].on_tree:
            loss += ", all classes in each step"
        vectors = "class vectors on the inputs"
        if model.embedding_dim is not None:
            vectors = f"vectors of {model.embedding_dim}"
            if model.normalize:
                vectors += ", of norm 1"
        rate = f"{self.optimizer} at {self.learning_rate:.3g}"
        if self.schedule != "constant":
            rate += f", {self.schedule} decay"
        if self.warmup_steps:
            steps = "step" if self.warmup_steps == 1 else "steps"
            rate += f", warm-up of {self.warmup_steps:,} {steps}"
        steps = "compiled steps"
        if self.step_by_step is not None:
            steps = f"steps one by one: {self.step_by_step}"
        return "; ".join(
            [
                f"{self.num_classes:,} classes, {self.num_examples:,} examples",
                loss,
                f"{vectors}, tau {model.tau:.3g}",
                f"at most {self.epochs} epochs of batches of {self.batch_size:,}",
                rate,
                steps,
            ]
        )
