"""What a user asks of a fit, and what it does: `resolve` settles every default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from samplesoft._temperature import tau_of_classes
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings, normalizes
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training.schedules import Schedule, default_learning_rate, make_schedule

NUM_SAMPLED = 100  # draws by default, and classes up to which nothing is drawn
_MAX_SAMPLED = 1000  # draws of a set for a whole batch, by default
_CLASSES_PER_DRAW = 32  # of such a set
_EPOCHS = 5
_MAX_EPOCHS = 20
_MIN_STEPS = 200  # steps below which there are more epochs
_MANY_EXAMPLES = 1 << 18  # examples from which an epoch has very many steps
_EPOCHS_OF_MANY = 3


@dataclass(frozen=True)
class FitSettings:
    """What a user asks of a fit; `resolve` settles what is None.

    Parameters
    ----------
    model : LinearSoftmaxSettings or mapping of str to object
        The model as it is made; or fields of `LinearSoftmaxSettings` as the user gave them, of
        which `num_sampled` may be None too, and which then depend on the number of classes.
    batch_size : int
        Examples in a step.
    epochs : int, optional
        How often it goes over the examples, at most.
    optimizer : str
        A key of `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float, optional
        Of the optimizer, before the schedule.
    schedule : str
        How it changes: a key of `samplesoft.training.SCHEDULES`.
    warmup : float
        Share of the steps, at the beginning, in which it rises.
    warmup_steps : int
        The same as a number of steps, which is added.
    early_stopping : bool
        Whether training ends before the last epoch where it no longer helps.
    """

    model: LinearSoftmaxSettings | Mapping[str, Any]
    batch_size: int
    epochs: int | None = None
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    schedule: str = "constant"
    warmup: float = 0.0
    warmup_steps: int = 0
    early_stopping: bool = False


@dataclass(frozen=True)
class Resolved:
    """How a linear softmax model is trained, for a number of classes and of examples.

    ``str`` makes one line of it.

    Parameters
    ----------
    model : LinearSoftmaxSettings
        The model: its loss, sampler, draws and vectors, as `LinearSoftmaxSettings.resolved`.
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
    >>> model = LinearSoftmaxSettings(sampler="unigram", num_sampled=300).resolved()
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


def resolve(
    asked: FitSettings,
    num_classes: int,
    num_examples: int,
    *,
    several_labels: bool = False,
    num_held_back: int = 0,
    row_norm: float = 1.0,
    step_by_step: str | None = None,
) -> Resolved:
    """Return what is done for what a user has asked, with every default settled.

    Parameters
    ----------
    asked : FitSettings
        What is asked.
    num_classes, num_examples : int
        Classes n, and examples N in an epoch.
    several_labels : bool
        Whether examples may have several labels.
    num_held_back : int
        Examples that are held out until halfway, then learned once, and part of all later epochs.
    row_norm : float
        Mean norm of the inputs.
    step_by_step : str, optional
        Why steps are taken one by one, if they are.

    Returns
    -------
    Resolved
        What is done.

    Raises
    ------
    TypeError, ValueError
        If the model's settings are malformed, or do not go together.

    Examples
    --------
    >>> fields = {"loss": "sampled-masked", "sampler": "unigram", "embedding_dim": 64}
    >>> asked = FitSettings(model=fields, batch_size=128)
    >>> print(resolve(asked, 50_000, 10_000))
    50,000 classes, 10,000 examples; sampled-masked, 1,000 draws by unigram for a batch; vectors of
    64, of norm 1, tau 16.2; at most 5 epochs of batches of 128; adagrad at 0.1; compiled steps
    >>> resolve(asked, 80, 10_000).model.loss
    'full'
    """
    model = asked.model
    if not isinstance(model, LinearSoftmaxSettings):
        model = _model_of_size(model, num_classes, several_labels)
    model = model.resolved()
    on_inputs = model.embedding_dim is None
    epochs = asked.epochs
    if epochs is None:
        epochs = _num_epochs(asked, num_examples, on_inputs)
    late = epochs - half_of(epochs)
    num_steps = half_of(epochs) * _num_steps(num_examples, asked.batch_size)
    num_steps += _num_steps(num_held_back, asked.batch_size)
    num_steps += late * _num_steps(num_examples + num_held_back, asked.batch_size)
    learning_rate = asked.learning_rate
    if learning_rate is None:
        learning_rate = default_learning_rate(
            asked.optimizer, on_inputs=on_inputs, row_norm=row_norm
        )
    return Resolved(
        model=model,
        num_classes=num_classes,
        num_examples=num_examples,
        epochs=epochs,
        batch_size=asked.batch_size,
        num_steps=num_steps,
        optimizer=asked.optimizer,
        learning_rate=float(learning_rate),
        schedule=asked.schedule,
        warmup_steps=asked.warmup_steps + ceil(asked.warmup * num_steps),
        step_by_step=step_by_step,
    )


def half_of(epochs: int) -> int:
    """Return the epoch at whose end a model is calibrated, counted from 1."""
    return -(-epochs // 2)


def _num_steps(num_examples: int, batch_size: int) -> int:
    return -(-num_examples // batch_size)


def _num_epochs(asked: FitSettings, num_examples: int, on_inputs: bool) -> int:
    """Return how often to go over so many examples, by default."""
    if asked.early_stopping or on_inputs:
        return _MAX_EPOCHS
    if num_examples >= _MANY_EXAMPLES:
        return _EPOCHS_OF_MANY
    steps = max(_num_steps(num_examples, asked.batch_size), 1)
    return max(_EPOCHS, min(-(-_MIN_STEPS // steps), _MAX_EPOCHS))


def _model_of_size(
    asked: Mapping[str, Any], num_classes: int, several_labels: bool
) -> LinearSoftmaxSettings:
    """Return the model for a number of classes.

    The loss takes its masked form where draws cannot leave out the label of an example.
    """
    spec = LOSSES[asked["loss"]]
    settings = {**asked, "num_sampled": num_draws(asked, num_classes)}
    unit_vectors = asked.get("normalize")
    if unit_vectors is None:
        embedding_dim = asked.get("embedding_dim", LinearSoftmaxSettings.embedding_dim)
        unit_vectors = normalizes(embedding_dim, asked["loss"])
    if asked.get("tau") is None and unit_vectors:  # a default that grows with log n
        settings["tau"] = tau_of_classes(num_classes)
    if scores_all(asked, num_classes):
        settings |= {"sampler": None, "num_sampled": None, "shared": False}
        if spec.draws:  # an estimate of the full softmax, which is no dearer here
            settings |= {"loss": "full", "label_reduction": "pal-n"}
    elif several_labels or asked.get("shared"):  # one set cannot leave out several labels
        settings["loss"] = spec.masked or asked["loss"]
    return LinearSoftmaxSettings(**settings)


def num_draws(asked: Mapping[str, Any], num_classes: int) -> Any:
    """Return the number of draws, or ``"auto"``, for a model whose fields are as a user gave them.

    By default it grows with the classes where one set serves a batch, which costs little.
    """
    if asked.get("num_sampled") is not None:
        return asked["num_sampled"]
    sampler = asked["sampler"]
    named = isinstance(sampler, str) and sampler in SAMPLERS
    alone = asked.get("shared") is False or not LOSSES[asked["loss"]].shares_draws
    if alone or not named or SAMPLERS[sampler].follows_vectors:
        return NUM_SAMPLED
    return max(NUM_SAMPLED, min(num_classes // _CLASSES_PER_DRAW, _MAX_SAMPLED))


def scores_all(asked: Mapping[str, Any], num_classes: int) -> bool:
    """Return whether all classes are scored: one, or no more than are drawn by default.

    A loss that is no estimate of the full softmax has draws in the second case too.
    """
    spec = LOSSES[asked["loss"]]
    few = asked.get("num_sampled") is None and num_classes <= NUM_SAMPLED
    return not spec.draws or num_classes < 2 or (few and spec.is_softmax)
