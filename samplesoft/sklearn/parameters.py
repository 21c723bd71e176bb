"""Parameters of the classifier: checked, and resolved into what is done.

All defaults that depend on the data are settled here: `model_settings` settles those of the model,
`resolve` those of its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import ceil
from typing import Any

from samplesoft._temperature import tau_of_classes
from samplesoft._validation import as_choice, as_count, as_flag, as_nonnegative, as_positive
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings, normalizes
from samplesoft.models.optimizers import OPTIMIZERS
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training.resolved import Resolved
from samplesoft.training.schedules import SCHEDULES, default_learning_rate
from samplesoft.tuning.pilot import PILOT, check_auto, is_auto

NUM_SAMPLED = 100  # draws by default, and classes up to which nothing is drawn
_MOST_SAMPLED, _SHARE = 1000, 32  # of a set for a whole batch: a draw for so many classes
_ROUNDS, _MOST_ROUNDS = 5, 20
_STEPS = 200  # of few examples, for which there are more rounds
_MANY, _FEWEST_ROUNDS = 1 << 18, 3  # of so many examples each round has very many steps


def check_parameters(classifier: Any) -> None:
    """Raise TypeError or ValueError for a parameter that is malformed or does not fit others."""
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        if name != "max_iter" or classifier.max_iter is not None:
            as_count(name, getattr(classifier, name))
    as_choice("optimizer", classifier.optimizer, OPTIMIZERS)
    as_positive("learning_rate", learning_rate(classifier, 1.0))  # of any norm: its sign counts
    as_choice("schedule", classifier.schedule, SCHEDULES)
    as_nonnegative("warmup", classifier.warmup, below=1.0)
    as_nonnegative("tol", classifier.tol)
    share = as_positive("validation_fraction", classifier.validation_fraction)
    if share >= 1.0:
        raise ValueError(f"`validation_fraction` must be less than 1, got {share}.")
    for name in ("average", "calibrate", "early_stopping", "warm_start"):
        as_flag(name, getattr(classifier, name))
    # more classes than are scored at once, so that sampler and draws are checked too
    settings = model_settings(classifier, False, NUM_SAMPLED + 1, PILOT)
    if settings.sampler is not None and is_auto(classifier.sampler, classifier.num_sampled):
        if not isinstance(classifier.sampler, str):
            raise ValueError(
                "`num_sampled` must not be 'auto' with a sampler of your own, which has no name "
                "that samplesoft.tune knows; give a number."
            )
        if classifier.embedding_dim is None:
            raise ValueError(
                "`sampler` and `num_sampled` must not be 'auto' with embedding_dim=None, which "
                "takes draws that do not look at inputs; name them, such as 'unigram' and 300."
            )
        check_auto(classifier.sampler, classifier.loss)


def model_settings(
    classifier: Any, multilabel: bool, num_classes: int, chosen: Mapping[str, Any]
) -> LinearSoftmaxSettings:
    """Return what the parameters of a classifier say of its model.

    The loss takes its masked form where draws cannot leave out the label of an example; nothing is
    drawn where there are few classes. What is ``"auto"`` is as in `chosen`.
    """
    offered = [name for name, spec in LOSSES.items() if spec.classifier]
    as_choice("loss", classifier.loss, offered)
    asked = {name: getattr(classifier, name) for name in PILOT}
    asked["num_sampled"] = num_draws(classifier, num_classes)
    if wants_pilot(classifier, num_classes):
        named = {name for name in ("sampler", "num_sampled") if not is_auto(asked[name])}
        named = set() if chosen.get("loss") == "full" else named  # which draws nothing
        asked |= {name: chosen[name] for name in PILOT if name in chosen and name not in named}
    names = [field.name for field in fields(LinearSoftmaxSettings)]
    settings = {name: getattr(classifier, name) for name in names if hasattr(classifier, name)}
    settings |= asked
    unit_vectors = classifier.normalize
    if unit_vectors is None:
        unit_vectors = normalizes(classifier.embedding_dim, classifier.loss)
    if classifier.tau is None and unit_vectors:  # of which a default grows with log n
        settings["tau"] = tau_of_classes(num_classes)
    spec = LOSSES[asked["loss"]]
    if is_full(classifier, num_classes):
        settings |= {"sampler": None, "num_sampled": None, "shared": False}
        if spec.draws:  # an estimate of the full softmax, which is no dearer here
            settings |= {"loss": "full", "label_reduction": "pal-n"}
    elif multilabel or asked["shared"]:  # one set of draws cannot leave out several labels
        settings["loss"] = spec.masked or asked["loss"]
    return LinearSoftmaxSettings(**settings)


def resolve(classifier: Any, learner: Any, num_apart: int) -> Resolved:
    """Return how a model is trained on the rows that it uses, and later on some that are apart."""
    num_rows, size = len(learner.rows), learner.batch_size
    num_classes = len(learner.codec.classes)
    # of one class there is nothing to learn
    epochs = num_rounds(classifier, num_rows) if num_classes > 1 else 1
    early = half_of(epochs)
    late = epochs - early
    # those that are apart are learned once between the halves
    num_steps = early * _steps(num_rows, size)
    num_steps += _steps(num_apart, size)
    num_steps += late * _steps(num_rows + num_apart, size)
    return Resolved(
        model=learner.model.settings,
        num_classes=num_classes,
        num_examples=num_rows,
        epochs=epochs,
        batch_size=size,
        num_steps=num_steps,
        optimizer=learner.optimizer_name,
        learning_rate=float(learning_rate(classifier, learner.row_norm)),
        schedule=classifier.schedule,
        warmup_steps=ceil(classifier.warmup * num_steps),
        step_by_step=learner.why_step_by_step(learner.optimizer),
    )


def half_of(epochs: int) -> int:
    """Return the epoch at whose end a model is calibrated, counted from 1."""
    return -(-epochs // 2)


def _steps(num_examples: int, batch_size: int) -> int:
    return -(-num_examples // batch_size)


def learning_rate(classifier: Any, row_norm: float) -> Any:
    """Return the learning rate before the schedule, for inputs of such a norm in the mean."""
    if classifier.learning_rate is not None:
        return classifier.learning_rate
    on_inputs = classifier.embedding_dim is None
    return default_learning_rate(classifier.optimizer, on_inputs=on_inputs, row_norm=row_norm)


def num_draws(classifier: Any, num_classes: int) -> Any:
    """Return the number of draws, or ``"auto"``.

    By default it grows with the classes where one set serves a batch, which costs little.
    """
    if classifier.num_sampled is not None:
        return classifier.num_sampled
    named = isinstance(classifier.sampler, str) and classifier.sampler in SAMPLERS
    alone = classifier.shared is False or not LOSSES[classifier.loss].shares
    if alone or not named or SAMPLERS[classifier.sampler].follows_vectors:
        return NUM_SAMPLED
    return max(NUM_SAMPLED, min(num_classes // _SHARE, _MOST_SAMPLED))


def num_rounds(classifier: Any, num_examples: int) -> int:
    """Return how often to go over so many examples, at most."""
    if classifier.max_iter is not None:
        return int(classifier.max_iter)
    if classifier.early_stopping or classifier.embedding_dim is None:
        return _MOST_ROUNDS
    if num_examples >= _MANY:
        return _FEWEST_ROUNDS
    steps = _steps(num_examples, classifier.batch_size)
    return int(max(_ROUNDS, min(-(-_STEPS // max(steps, 1)), _MOST_ROUNDS)))


def is_full(classifier: Any, num_classes: int) -> bool:
    """Return whether all classes are scored: one, or no more than are drawn by default.

    A loss that is no estimate of the full softmax has draws in the second case too.
    """
    spec = LOSSES[classifier.loss]
    few = classifier.num_sampled is None and num_classes <= NUM_SAMPLED
    return not spec.draws or num_classes < 2 or (few and spec.is_softmax)


def wants_pilot(classifier: Any, num_classes: int) -> bool:
    """Return whether a parameter is ``"auto"`` that has an effect."""
    auto = is_auto(classifier.sampler, classifier.num_sampled)
    return auto and not is_full(classifier, num_classes)


def require_same_model(classifier: Any) -> None:
    """Raise ValueError unless the model was made with the parameters as they are."""
    learner = classifier._learner
    chosen = getattr(classifier, "auto_choice_", {})
    several, n = learner.codec.multilabel, len(classifier.classes_)
    wanted = model_settings(classifier, several, n, chosen)
    now = {**vars(wanted), "optimizer": classifier.optimizer}
    before = {**vars(classifier.model_.settings), "optimizer": learner.optimizer_name}
    names = classifier.get_params(deep=False)
    changed = [
        name
        for name in now
        # a sampler of one's own may have an == of its own, so that the same one is looked for first
        if name in names and now[name] is not before[name] and now[name] != before[name]
    ]
    if changed:
        raise ValueError(
            f"the model was made with other {', '.join(changed)}: got "
            f"{', '.join(repr(now[name]) for name in changed)}, and it has "
            f"{', '.join(repr(before[name]) for name in changed)}; call fit without warm_start, "
            "or set them back."
        )
