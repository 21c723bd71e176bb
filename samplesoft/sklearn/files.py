"""Files of a classifier: arrays and JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._names import part, prefixed
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.sklearn.label_codec import LabelCodec
from samplesoft.sklearn.learner import Learner
from samplesoft.training.checkpoint import (
    Checkpoint,
    copy_arrays,
    plain,
    read_checkpoint,
    write_checkpoint,
)
from samplesoft.training.linear_model import linear_softmax_config

_FITTED = ("n_iter_", "num_unlabeled_", "loss_curve_")
MODEL = "SampledSoftmaxClassifier"
_PROGRESS = ("seed", "num_steps", "num_epochs", "num_examples", "num_labels")


def write_classifier(path: str | Path, classifier: Any) -> None:
    """Write a classifier that has been fitted; see `SampledSoftmaxClassifier.save`."""
    parameters = classifier.get_params()
    seed, weight = parameters.pop("random_state"), parameters.pop("class_weight")
    if isinstance(weight, dict):
        parameters["class_weight"] = list(weight.items())
    elif weight is not None:
        parameters["class_weight"] = weight
    if isinstance(seed, (int, np.integer)):
        parameters["random_state"] = int(seed)
    learner = classifier._learner
    codec, model = learner.codec, learner.model
    classes = codec.classes
    names = getattr(classifier, "feature_names_in_", None)
    about = {
        "model": MODEL,
        "parameters": parameters,
        "settings": asdict(model.settings),
        "form": codec.form,
        "labels": str(codec.dtype),
        "classes": str(classes.dtype),
        "linear_softmax": linear_softmax_config(model, unit_inputs=False, leave_out=False),
        "feature_names": None if names is None else list(names),
    }
    progress = {name: getattr(learner, name) for name in _PROGRESS}
    for name in _FITTED:
        if hasattr(classifier, name):
            progress[name] = getattr(classifier, name)
    arrays = {
        "classes": classes.astype(str) if classes.dtype.hasobject else classes,
        "counts": learner.counts,
        **prefixed({"parameters": model.parameters}, "/"),
        **prefixed({"optimizer": learner.optimizer.state()}, "/"),
        **prefixed({"state": model.state()}, "/"),
    }
    write_checkpoint(path, Checkpoint(plain(about), plain(progress), arrays))


def read_classifier(path: str | Path, make: Any) -> Any:
    """Read a classifier; see `SampledSoftmaxClassifier.load`."""
    checkpoint = read_checkpoint(path)
    about = checkpoint.config
    if about.get("model") != MODEL:
        raise ValueError(
            f"{str(path)!r} must hold a {MODEL}, got {about.get('model')!r}; read it with what "
            "wrote it."
        )
    try:
        return _rebuilt(path, checkpoint, make)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} must hold what this version of samplesoft writes, got a file without "
            f"or with unknown {error}; read it with the version that wrote it."
        ) from None


def _rebuilt(path: str | Path, checkpoint: Checkpoint, make: Any) -> Any:
    about, arrays, values = checkpoint.config, checkpoint.arrays, checkpoint.values
    parameters, model = about["parameters"], about["linear_softmax"]
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = {label: weight for label, weight in parameters["class_weight"]}
    classifier = make(**parameters)
    learner = Learner(
        LabelCodec(
            arrays["classes"].astype(about["classes"]), about["form"], np.dtype(about["labels"])
        ),
        model["num_inputs"],
        LinearSoftmaxSettings(**about["settings"]),
        arrays["counts"],
        np.dtype(model["dtype"]),
        values["seed"],
    )
    copy_arrays(path, part("parameters", arrays, "/"), learner.model.parameters)
    learner.model.softmax.refresh()
    learner.model.load_state(part("state", arrays, "/"))
    learner.optimizer.load_state(part("optimizer", arrays, "/"))
    for name in _PROGRESS:
        setattr(learner, name, values[name])
    classifier._take(learner)
    for name in _FITTED:
        if name in values:
            setattr(classifier, name, values[name])
    classifier.n_features_in_ = model["num_inputs"]
    if about["feature_names"] is not None:
        classifier.feature_names_in_ = np.array(about["feature_names"], dtype=object)
    return classifier
