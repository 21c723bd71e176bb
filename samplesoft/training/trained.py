"""Trained models read from files: to rank classes, and to measure the bias of their losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from samplesoft._random import as_key
from samplesoft._validation import (
    LONGEST_PADDED,
    FloatArray,
    IntArray,
    as_csr,
    short_repr,
    sum_repeated_entries,
)
from samplesoft.data.embeddings import Embeddings, choose_indices
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear_softmax import (
    LinearSoftmax,
    LinearSoftmaxSettings,
    select_entries,
)
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import Rows
from samplesoft.training.checkpoint import Arrays, copy_arrays, part_of, reading
from samplesoft.training.linear_task import unit_norm

_LONGEST_PADDED = LONGEST_PADDED * np.dtype("U1").itemsize  # bytes


@dataclass(frozen=True, eq=False)
class TrainedLinearSoftmax:
    """A model that ranks classes for sparse inputs.

    Attributes
    ----------
    model : LinearSoftmax
        Without a sampler.
    unit_inputs : bool
        Whether inputs must be divided by their norms.
    leave_out : bool
        Whether inputs are items, which are excluded from the lists.
    classes : ndarray, shape (n,), or None
        Names of the classes, if they are not 0, ..., n - 1.
    counts : ndarray, shape (n,)
        Count of each class in the training data.
    absolute : bool
        Whether training used absolute values of the scores.
    step : int
        Number of training steps.
    """

    model: LinearSoftmax
    unit_inputs: bool
    leave_out: bool
    classes: Any
    counts: FloatArray
    absolute: bool
    step: int

    def top_k(self, inputs: Any, k: int) -> tuple[IntArray, Rows]:
        """Return the top k classes of raw inputs (B, v), as `LinearSoftmax.top_k`."""
        leave_out = inputs if self.leave_out else None
        return self.model.top_k(self._prepare(inputs), k, leave_out=leave_out)

    def embed(self, inputs: Any) -> Rows:
        """Return contexts (B, d) of raw inputs (B, v), as `LinearSoftmax.embed`."""
        return self.model.embed(self._prepare(inputs))

    def _prepare(self, inputs: Any) -> Any:
        if sparse.issparse(inputs):
            inputs = sum_repeated_entries(as_csr("inputs", inputs))
        return (unit_norm(inputs) if self.unit_inputs else inputs).astype(self.model.dtype)


def linear_softmax_config(
    model: LinearSoftmax, *, unit_inputs: bool, leave_out: bool
) -> dict[str, Any]:
    """Return the entry ``linear_softmax`` of a checkpoint's config, for `read_linear_softmax`.

    The model's parameters are in the checkpoint's part ``parameters``.
    """
    return {
        "num_inputs": model.num_inputs,
        "num_classes": model.num_classes,
        "embedding_dim": model.settings.embedding_dim,
        "on_tree": isinstance(model.softmax, HierarchicalSoftmax),
        **softmax_config(model.softmax),
        "dtype": str(model.dtype),
        "unit_inputs": unit_inputs,
        "leave_out": leave_out,
    }


def read_linear_softmax(path: str | Path) -> TrainedLinearSoftmax:
    """Read a model for prediction.

    Parameters
    ----------
    path : str or Path
        A checkpoint of ``samplesoft train xc`` or ``items``, or a file of
        `samplesoft.sklearn.SampledSoftmaxClassifier.save`.

    Returns
    -------
    TrainedLinearSoftmax
        The model.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If the model would not fit.
    ValueError
        If it is damaged, of another format, or holds another model.
    """
    with reading(path) as (config, values, arrays):
        # the config of a run has the model under "task", a classifier's file at the top level
        config = config.get("task", config)
        about = config.get("linear_softmax")
        if about is None:
            raise ValueError(
                f"{str(path)!r} must hold a model that ranks classes for sparse inputs, got "
                f"{short_repr(config.get('model', 'something else'))}; take best.npz of samplesoft "
                "train xc or items, or what SampledSoftmaxClassifier.save wrote."
            )
        # prediction needs no sampler
        on_tree = about.get("on_tree", False)
        counts = arrays["counts" if "counts" in arrays else "examples/counts"]
        settings = LinearSoftmaxSettings(
            loss="hierarchical" if on_tree else "full",
            sampler=None,
            num_sampled=None,
            **{name: about[name] for name in ("tau", "normalize", "embedding_dim")},
        )
        model = LinearSoftmax(
            about["num_inputs"],
            about["num_classes"],
            settings,
            counts=counts if on_tree else None,
            dtype=about["dtype"],
            rng=0,
        )
        parameters = part_of("parameters", arrays)
        if settings.embedding_dim is None:  # a sampled model stores the weights in one row
            shape = model.parameters["softmax.weights"].shape
            parameters = {name: array.reshape(shape) for name, array in parameters.items()}
        copy_arrays(path, parameters, model.parameters)
        return TrainedLinearSoftmax(
            model,
            about["unit_inputs"],
            about["leave_out"],
            stored_classes(config, arrays),
            counts,
            about["absolute"],
            values["step"] if "step" in values else values["learner"]["num_steps"],
        )


def classes_to_store(classes: NDArray[Any]) -> tuple[dict[str, Any], Arrays]:
    """Return class names as entries of the config and the arrays, for `stored_classes`.

    Raises TypeError for classes that are neither text nor numbers.
    """
    config: dict[str, Any] = {"classes": str(classes.dtype)}
    if classes.dtype != object:
        return config, {"classes": classes}
    for label in classes:
        if not isinstance(label, (str, int)):
            raise TypeError(
                "`classes_` must be text or numbers to be saved, got Python objects such as "
                f"{short_repr(label)}; convert the labels with numpy.asarray(y, dtype=...) and fit "
                "again."
            )
    # as JSON: an array would pad to the longest text, and has no integers beyond 64 bits
    return {**config, "class_objects": classes.tolist()}, {}


def stored_classes(config: Mapping[str, Any], arrays: Arrays) -> NDArray[Any] | None:
    """Return the class names of a checkpoint, or None."""
    if "class_objects" in config:
        classes = np.empty(len(config["class_objects"]), dtype=object)
        classes[:] = config["class_objects"]
        return classes
    if "classes" not in arrays:
        return None
    classes, dtype = arrays["classes"], np.dtype(config["classes"])
    if dtype not in (classes.dtype, np.dtype(object)):
        raise ValueError(f"classes are of type {classes.dtype}, and not {dtype}")
    if classes.dtype.kind == "U" and classes.dtype.itemsize > _LONGEST_PADDED:
        return classes.astype(object)  # in files of older versions
    return classes.astype(dtype)


@dataclass(frozen=True, eq=False)
class TrainedSoftmax:
    """A trained softmax layer, and contexts of its model.

    Attributes
    ----------
    embeddings : Embeddings
        Contexts, labels, class vectors and counts, in float64; of norm 1 if the layer normalises.
        Biases are one more coordinate of the class vectors.
    tau : float
        Inverse temperature: logits are ``tau * h @ class_embeddings.T``.
    absolute : bool
        Whether scores are absolute values of the logits.
    step : int
        Steps of training.
    """

    embeddings: Embeddings
    tau: float
    absolute: bool
    step: int


def softmax_config(layer: SoftmaxLayer) -> dict[str, Any]:
    """Return the entry ``softmax`` of a task's config, for `read_examples`.

    The task's parameters are named ``softmax.class_embeddings`` and ``softmax.biases``.
    """
    loss = layer.loss
    return {"tau": loss.tau, "normalize": loss.normalize, "absolute": loss.absolute}


def read_examples(path: str | Path) -> TrainedSoftmax:
    """Read the softmax layer of a checkpoint, and the contexts stored with it.

    Parameters
    ----------
    path : str or Path
        A checkpoint of `samplesoft.training.train`. Its contexts are those of held-out examples.
        One of several labels of an example was drawn at random.

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
    >>> import tempfile
    >>> from scipy.sparse import csr_array
    >>> from samplesoft.training import RetrievalSettings, RetrievalTask, Settings, train
    >>> X = csr_array(np.eye(4, dtype=np.float32))
    >>> model = RetrievalSettings(num_sampled=2, embedding_dim=8, validation=0.0, batch_size=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(RetrievalTask(X, X, model), Settings(epochs=1), folder)
    ...     trained = read_examples(Path(folder, "best.npz"))
    >>> trained.embeddings.class_embeddings.shape, trained.step
    ((4, 8), 2)
    """
    with reading(path) as (config, values, arrays):
        task, examples = config.get("task", {}), part_of("examples", arrays)
        # the first in language models, the second in models of sparse inputs
        softmax = task.get("softmax", task.get("linear_softmax"))
        if softmax is None or "h" not in examples:
            remedy = "take one of samplesoft train"
            if "linear_softmax" in {**config, **task}:
                remedy = "name a file of examples with --input"
            raise ValueError(
                f"{str(path)!r} must hold contexts of a softmax layer, got "
                f"{', '.join(examples) or 'none'}; {remedy}."
            )
        parameters = part_of("parameters", arrays)
        return _trained_softmax(softmax, examples, parameters, values["step"])


def _trained_softmax(
    softmax: Mapping[str, Any], examples: Arrays, parameters: Arrays, step: int
) -> TrainedSoftmax:
    """Return the softmax layer of a `softmax_config` and its examples.

    `examples` has arrays ``h`` and ``labels``, and optionally ``counts`` of the classes.
    """
    h = examples["h"].astype(np.float64)
    rows = parameters["softmax.class_embeddings"].astype(np.float64)
    if softmax["normalize"]:
        h, rows = unit_rows("h", h)[0], unit_rows("class_embeddings", rows)[0]
    if "softmax.biases" in parameters:
        # tau * (h . c + b / tau) = tau * h . c + b: biases become one more coordinate
        h = np.column_stack([h, np.ones(len(h))])
        rows = np.column_stack([rows, parameters["softmax.biases"] / softmax["tau"]])
    embeddings = Embeddings(h, rows, examples["labels"], examples.get("counts"))
    return TrainedSoftmax(embeddings, softmax["tau"], softmax["absolute"], step)


def linear_examples(
    trained: TrainedLinearSoftmax, inputs: Any, labels: Any, num_examples: int, seed: int
) -> TrainedSoftmax:
    """Return the softmax layer of a model, with a random sample of the given examples.

    Parameters
    ----------
    trained : TrainedLinearSoftmax
        The model.
    inputs, labels : scipy.sparse.csr_array, shapes (N, v) and (N, n)
        Raw inputs, and labels. Examples without labels are ignored.
    num_examples : int
        Number of examples to draw, or all if there are fewer.
    seed : int
        Seed of the examples, and of the label of an example with several.

    Returns
    -------
    TrainedSoftmax
        Contexts of the examples, and one label of each.

    Raises
    ------
    ValueError
        If no example has a label.
    """
    if isinstance(trained.model.softmax, HierarchicalSoftmax):
        raise ValueError("`trained` must have class vectors, got a model over a tree.")
    # examples without labels have no loss, and no bias
    rows = np.flatnonzero(np.diff(labels.indptr))
    if not len(rows):
        raise ValueError(
            f"`labels` must hold labels of some examples, got {labels.shape[0]} without any."
        )
    rows = rows[choose_indices(len(rows), num_examples, seed)]
    chosen_inputs, one_label = sample_one_label(
        inputs[rows], labels[rows], trained.leave_out, int(as_key(seed))
    )
    examples = {"h": trained.embed(chosen_inputs), "labels": one_label, "counts": trained.counts}
    softmax = softmax_config(trained.model.softmax) | {"absolute": trained.absolute}
    return _trained_softmax(softmax, examples, trained.model.parameters, trained.step)


def sample_one_label(inputs: Any, labels: Any, leave_out: bool, seed: int) -> tuple[Any, IntArray]:
    """Return inputs (B, v) and one label (B,) for each example, from CSR matrices.

    One of several labels is drawn in proportion to its weight, so that its expected loss is the
    example's loss. With `leave_out` labels are items of the input, from which it is removed.
    """
    size, num_labels = len(labels.indptr) - 1, np.diff(labels.indptr)
    # the smallest of exponential clocks with the weights as rates has the right distribution
    exponential_clocks = np.random.default_rng(seed).standard_exponential(labels.nnz) / labels.data
    order = np.lexsort((exponential_clocks, np.repeat(np.arange(size), num_labels)))
    one_label = labels.indices[order[labels.indptr[:-1]]].astype(np.int64)
    if leave_out:
        # the item to be predicted must not be in the input
        example_ids = np.repeat(np.arange(size), np.diff(inputs.indptr))
        inputs = select_entries(inputs, inputs.indices != one_label[example_ids])
    return inputs, one_label
