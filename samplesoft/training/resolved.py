"""Settings of a fit: as a user gives them, and with all defaults determined by `resolve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from samplesoft._temperature import default_tau
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings, normalizes_by_default
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training.schedules import (
    MAX_CHOSEN_EPOCHS,
    Schedule,
    default_learning_rate,
    make_schedule,
)

# Default number of draws of each example's own. If there are no more classes than this, all classes
# are scored instead.
NUM_SAMPLED = 100
# Draws that a batch shares are cheap: their default number is n / 32 for n classes, but at least
# 300 and at most 1000. If examples may have several labels, it is 1000: draws are a smaller part of
# the cost, and all labels of an example need negatives that are close to them.
_MIN_SHARED_SAMPLED = 300
_MAX_SHARED_SAMPLED = 1000
_CLASSES_PER_DRAW = 32
# With at most this many classes a step of the full softmax takes at most about twice the time of a
# step with 300 shared draws: it is the default. Steps with several labels an example take longer
# for both losses, so that their ratio is smaller.
_MAX_FULL_CLASSES = 1000
_MAX_FULL_CLASSES_SEVERAL_LABELS = 1500
# With "auto", vectors are longer if there are few classes: there they gain the most, and cost the
# least.
_DIM_OF_FEW_CLASSES = 256
_DIM_OF_MANY_CLASSES = 128
_FEW_CLASSES = 2000
# Costs of a training step per example, in the unit of `step_cost`; measured on a CPU with AVX-512,
# for vectors of 128 and batches of 128.
_COST_OF_EXAMPLE = 120.0
_COST_OF_LABEL = 18.0
_COST_OF_ENTRY = 13.0

# The number of epochs without held-out examples is 10. If 10 epochs have fewer than 400 steps, it
# is larger, so that there are 400 steps, but at most 30.
_FIXED_EPOCHS = 10
_MIN_STEPS = 400
_EPOCHS_ON_INPUTS = 20  # number of epochs of a model without an embedding


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit as a user gives them; None is a default, which `resolve` determines.

    Parameters
    ----------
    model : LinearSoftmaxSettings or mapping of str to object
        Final settings of the model, or a mapping with fields of `LinearSoftmaxSettings`. For a
        mapping the defaults depend on the number of classes, and `num_sampled` may be None.
    batch_size : int
        Examples in a step.
    epochs : int, optional
        Largest number of epochs.
    optimizer : str
        A key of `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float, optional
        Base rate of the optimizer, before the schedule.
    schedule : str, optional
        A key of `samplesoft.training.SCHEDULES`; by default ``"constant"``, or ``"inverse-sqrt"``
        if held-out examples determine when training ends.
    warmup : float
        Length of the linear warm-up, as a fraction of all steps.
    warmup_steps : int
        Length of the warm-up in steps, added to `warmup`.
    early_stopping : bool
        Whether training ends early if the validation score no longer improves.
    """

    model: LinearSoftmaxSettings | Mapping[str, Any]
    batch_size: int
    epochs: int | None = None
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    schedule: str | None = None
    warmup: float = 0.0
    warmup_steps: int = 0
    early_stopping: bool = False


@dataclass(frozen=True)
class Resolved:
    """Final settings of a fit of a linear softmax model, without any default left open.

    ``str`` returns a one-line summary.

    Parameters
    ----------
    model : LinearSoftmaxSettings
        Settings of the model, from `LinearSoftmaxSettings.resolved`.
    num_classes : int
        Number n of classes.
    num_examples : int
        Number of examples in an epoch. Examples held out for calibration are added after half of
        the epochs, and are not counted.
    epochs : int
        Largest number of epochs.
    batch_size : int
        Examples in a step.
    num_steps : int
        Largest total number of steps.
    optimizer : str
        A key of `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float
        Base rate of the optimizer, before the schedule.
    schedule : str
        A key of `samplesoft.training.SCHEDULES`.
    warmup_steps : int
        Length of the linear warm-up, in steps.
    step_by_step : str or None
        Reason why training takes steps one by one; None if it takes fused (compiled) steps.
    runner_up : str or None
        The loss that is next best for this number of classes, and its cost; None if the number of
        draws or the loss was given.

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
    runner_up: str | None = None

    def stored(self) -> dict[str, Any]:
        """Return all fields except `model`, for a file that stores the model separately."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    def make_schedule(self) -> Schedule:
        """Return the schedule: a function from a step to the factor of the learning rate."""
        return make_schedule(self.schedule, self.num_steps, self.warmup_steps)

    def __str__(self) -> str:
        model = self.model
        loss = model.loss

        if LOSSES[loss].draws:
            sampler_name = "a sampler of your own"
            if isinstance(model.sampler, str):
                sampler_name = model.sampler
            per = "a batch" if model.shared else "each example"
            loss += f", {model.num_sampled:,} draws by {sampler_name} for {per}"
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
            unit = "step" if self.warmup_steps == 1 else "steps"
            rate += f", warm-up of {self.warmup_steps:,} {unit}"

        steps = "compiled steps"
        if self.step_by_step is not None:
            steps = f"steps one by one: {self.step_by_step}"

        parts = [
            f"{self.num_classes:,} classes, {self.num_examples:,} examples",
            loss,
            f"{vectors}, tau {model.tau:.3g}",
            f"at most {self.epochs} epochs of batches of {self.batch_size:,}",
            rate,
            steps,
        ]
        if self.runner_up is not None:
            parts.append(f"runner-up: {self.runner_up}")
        return "; ".join(parts)


def resolve(
    requested: FitSettings,
    num_classes: int,
    num_examples: int,
    *,
    several_labels: bool = False,
    num_held_back: int = 0,
    row_norm: float = 1.0,
    step_by_step: str | None = None,
    chooses_epochs: bool = False,
    labels_each: float | None = None,
    entries_each: float | None = None,
) -> Resolved:
    """Determine all defaults of a fit, and return its final settings.

    Parameters
    ----------
    requested : FitSettings
        Settings as the user gave them.
    num_classes, num_examples : int
        Number of classes n, and of examples N in an epoch.
    several_labels : bool
        Whether examples may have several labels.
    num_held_back : int
        Number of examples that are held out for the first half of the epochs. They are then trained
        on once, and belong to all later epochs.
    row_norm : float
        Mean norm of the inputs.
    step_by_step : str, optional
        Reason why training takes steps one by one; None if it takes fused steps.
    chooses_epochs : bool
        Whether held-out examples determine when training ends. The number of epochs is then the
        largest one, and the default schedule is ``"inverse-sqrt"``.
    labels_each, entries_each : float, optional
        Mean number of labels and of nonzero inputs of an example, for the cost of the runner-up.

    Returns
    -------
    Resolved
        The final settings.

    Raises
    ------
    TypeError, ValueError
        If the model's settings are malformed, or inconsistent.

    Examples
    --------
    >>> fields = {"loss": "sampled-masked", "sampler": "unigram", "embedding_dim": 64}
    >>> requested = FitSettings(model=fields, batch_size=128)
    >>> print(resolve(requested, 50_000, 10_000))
    50,000 classes, 10,000 examples; sampled-masked, 1,000 draws by unigram for a batch; vectors of
    64, of norm 1, tau 16.2; at most 10 epochs of batches of 128; adagrad at 0.1; compiled steps
    >>> resolve(requested, 80, 10_000).model.loss
    'full'
    """
    model = requested.model
    if not isinstance(model, LinearSoftmaxSettings):
        model = _resolve_model(model, num_classes, several_labels)
    model = model.resolved()
    on_inputs = model.embedding_dim is None

    epochs = requested.epochs
    if epochs is None:
        epochs = MAX_CHOSEN_EPOCHS
        if not (chooses_epochs or requested.early_stopping):
            epochs = _num_fixed_epochs(requested.batch_size, num_examples, on_inputs)

    num_late_epochs = epochs - calibration_epoch(epochs)
    num_steps = calibration_epoch(epochs) * _num_steps(num_examples, requested.batch_size)
    num_steps += _num_steps(num_held_back, requested.batch_size)
    num_steps += num_late_epochs * _num_steps(num_examples + num_held_back, requested.batch_size)

    learning_rate = requested.learning_rate
    if learning_rate is None:
        learning_rate = default_learning_rate(
            requested.optimizer, on_inputs=on_inputs, row_norm=row_norm
        )

    return Resolved(
        model=model,
        num_classes=num_classes,
        num_examples=num_examples,
        epochs=epochs,
        batch_size=requested.batch_size,
        num_steps=num_steps,
        optimizer=requested.optimizer,
        learning_rate=float(learning_rate),
        schedule=requested.schedule or ("inverse-sqrt" if chooses_epochs else "constant"),
        warmup_steps=requested.warmup_steps + ceil(requested.warmup * num_steps),
        step_by_step=step_by_step,
        runner_up=_runner_up(
            requested.model, model, num_classes, several_labels, labels_each, entries_each
        ),
    )


def step_cost(num_scored: int, labels_each: float, entries_each: float) -> float:
    """Return the cost of a training step per example.

    The unit is the cost of a class whose score and gradients are computed. `num_scored` is the
    number of draws, or of all classes; `labels_each` and `entries_each` are the mean numbers of
    labels and of nonzero inputs of an example.
    """
    labels_and_inputs = _COST_OF_LABEL * labels_each + _COST_OF_ENTRY * entries_each
    return num_scored + labels_and_inputs + _COST_OF_EXAMPLE


def calibration_epoch(epochs: int) -> int:
    """Return the number of epochs after which a model is calibrated: half of all, rounded up."""
    return -(-epochs // 2)


def _num_steps(num_examples: int, batch_size: int) -> int:
    """Return the number of steps in an epoch."""
    return -(-num_examples // batch_size)


def _num_fixed_epochs(batch_size: int, num_examples: int, on_inputs: bool) -> int:
    """Return the default number of epochs without held-out examples.

    `on_inputs` is true for a model without an embedding.
    """
    if on_inputs:
        return _EPOCHS_ON_INPUTS
    steps = max(_num_steps(num_examples, batch_size), 1)
    return max(_FIXED_EPOCHS, min(-(-_MIN_STEPS // steps), MAX_CHOSEN_EPOCHS))


def _runner_up(
    requested: Any,
    model: LinearSoftmaxSettings,
    num_classes: int,
    several_labels: bool,
    labels_each: float | None,
    entries_each: float | None,
) -> str | None:
    """Return the alternative to the loss that was chosen by cost, and its cost."""
    if labels_each is None or entries_each is None or num_classes < 2:
        return None
    if isinstance(requested, LinearSoftmaxSettings) or not _is_chosen_by_cost(requested):
        return None

    num_shared = num_shared_draws(num_classes, several_labels)
    if num_shared >= num_classes:
        return None
    full = step_cost(num_classes, labels_each, entries_each)
    sampled = step_cost(num_shared, labels_each, entries_each)
    if model.loss == "full":
        return f"{num_shared:,} shared draws, about {sampled / full:.2g} of the time"
    return f"the full softmax, about {full / sampled:.2g} times the time"


def _resolve_model(
    requested: Mapping[str, Any], num_classes: int, several_labels: bool
) -> LinearSoftmaxSettings:
    """Return the settings of a model with `num_classes` classes, from the fields a user gave.

    A sampled loss becomes the full softmax if there are few classes. If examples share their draws
    or have several labels, draws cannot exclude the labels, and the loss becomes its masked
    variant.
    """
    spec = LOSSES[requested["loss"]]
    embedding_dim = requested.get("embedding_dim", LinearSoftmaxSettings.embedding_dim)
    if embedding_dim == "auto":
        few_classes = num_classes <= _FEW_CLASSES
        embedding_dim = _DIM_OF_FEW_CLASSES if few_classes else _DIM_OF_MANY_CLASSES

    settings = {
        **requested,
        "embedding_dim": embedding_dim,
        "num_sampled": num_draws(requested, num_classes, several_labels),
    }

    unit_vectors = requested.get("normalize")
    if unit_vectors is None:
        unit_vectors = normalizes_by_default(embedding_dim, requested["loss"])

    if requested.get("tau") is None and unit_vectors:  # the default grows with log(n)
        settings["tau"] = default_tau(num_classes)

    if scores_all_classes(requested, num_classes, several_labels):
        settings |= {"sampler": None, "num_sampled": None, "shared": False}
        # for so few classes the full softmax costs at most about twice as much as a sampled one
        if spec.draws:
            settings["loss"] = "full"
            if settings.get("label_reduction") == "ova":  # which the full softmax does not have
                settings["label_reduction"] = "pal-n"
    elif several_labels or requested.get("shared"):
        # draws that several labels or examples share cannot exclude all of their labels
        settings["loss"] = spec.masked or requested["loss"]

    return LinearSoftmaxSettings(**settings)


def num_draws(requested: Mapping[str, Any], num_classes: int, several_labels: bool = False) -> Any:
    """Return the number of draws that the user gave, possibly "auto", or else the default number.

    If the examples of a batch share their draws, draws are cheap, and their default number grows
    with the number of classes.
    """
    if requested.get("num_sampled") is not None:
        return requested["num_sampled"]
    if not _draws_are_cheap(requested):
        return NUM_SAMPLED
    return num_shared_draws(num_classes, several_labels)


def num_shared_draws(num_classes: int, several_labels: bool) -> int:
    """Return the default number of draws that a batch shares."""
    if several_labels:
        return _MAX_SHARED_SAMPLED
    return max(_MIN_SHARED_SAMPLED, min(num_classes // _CLASSES_PER_DRAW, _MAX_SHARED_SAMPLED))


def scores_all_classes(
    requested: Mapping[str, Any], num_classes: int, several_labels: bool = False
) -> bool:
    """Return whether all classes are scored in each step, so that nothing is drawn.

    True for a loss over all classes, and for a single class. Also for a sampled softmax with few
    classes, if the user gave no number of draws.
    """
    spec = LOSSES[requested["loss"]]
    if not spec.draws or num_classes < 2:
        return True
    if requested.get("num_sampled") is not None or not spec.is_softmax:
        return False

    max_classes = NUM_SAMPLED
    if _is_chosen_by_cost(requested):
        max_classes = _MAX_FULL_CLASSES_SEVERAL_LABELS if several_labels else _MAX_FULL_CLASSES
    return num_classes <= max_classes


def _is_chosen_by_cost(requested: Mapping[str, Any]) -> bool:
    """Return whether the number of classes determines if the softmax is full or sampled.

    This is so for the default loss with cheap draws, if the user gave no number of draws.
    """
    has_default_loss = requested["loss"] == LinearSoftmaxSettings.loss
    is_default = has_default_loss and requested.get("num_sampled") is None
    return is_default and _draws_are_cheap(requested)


def _draws_are_cheap(requested: Mapping[str, Any]) -> bool:
    """Return whether the examples of a batch share draws that do not depend on vectors."""
    sampler = requested["sampler"]
    is_named = isinstance(sampler, str) and sampler in SAMPLERS
    is_unshared = requested.get("shared") is False or not LOSSES[requested["loss"]].shares_draws
    return is_named and not is_unshared and not SAMPLERS[sampler].follows_vectors
