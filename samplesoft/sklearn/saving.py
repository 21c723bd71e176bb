"""Files of a classifier, arrays and JSON, and checkpoints of runs as such files."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from samplesoft._files import part, prefixed
from samplesoft._random import as_key
from samplesoft._validation import as_choice, as_count, as_counts, as_flag, as_positive, shown
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.sklearn.calibration import Calibration, LogisticCalibration, SoftmaxCalibration
from samplesoft.sklearn.labels import DENSE, LISTS, SINGLE, SPARSE, LabelCodec
from samplesoft.sklearn.learner import Learner
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

_T = TypeVar("_T")
_MODEL = "SampledSoftmaxClassifier"
_FITTED = ("n_iter_", "num_unlabeled_", "loss_curve_", "validation_scores_", "auto_choice_")
_COUNTED = ("num_steps", "num_epochs", "num_examples", "num_labels")  # by a learner


def write_classifier(path: str | Path, classifier: Any) -> None:
    """Write a classifier that has been fitted; see `SampledSoftmaxClassifier.save`."""
    for sampler in (classifier.sampler, classifier.model_.settings.sampler):
        if sampler is not None and not isinstance(sampler, str):
            raise TypeError(
                f"`sampler` must be a name to be saved, got {shown(sampler)}; give it a name in "
                "samplesoft.samplers.SAMPLERS and fit with that, or pickle the classifier."
            )
    parameters = classifier.get_params()
    seed = parameters.pop("random_state")
    if isinstance(seed, (int, np.integer)):
        parameters["random_state"] = int(seed)
    if isinstance(parameters["class_weight"], dict):  # keys of JSON are text
        parameters["class_weight"] = list(parameters["class_weight"].items())
    learner = classifier._learner
    codec, model = learner.codec, learner.model
    classes = codec.classes
    names = getattr(classifier, "feature_names_in_", None)
    about = {
        "model": _MODEL,
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
    names_of_learner = ("seed", *_COUNTED, "calibrated", "row_norm")
    progress = {name: getattr(learner, name) for name in names_of_learner}
    progress |= {name: getattr(classifier, name) for name in _FITTED if hasattr(classifier, name)}
    if classes.dtype.hasobject:  # such as text of Python, which would have to be pickled
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


def read_classifier(path: str | Path, make: type[_T]) -> tuple[_T, Learner]:
    """Read a classifier and its learner; see `SampledSoftmaxClassifier.load`."""
    checkpoint = read_checkpoint(path)
    with rebuilding(path):
        if "task" in checkpoint.config:
            checkpoint = _of_run(path, checkpoint, make)
        model = checkpoint.config.get("model")
        if model != _MODEL:
            raise ValueError(
                f"{str(path)!r} must hold a {_MODEL}, got {shown(model)}; read it with what wrote "
                "it."
            )
        parameters = checkpoint.config["parameters"]
        if isinstance(parameters.get("class_weight"), list):
            parameters["class_weight"] = dict(parameters["class_weight"])
        classifier = make(**parameters)
        learner = _learner(path, checkpoint)
        _set_fitted(classifier, checkpoint)
    return classifier, learner


def _learner(path: str | Path, checkpoint: Checkpoint) -> Learner:
    about, arrays, values = checkpoint.config, checkpoint.arrays, checkpoint.values
    model = about["linear_softmax"]
    require_sizes(model, part("parameters", arrays, "/"))  # before arrays of other sizes are made
    as_key(values["seed"])  # up to 2**64
    for name in _COUNTED:
        as_count(name, values[name], 0)
    learner = Learner(
        _codec(about, arrays["classes"], model["num_classes"]),
        model["num_inputs"],
        LinearSoftmaxSettings(**about["settings"]),
        as_counts("counts", arrays["counts"], model["num_classes"]),
        np.dtype(model["dtype"]),
        values["seed"],
        about["optimizer"],
    )
    # the order counts: the sampler is made from class vectors, then gets what it had learned
    copy_arrays(path, part("parameters", arrays, "/"), learner.model.parameters)
    learner.model.softmax.refresh()
    learner.model.load_state(part("state", arrays, "/"))
    state = part("optimizer", arrays, "/")
    # an optimizer without a state would forget how large gradients have been
    if learner.optimizer and state:
        learner.optimizer.load_state(state)
    else:  # of a run with more than that
        learner.optimizer = None
    learner.unit_inputs = as_flag("unit_inputs", model["unit_inputs"])
    learner.leave_out = as_flag("leave_out", model["leave_out"])
    for name in _COUNTED:
        setattr(learner, name, values[name])
    learner.calibrated = _calibration(values, learner.calibration)
    learner.row_norm = as_positive("row_norm", values.get("row_norm", 1.0))  # a run has none
    return learner


def _set_fitted(classifier: Any, checkpoint: Checkpoint) -> None:
    """Set what `fit` has found beside the model, once it is sound."""
    about, values = checkpoint.config, checkpoint.values
    for name in values.keys() & {"n_iter_", "num_unlabeled_"}:
        as_count(name, values[name], 0)
    choice = values.get("auto_choice_")
    if choice is not None and (
        not isinstance(choice, dict) or choice.keys() != {*PILOT, "verdict"}
    ):
        raise TypeError(f"auto_choice_ with {shown(choice)}")
    for name in ("loss_curve_", "validation_scores_"):
        for number in values.get(name, ()):
            if not isinstance(number, (int, float)):
                raise TypeError(f"{name} with {shown(number)}")
    vars(classifier).update({name: values[name] for name in _FITTED if name in values})
    num_inputs, names = about["linear_softmax"]["num_inputs"], about["feature_names"]
    classifier.n_features_in_ = num_inputs
    if names is not None:
        sound = isinstance(names, list) and len(names) == num_inputs
        if not sound or not all(isinstance(name, str) for name in names):
            raise ValueError(f"feature names {shown(names)}")
        classifier.feature_names_in_ = np.array(names, dtype=object)


def _codec(about: dict[str, Any], stored: NDArray[Any], num_classes: int) -> LabelCodec:
    """Return the codec of a file; classes are different, and of labels in ascending order."""
    # a wrong order would give each input another's label, without an error
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


def _of_run(path: str | Path, run: Checkpoint, make: Any) -> Checkpoint:
    """Return what a classifier of the same model would have written.

    Classes are numbers. Labels come as one of each example where all examples of the run had one,
    else as a sparse indicator matrix. The state of an optimizer is left out where it had options,
    or gradients were clipped.
    """
    task, training, values = run.config["task"], run.config["training"], run.values
    about, counts = task.get("linear_softmax"), run.arrays.get("examples/counts")
    if about is None:
        raise ValueError(
            f"{str(path)!r} must hold a model that ranks classes for sparse inputs, got "
            f"{shown(task.get('model'))}; take best.npz of samplesoft train xc or items."
        )
    if counts is None:
        raise ValueError(
            f"{str(path)!r} must hold how often each class occurs, as this version of samplesoft "
            "writes it; use samplesoft predict, or train anew."
        )
    if as_flag("absolute", about["absolute"]):
        raise ValueError(
            f"{str(path)!r} must hold a model of plain scores, got one of absolute scores, which a "
            "classifier does not have; train with another --loss."
        )
    counts = as_counts("counts", counts, about["num_classes"])
    num_examples, num_labels = as_count("num_labeled", task["num_labeled"]), int(counts.sum())
    # of one label each, if all examples had one; items of a user are several, if often one
    single = num_labels == num_examples and not about["leave_out"]
    # settings of a run have the names of the parameters that they are here
    names = make._get_param_names()
    parameters = {name: task[name] for name in names if task.get(name) is not None}
    parameters["embedding_dim"] = task["embedding_dim"]  # None is not the default
    parameters["random_state"] = task["seed"]
    parameters |= {name: training[name] for name in ("optimizer", "learning_rate")}
    kept = ("parameters/", "state/") + (() if training["optimizer_options"] else ("optimizer/",))
    arrays = {name: a for name, a in run.arrays.items() if name.startswith(kept)}
    classes = np.arange(len(counts))
    config = {
        "model": _MODEL,
        "parameters": parameters,
        "settings": {one.name: task[one.name] for one in fields(LinearSoftmaxSettings)},
        "form": SINGLE if single else SPARSE,
        "labels": "int64" if single else "float64",
        "classes": str(classes.dtype),
        "linear_softmax": about,
        "optimizer": training["optimizer"],
        "feature_names": None,
    }
    progress = {
        "seed": int(as_key(task["seed"])),
        "num_steps": values["step"],
        "num_epochs": values["epoch"],
        "num_examples": num_examples,
        "num_labels": num_labels,
        "n_iter_": values["epoch"],
    }
    return Checkpoint(config, progress, {"classes": classes, "counts": counts, **arrays})
