"""Checks of the classifier's parameters, and their conversion to training settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from samplesoft._validation import as_choice, as_count, as_flag, as_nonnegative, as_positive
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.optimizers.registry import OPTIMIZERS
from samplesoft.training.resolved import FitSettings, resolve, scores_all_classes
from samplesoft.training.schedules import SCHEDULES
from samplesoft.tuning.pilot import PILOT_SETTINGS, any_is_auto, require_auto_supported


def check_parameters(classifier: Any) -> None:
    """Raise TypeError or ValueError for a parameter that is malformed or conflicts with others."""
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        if name != "max_iter" or classifier.max_iter is not None:
            as_count(name, getattr(classifier, name))

    if isinstance(classifier.embedding_dim, str) and classifier.embedding_dim != "auto":
        raise ValueError(
            "`embedding_dim` must be a whole number, 'auto' or None, got "
            f"{classifier.embedding_dim!r}."
        )
    as_choice("optimizer", classifier.optimizer, OPTIMIZERS)
    if classifier.learning_rate is not None:
        as_positive("learning_rate", classifier.learning_rate)
    if classifier.schedule is not None:
        as_choice("schedule", classifier.schedule, SCHEDULES)
    as_nonnegative("warmup", classifier.warmup, below=1.0)
    as_nonnegative("tol", classifier.tol)

    fraction = as_positive("validation_fraction", classifier.validation_fraction)
    if fraction >= 1.0:
        raise ValueError(f"`validation_fraction` must be less than 1, got {fraction}.")

    for name in ("average", "calibrate", "early_stopping", "pair_weights", "warm_start"):
        as_flag(name, getattr(classifier, name))

    loss_names = [name for name, spec in LOSSES.items() if spec.classifier]
    as_choice("loss", classifier.loss, loss_names)

    # `resolve` also checks sampler and draws; with this number of classes it does not replace them
    # by the full softmax
    num_classes = 1 << 20
    settings = resolve(
        fit_settings(classifier, num_classes, PILOT_SETTINGS), num_classes, num_classes
    ).model

    if settings.sampler is not None and any_is_auto(classifier.sampler, classifier.num_sampled):
        if not isinstance(classifier.sampler, str):
            raise ValueError(
                "`num_sampled` must not be 'auto' with a sampler of your own, which has no name "
                "that samplesoft.tune knows; pass a number."
            )
        if classifier.embedding_dim is None:
            raise ValueError(
                "`sampler` and `num_sampled` must not be 'auto' with embedding_dim=None, which "
                "needs draws that do not depend on inputs; pass values, such as 'unigram' and 300."
            )
        require_auto_supported(classifier.sampler, classifier.loss)


def fit_settings(classifier: Any, num_classes: int, chosen: Mapping[str, Any]) -> FitSettings:
    """Return the training settings of a classifier.

    Parameters that are ``"auto"`` are replaced by the values in `chosen`.
    """
    model = linear_softmax_parameters(classifier)

    if needs_pilot(classifier, num_classes):
        user_named = {name for name in ("sampler", "num_sampled") if not any_is_auto(model[name])}
        if chosen.get("loss") == "full":  # the full softmax uses neither a sampler nor draws
            user_named = set()

        model |= {
            name: chosen[name]
            for name in PILOT_SETTINGS
            if name in chosen and name not in user_named
        }

    return FitSettings(
        model=model,
        batch_size=classifier.batch_size,
        # with only one class there is nothing to learn, so that one epoch is enough
        epochs=classifier.max_iter if num_classes > 1 else 1,
        optimizer=classifier.optimizer,
        learning_rate=classifier.learning_rate,
        schedule=classifier.schedule,
        warmup=classifier.warmup,
        early_stopping=classifier.early_stopping,
    )


def linear_softmax_parameters(classifier: Any) -> dict[str, Any]:
    """Return the parameters of a classifier that are also fields of `LinearSoftmaxSettings`."""
    names = [field.name for field in fields(LinearSoftmaxSettings)]
    return {name: getattr(classifier, name) for name in names if hasattr(classifier, name)}


def needs_pilot(classifier: Any, num_classes: int) -> bool:
    """Return whether a parameter is ``"auto"`` and its choice needs a pilot.

    No pilot is needed if the loss scores all classes.
    """
    auto = any_is_auto(classifier.sampler, classifier.num_sampled)
    return auto and not scores_all_classes(linear_softmax_parameters(classifier), num_classes)


def require_same_model(classifier: Any, current: LinearSoftmaxSettings) -> None:
    """Raise ValueError if parameters of the model have changed since the model was made.

    `current` are the settings that the current parameters give.
    """
    learner = classifier._learner
    if classifier.tau is None:  # `fit` may have changed the default tau
        current = replace(current, tau=classifier.model_.settings.tau)
    new_values = {**vars(current), "optimizer": classifier.optimizer}
    old_values = {**vars(classifier.model_.settings), "optimizer": learner.optimizer_name}

    # values are compared by identity first, because == of a user's sampler may do anything
    names = classifier.get_params(deep=False)
    changed = [
        name
        for name in new_values
        if name in names
        and new_values[name] is not old_values[name]
        and new_values[name] != old_values[name]
    ]
    if changed:
        raise ValueError(
            f"the model was made with other {', '.join(changed)}: got "
            f"{', '.join(repr(new_values[name]) for name in changed)}, and it has "
            f"{', '.join(repr(old_values[name]) for name in changed)}; call fit without "
            "warm_start, or set them back."
        )
