"""Parameters of the classifier: checked, and as settings of its model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from samplesoft._validation import as_choice, as_count, as_nonnegative, as_positive
from samplesoft.losses.registry import LOSSES
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.sklearn.example_weights import check_class_weight


def check_parameters(classifier: Any) -> None:
    """Raise TypeError or ValueError for a parameter that is malformed or does not fit others."""
    for name in ("max_iter", "batch_size", "n_iter_no_change"):
        as_count(name, getattr(classifier, name))
    as_positive("learning_rate", classifier.learning_rate)
    as_nonnegative("tol", classifier.tol)
    if not 0.0 < classifier.validation_fraction < 1.0:
        raise ValueError(
            f"`validation_fraction` must lie between 0 and 1, got {classifier.validation_fraction}."
        )
    check_class_weight(classifier.class_weight)
    model_settings(classifier, multilabel=False, num_classes=2)


def model_settings(classifier: Any, multilabel: bool, num_classes: int) -> LinearSoftmaxSettings:
    """Return what the parameters of a classifier say of its model.

    The loss takes its masked form where draws cannot leave out the label of an example; nothing is
    drawn where there is only one class.
    """
    offered = [name for name, spec in LOSSES.items() if spec.classifier]
    spec = LOSSES[as_choice("loss", classifier.loss, offered)]
    masked = spec.masked if multilabel or classifier.shared else None
    draws = spec.draws and num_classes > 1
    return LinearSoftmaxSettings(
        loss=(masked or classifier.loss) if draws else "full",
        sampler=classifier.sampler if draws else None,
        num_sampled=classifier.num_sampled if draws else None,
        shared=classifier.shared if draws else False,
        tau=classifier.tau,
        normalize=classifier.normalize,
        nu=classifier.nu,
        num_features=classifier.num_features,
        embedding_dim=classifier.embedding_dim,
        dropout=classifier.dropout,
    )


def require_same_model(classifier: Any) -> None:
    """Raise ValueError unless training can go on, with the parameters that the model was made with.

    Settings of a model of ``samplesoft train`` that the classifier has no parameters for stay.
    """
    if classifier._learner.optimizer is None:
        raise ValueError(
            "the model was trained by samplesoft train with another optimizer than Adagrad, or "
            "with clipped gradients, and a classifier cannot go on with that; resume the run, or "
            "call fit without warm_start."
        )
    wanted = model_settings(classifier, classifier._codec.multilabel, len(classifier.classes_))
    now, before = asdict(wanted), asdict(classifier.model_.settings)
    names = classifier.get_params(deep=False)
    changed = [name for name in now if name in names and now[name] != before[name]]
    if changed:
        raise ValueError(
            f"the model was made with other {', '.join(changed)}: got "
            f"{', '.join(repr(now[name]) for name in changed)}, and it has "
            f"{', '.join(repr(before[name]) for name in changed)}; call fit without warm_start, "
            "or set them back."
        )
