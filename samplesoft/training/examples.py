"""The softmax layer of a checkpoint: contexts, labels, class vectors and tau."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._validation import as_count, as_positive, as_real_array, shown
from samplesoft.data.embeddings import Embeddings
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.training.checkpoint import (
    Arrays,
    Checkpoint,
    part_of,
    read_checkpoint,
    rebuilding,
)


@dataclass(frozen=True, eq=False)
class TrainedSoftmax:
    """A softmax layer as it was trained, and contexts that its model made.

    Attributes
    ----------
    embeddings : Embeddings
        Contexts, labels, class vectors and counts, in float64; of norm 1 where the layer
        normalises. Biases, where there are some, are one more coordinate of the class vectors.
    tau : float
        Inverse temperature: logits are ``tau * h @ class_embeddings.T``.
    absolute : bool
        Whether scores are absolute values of these.
    step : int
        Steps of training.
    """

    embeddings: Embeddings
    tau: float
    absolute: bool
    step: int


def softmax_config(layer: SoftmaxLayer) -> dict[str, Any]:
    """Return what `read_examples` must know of a layer, to be ``softmax`` in the config of a task.

    The task calls the parameters ``softmax.class_embeddings`` and ``softmax.biases``.
    """
    loss = layer.loss
    return {"tau": loss.tau, "normalize": loss.normalize, "absolute": loss.absolute}


def read_examples(path: str | Path) -> TrainedSoftmax:
    """Read the softmax layer of a checkpoint, with the contexts that were stored with it.

    Parameters
    ----------
    path : str or Path
        A checkpoint of `samplesoft.training.train`. Contexts are those of held-out examples; of an
        example with several labels it holds one, which was drawn at random.

    Returns
    -------
    TrainedSoftmax
        The layer.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If its arrays would not fit.
    ValueError
        If it is damaged, or its task stored no contexts.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from samplesoft.training import Settings, ToySettings, ToyTask, train
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(ToyTask(ToySettings()), Settings(epochs=1), folder)
    ...     trained = read_examples(pathlib.Path(folder, "best.npz"))
    >>> trained.embeddings.class_embeddings.shape, trained.step
    ((50, 11), 10)
    """
    checkpoint = read_checkpoint(path)
    with rebuilding(path):
        return _rebuilt(path, checkpoint)


def _rebuilt(path: str | Path, checkpoint: Checkpoint) -> TrainedSoftmax:
    task, found = checkpoint.config.get("task", {}), part_of(checkpoint, "examples")
    softmax = task.get("softmax", task.get("linear_softmax"))
    if softmax is None or "h" not in found:
        linear = "linear_softmax" in {**checkpoint.config, **task}
        remedy = (
            "name a file of examples with --input" if linear else "take one of samplesoft train"
        )
        raise ValueError(
            f"{str(path)!r} must hold contexts of a softmax layer, got "
            f"{', '.join(found) or 'none'}; {remedy}."
        )
    for name in ("normalize", "absolute"):
        if not isinstance(softmax[name], bool):
            raise TypeError(f"{name} is {shown(softmax[name])}")
    step = as_count("step", checkpoint.values["step"], 0)
    return trained_softmax(softmax, found, part_of(checkpoint, "parameters"), step)


def trained_softmax(
    softmax: Mapping[str, Any], examples: Arrays, parameters: Arrays, step: int
) -> TrainedSoftmax:
    """Return a softmax layer of `softmax_config`, with the arrays ``h`` and ``labels`` of examples.

    Where there is an array ``counts``, it says how often each class occurs.
    """
    tau, h = as_positive("tau", softmax["tau"]), as_real_array("h", examples["h"], (2,))
    rows = as_real_array("class_embeddings", parameters["softmax.class_embeddings"], (2,))
    if softmax["normalize"]:
        h, rows = unit_rows("h", h)[0], unit_rows("class_embeddings", rows)[0]
    if "softmax.biases" in parameters:
        h = np.column_stack([h, np.ones(len(h))])
        biases = as_real_array("biases", parameters["softmax.biases"], (1,))
        rows = np.column_stack([rows, biases / tau])
    return TrainedSoftmax(
        Embeddings(h, rows, examples["labels"], examples.get("counts")),
        tau,
        softmax["absolute"],
        step,
    )
