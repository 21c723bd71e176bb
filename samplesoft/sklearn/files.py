"""Files of a classifier: arrays and JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._files import part, prefixed
from samplesoft._random import as_key
from samplesoft._validation import as_choice, as_count, as_counts, as_flag, as_positive, shown
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.sklearn.calibration import Calibration, LogisticCalibration, SoftmaxCalibration
from samplesoft.sklearn.label_codec import LabelCodec
from samplesoft.sklearn.label_forms import DENSE, LISTS, SINGLE, SPARSE
from samplesoft.sklearn.learner import Learner
from samplesoft.sklearn.runs import MODEL, of_run
from samplesoft.training.checkpoint import (
    Checkpoint,
    copy_arrays,
    plain,
    read_checkpoint,
    rebuilding,
    write_checkpoint,
)
from samplesoft.training.trained import linear_softmax_config, require_sizes
from samplesoft.tuning.pilot import PILOT

_FITTED = ("n_iter_", "num_unlabeled_", "loss_curve_", "validation_scores_", "auto_choice_")
_CHOICE = {*PILOT, "verdict"}
_PROGRESS = ("seed", "num_steps", "num_epochs", "num_examples", "num_labels")


def write_classifier(path: str | Path, classifier: Any) -> None:
    """Write a classifier that has been fitted; see `SampledSoftmaxClassifier.save`."""
    for sampler in (classifier.sampler, classifier.model_.settings.sampler):
        if sampler is not None and not isinstance(sampler, str):
            raise TypeError(
                f"`sampler` must be a name to be saved, got {shown(sampler)}; give it a name in "
                "samplesoft.samplers.SAMPLERS and fit with that, or pickle the classifier."
            )
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
        "linear_softmax": linear_softmax_config(
            model, unit_inputs=learner.unit_inputs, leave_out=learner.leave_out
        ),
        "optimizer": learner.optimizer_name,
        "feature_names": None if names is None else list(names),
    }
    progress = {name: getattr(learner, name) for name in _PROGRESS}
    progress |= {"calibrated": learner.calibrated, "row_norm": learner.row_norm}
    for name in _FITTED:
        if hasattr(classifier, name):
            progress[name] = getattr(classifier, name)
    if classes.dtype.hasobject:
        if not all(isinstance(label, str) for label in classes):
            raise TypeError(
                "`classes_` must be text or numbers to be saved, got Python objects such as "
                f"{shown(next(label for label in classes if not isinstance(label, str)))}; convert "
                "the labels with numpy.asarray(y, dtype=...) and fit again."
            )
        classes = classes.astype(str)
    arrays = {
        "classes": classes,
        "counts": learner.counts,
        **prefixed({"parameters": model.parameters}, "/"),
        **prefixed({"optimizer": learner.optimizer.state() if learner.optimizer else {}}, "/"),
        **prefixed({"state": model.state()}, "/"),
    }
    write_checkpoint(path, Checkpoint(plain(about), plain(progress), arrays))


def read_classifier(path: str | Path, make: Any) -> Any:
    """Read a classifier; see `SampledSoftmaxClassifier.load`."""
    checkpoint = read_checkpoint(path)
    with rebuilding(path):
        if "task" in checkpoint.config:
            checkpoint = of_run(path, checkpoint)
        model = checkpoint.config.get("model")
        if model != MODEL:
            raise ValueError(
                f"{str(path)!r} must hold a {MODEL}, got {shown(model)}; read it with what wrote "
                "it."
            )
        return _rebuilt(path, checkpoint, make)


def _rebuilt(path: str | Path, checkpoint: Checkpoint, make: Any) -> Any:
    about, arrays, values = checkpoint.config, checkpoint.arrays, checkpoint.values
    parameters, model = about["parameters"], about["linear_softmax"]
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = {label: weight for label, weight in parameters["class_weight"]}
    classifier = make(**parameters)
    require_sizes(model, part("parameters", arrays, "/"))
    _require_progress(values)
    learner = Learner(
        _codec(about, arrays["classes"], model["num_classes"]),
        model["num_inputs"],
        LinearSoftmaxSettings(**about["settings"]),
        as_counts("counts", arrays["counts"], model["num_classes"]),
        np.dtype(model["dtype"]),
        values["seed"],
        about["optimizer"],
    )
    copy_arrays(path, part("parameters", arrays, "/"), learner.model.parameters)
    learner.model.softmax.refresh()
    learner.model.load_state(part("state", arrays, "/"))
    state = part("optimizer", arrays, "/")
    if learner.optimizer and state:
        learner.optimizer.load_state(state)
    else:  # of a run with more than that
        learner.optimizer = None
    learner.unit_inputs = as_flag("unit_inputs", model["unit_inputs"])
    learner.leave_out = as_flag("leave_out", model["leave_out"])
    for name in _PROGRESS:
        setattr(learner, name, values[name])
    learner.calibrated = _calibration(values, learner.calibration)
    learner.row_norm = as_positive("row_norm", values.get("row_norm", 1.0))  # a run has none
    classifier._take(learner)
    for name in _FITTED:
        if name in values:
            setattr(classifier, name, values[name])
    classifier.n_features_in_ = model["num_inputs"]
    names = about["feature_names"]
    if names is not None:
        sound = isinstance(names, list) and len(names) == model["num_inputs"]
        if not sound or not all(isinstance(name, str) for name in names):
            raise ValueError(f"feature names {shown(names)}")
        classifier.feature_names_in_ = np.array(names, dtype=object)
    return classifier


def _codec(about: dict[str, Any], stored: NDArray[Any], num_classes: int) -> LabelCodec:
    """Return the codec of a file; classes are different, and of labels in ascending order."""
    form = as_choice("form", about["form"], (SINGLE, DENSE, SPARSE, LISTS))
    dtype, ascending = np.dtype(about["classes"]), np.unique(stored)
    given = ascending if form in (SINGLE, LISTS) else stored
    if stored.shape != (num_classes,) or len(ascending) < num_classes or (given != stored).any():
        raise ValueError(f"classes of shape {stored.shape} that are not {num_classes} in order")
    if dtype != stored.dtype and not (dtype.hasobject and stored.dtype.kind == "U"):
        raise ValueError(f"classes of {stored.dtype} for {dtype}")
    return LabelCodec(stored.astype(dtype), form, np.dtype(about["labels"]))


def _calibration(values: dict[str, Any], plain: Calibration) -> Calibration | None:
    """Return the calibration of a file, of the form of a plain one; a run has none."""
    stored = values.get("calibrated")
    if stored is None:
        return None
    temperature, of_labels = stored
    if isinstance(plain, LogisticCalibration):
        if as_flag("several_labels", of_labels) != plain.several_labels:
            raise ValueError("several labels of each example, or one, unlike those of the file")
        return LogisticCalibration(as_positive("temperature", temperature), of_labels)
    if plain.labels_each is not None:
        as_positive("labels_each", of_labels)
    elif of_labels is not None:
        raise ValueError(f"{shown(of_labels)} labels of each example, which has one")
    return SoftmaxCalibration(as_positive("temperature", temperature), of_labels)


def _require_progress(values: dict[str, Any]) -> None:
    as_key(values["seed"])  # up to 2**64
    for name in (*_PROGRESS[1:], *values.keys() & {"n_iter_", "num_unlabeled_"}):
        as_count(name, values[name], 0)
    choice = values.get("auto_choice_")
    if choice is not None and (not isinstance(choice, dict) or choice.keys() != _CHOICE):
        raise TypeError(f"auto_choice_ with {shown(choice)}")
    for name in ("loss_curve_", "validation_scores_"):
        for number in values.get(name, ()):
            if not isinstance(number, (int, float)):
                raise TypeError(f"{name} with {shown(number)}")
