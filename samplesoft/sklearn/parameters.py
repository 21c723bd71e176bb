"""Parameters of the classifier: checked, and given to `samplesoft.training.resolved.resolve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from samplesoft._validation import as_choice, as_count, as_flag, as_nonnegative, as_positive
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.optimizers.registry import OPTIMIZERS
from samplesoft.training.resolved import NUM_SAMPLED, FitSettings, resolve, scores_all
from samplesoft.training.schedules import SCHEDULES
from samplesoft.tuning.pilot import PILOT, check_auto, is_auto


def check_parameters(classifier: Any) -> None:
    """Raise TypeError or ValueError for a parameter that is malformed or does not fit others."""
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        if name != "max_iter" or classifier.max_iter is not None:
            as_count(name, getattr(classifier, name))
    as_choice("optimizer", classifier.optimizer, OPTIMIZERS)
    if classifier.learning_rate is not None:
        as_positive("learning_rate", classifier.learning_rate)
    as_choice("schedule", classifier.schedule, SCHEDULES)
    as_nonnegative("warmup", classifier.warmup, below=1.0)
    as_nonnegative("tol", classifier.tol)
    share = as_positive("validation_fraction", classifier.validation_fraction)
    if share >= 1.0:
        raise ValueError(f"`validation_fraction` must be less than 1, got {share}.")
    for name in ("average", "calibrate", "early_stopping", "warm_start"):
        as_flag(name, getattr(classifier, name))
    offered = [name for name, spec in LOSSES.items() if spec.classifier]
    as_choice("loss", classifier.loss, offered)
    # more classes than are scored at once, so that sampler and draws are checked too
    many = NUM_SAMPLED + 1
    settings = resolve(fit_settings(classifier, many, PILOT), many, many).model
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


def fit_settings(classifier: Any, num_classes: int, chosen: Mapping[str, Any]) -> FitSettings:
    """Return what a classifier's parameters ask of `fit`.

    What is ``"auto"`` is as in `chosen`, as if the user had named it.
    """
    model = model_fields(classifier)
    if wants_pilot(classifier, num_classes):
        named = {name for name in ("sampler", "num_sampled") if not is_auto(model[name])}
        named = set() if chosen.get("loss") == "full" else named  # which draws nothing
        model |= {name: chosen[name] for name in PILOT if name in chosen and name not in named}
    return FitSettings(
        model=model,
        batch_size=classifier.batch_size,
        # of one class there is nothing to learn
        epochs=classifier.max_iter if num_classes > 1 else 1,
        optimizer=classifier.optimizer,
        learning_rate=classifier.learning_rate,
        schedule=classifier.schedule,
        warmup=classifier.warmup,
        early_stopping=classifier.early_stopping,
    )


def model_fields(classifier: Any) -> dict[str, Any]:
    """Return the parameters of a classifier that are fields of `LinearSoftmaxSettings`."""
    names = [field.name for field in fields(LinearSoftmaxSettings)]
    return {name: getattr(classifier, name) for name in names if hasattr(classifier, name)}


def wants_pilot(classifier: Any, num_classes: int) -> bool:
    """Return whether a parameter is ``"auto"`` that has an effect."""
    auto = is_auto(classifier.sampler, classifier.num_sampled)
    return auto and not scores_all(model_fields(classifier), num_classes)


def require_same_model(classifier: Any, wanted: LinearSoftmaxSettings) -> None:
    """Raise ValueError unless the model was made with the parameters as they are."""
    learner = classifier._learner
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
