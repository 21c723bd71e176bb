"""Writing and reading a classifier as a file of arrays and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from samplesoft._files import with_prefixes
from samplesoft._validation import short_repr
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.sklearn.labels import LabelCodec
from samplesoft.sklearn.learner import ClassifierTask
from samplesoft.training.checkpoint import (
    Checkpoint,
    array_group,
    copy_arrays,
    open_checkpoint,
    plain,
    storable_parameters,
    write_checkpoint,
)
from samplesoft.training.resolved import Resolved
from samplesoft.training.trained import (
    classes_to_store,
    linear_softmax_config,
    stored_classes,
    stored_pair_weights,
)

_T = TypeVar("_T")
_MODEL = "SampledSoftmaxClassifier"
_FITTED_ATTRIBUTES = (
    "n_iter_",
    "num_unlabeled_",
    "loss_curve_",
    "held_out_losses_",
    "validation_scores_",
    "auto_choice_",
)
# from keys in files to attributes of the learner
_LEARNER_FIELDS = {
    "seed": "seed",
    "num_steps": "steps_taken",
    "num_epochs": "epochs_begun",
    "num_examples": "examples_seen",
    "num_labels": "labels_seen",
    "row_norm": "row_norm",
}


def write_classifier(path: str | Path, classifier: Any) -> None:
    """Write a fitted classifier to the file `path`; see `SampledSoftmaxClassifier.save`."""
    learner = classifier._learner
    codec = learner.codec
    model = learner.model

    for sampler in (classifier.sampler, model.settings.sampler):
        if sampler is not None and not isinstance(sampler, str):
            raise TypeError(
                f"`sampler` must be a name to be saved, got {short_repr(sampler)}; give it a name "
                "in samplesoft.samplers.SAMPLERS and fit with that, or pickle the classifier."
            )

    parameters = storable_parameters(classifier.get_params())
    # as a list, because JSON keys are text
    if isinstance(parameters["class_weight"], dict):
        parameters["class_weight"] = list(parameters["class_weight"].items())

    names = getattr(classifier, "feature_names_in_", None)
    class_config, classes = classes_to_store(codec.classes)
    config = {
        "model": _MODEL,
        "parameters": parameters,
        "settings": model.settings.config(),
        "form": codec.form,
        "labels": str(codec.dtype),
        **class_config,
        "linear_softmax": linear_softmax_config(model, unit_inputs=False, leave_out=False),
        "optimizer": learner.optimizer_name,
        "feature_names": None if names is None else list(names),
    }

    resolved = getattr(classifier, "resolved_", None)
    values = {
        "resolved": None if resolved is None else resolved.stored(),
        "learner": {
            name: getattr(learner, attribute) for name, attribute in _LEARNER_FIELDS.items()
        },
        "fitted": {
            name: vars(classifier)[name] for name in _FITTED_ATTRIBUTES if name in vars(classifier)
        },
        "calibrated": learner.calibrated,
    }

    array_groups = {
        "parameters": model.parameters,
        "optimizer": learner.optimizer.state(),
        "state": model.state(),
        "pair_weights": {} if model.pair_weights is None else model.pair_weights.arrays(),
    }
    arrays = {**classes, "counts": learner.counts, **with_prefixes(array_groups, "/")}
    write_checkpoint(path, Checkpoint(plain(config), plain(values), arrays))


def read_classifier(path: str | Path, make: type[_T]) -> tuple[_T, ClassifierTask]:
    """Return the classifier that is stored in the file `path`, and its learner.

    The classifier is an instance of the class `make`. See `SampledSoftmaxClassifier.load`.
    """
    with open_checkpoint(path, _MODEL) as (config, values, arrays):
        parameters = config["parameters"]
        if isinstance(parameters["class_weight"], list):
            parameters["class_weight"] = dict(parameters["class_weight"])
        classifier = make(**parameters)

        model_config = config["linear_softmax"]
        learner_values = values["learner"]
        classes = stored_classes(config, arrays)
        if classes is None:
            raise ValueError("there are no classes")

        learner = ClassifierTask(
            LabelCodec(classes, config["form"], np.dtype(config["labels"])),
            model_config["num_inputs"],
            LinearSoftmaxSettings(**config["settings"]),
            arrays["counts"],
            np.dtype(model_config["dtype"]),
            learner_values["seed"],
            config["optimizer"],
        )

        # in this order: first rebuild the sampler from the class vectors, then load its state
        copy_arrays(path, array_group("parameters", arrays), learner.model.parameters)
        learner.model.softmax.refresh()
        learner.model.load_state(array_group("state", arrays))
        learner.optimizer.load_state(array_group("optimizer", arrays))
        learner.model.pair_weights = stored_pair_weights(arrays, learner.model)

        vars(learner).update(
            {attribute: learner_values[name] for name, attribute in _LEARNER_FIELDS.items()}
        )
        if values["calibrated"] is not None:
            learner.calibrated = type(learner.calibration)(*values["calibrated"])

        fitted = {
            name: values["fitted"][name] for name in _FITTED_ATTRIBUTES if name in values["fitted"]
        }
        fitted["n_features_in_"] = model_config["num_inputs"]
        if values.get("resolved") is not None:
            fitted["resolved_"] = Resolved(learner.model.settings, **values["resolved"])
        if config["feature_names"] is not None:
            fitted["feature_names_in_"] = np.array(config["feature_names"], dtype=object)
        vars(classifier).update(fitted)

    return classifier, learner
