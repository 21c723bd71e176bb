"""Checkpoints of ``samplesoft train xc`` and ``items``, as files of a classifier."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from samplesoft._random import as_key
from samplesoft._validation import as_count, as_counts, as_flag, shown
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.sklearn.label_forms import SINGLE, SPARSE
from samplesoft.training.checkpoint import Checkpoint

MODEL = "SampledSoftmaxClassifier"
_PARAMETERS = (  # of the classifier, which the settings of a run have by the same names
    *("embedding_dim", "alpha", "loss", "sampler", "num_sampled", "shared", "tau", "normalize"),
    *("nu", "num_features", "dropout", "batch_size", "label_reduction", "mask_other_labels"),
    "update_every",
)
_KEPT = ("parameters/", "optimizer/", "state/")


def of_run(path: str | Path, run: Checkpoint) -> Checkpoint:
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
    single = num_labels == num_examples and not about["leave_out"]
    parameters = {name: task[name] for name in _PARAMETERS if task[name] is not None}
    parameters["embedding_dim"] = task["embedding_dim"]  # None is not the default
    parameters["random_state"] = task["seed"]
    parameters |= {name: training[name] for name in ("optimizer", "learning_rate")}
    kept = {name: a for name, a in run.arrays.items() if name.startswith(_KEPT)}
    if training["optimizer_options"]:
        kept = {name: a for name, a in kept.items() if not name.startswith("optimizer/")}
    classes = np.arange(len(counts))
    config = {
        "model": MODEL,
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
    return Checkpoint(config, progress, {"classes": classes, "counts": counts, **kept})
