"""Files of a classifier: arrays and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._names import part, prefixed
from samplesoft.sklearn.targets import Targets
from samplesoft.training.checkpoint import (
    Checkpoint,
    copy_arrays,
    plain,
    read_checkpoint,
    write_checkpoint,
)

MODEL = "SampledSoftmaxClassifier"
_PROGRESS = ("_seed", "_num_steps", "_num_epochs", "_num_examples", "_num_labels", "n_iter_")


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
    targets, model = classifier._targets, classifier.model_
    classes = targets.classes
    names = getattr(classifier, "feature_names_in_", None)
    about = {
        "model": MODEL,
        "parameters": parameters,
        "form": targets.form,
        "labels": str(targets.dtype),
        "classes": str(classes.dtype),
        "num_inputs": classifier.n_features_in_,
        "dtype": str(model.dtype),
        "feature_names": None if names is None else list(names),
    }
    progress = {name: getattr(classifier, name) for name in _PROGRESS}
    arrays = {
        "classes": _without_objects(classes),
        "counts": classifier._counts,
        **prefixed({"parameters": model.parameters}, "/"),
        **prefixed({"optimizer": classifier._optimizer.state()}, "/"),
        **prefixed({"state": model.state()}, "/"),
    }
    write_checkpoint(path, Checkpoint(plain(about), plain(progress), arrays))


def read_classifier(path: str | Path, make: Any) -> Any:
    """Read a classifier; see `SampledSoftmaxClassifier.load`."""
    checkpoint = read_checkpoint(path)
    about, arrays = checkpoint.config, checkpoint.arrays
    if about.get("model") != MODEL:
        raise ValueError(
            f"{str(path)!r} must hold a {MODEL}, got {about.get('model')!r}; read it with what "
            "wrote it."
        )
    parameters = about["parameters"]
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = {label: weight for label, weight in parameters["class_weight"]}
    classifier = make(**parameters)
    classes = arrays["classes"].astype(about["classes"])
    targets = Targets(classes, about["form"], np.dtype(about["labels"]))
    seed = checkpoint.values["_seed"]
    classifier._make(targets, about["num_inputs"], about["dtype"], arrays["counts"], seed)
    classifier.n_features_in_ = about["num_inputs"]
    if about["feature_names"] is not None:
        classifier.feature_names_in_ = np.array(about["feature_names"], dtype=object)
    copy_arrays(path, part("parameters", arrays, "/"), classifier.model_.parameters)
    classifier.model_.softmax.refresh()
    classifier.model_.load_state(part("state", arrays, "/"))
    classifier._optimizer.load_state(part("optimizer", arrays, "/"))
    for name in _PROGRESS:
        setattr(classifier, name, checkpoint.values[name])
    return classifier


def _without_objects(classes: Any) -> Any:
    if not classes.dtype.hasobject:
        return classes
    if not all(isinstance(label, str) for label in classes):
        raise TypeError(
            "`classes_` must hold numbers or strings to be written, got "
            f"{type(classes[0]).__name__}; fit on labels of one of these types."
        )
    return classes.astype(str)
