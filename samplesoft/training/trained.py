"""Trained models that are read from files, to rank classes or to measure the bias of a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from samplesoft._random import stream_key
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
from samplesoft.models.pair_weights import PairWeights
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import Rows
from samplesoft.training.checkpoint import Arrays, array_group, copy_arrays, open_checkpoint
from samplesoft.training.linear_task import with_unit_rows

# largest size of a text in a NumPy array of text; longer texts are kept as Python objects
_MAX_PADDED_BYTES = LONGEST_PADDED * np.dtype("U1").itemsize


@dataclass(frozen=True, eq=False)
class TrainedLinearSoftmax:
    """A trained linear softmax model, which ranks classes for sparse inputs.

    Attributes
    ----------
    model : LinearSoftmax
        The model, without a sampler.
    unit_inputs : bool
        Whether inputs are divided by their norms before the model gets them.
    leave_out : bool
        Whether inputs are items of a user, which are then excluded from the top-k lists.
    classes : ndarray, shape (n,), or None
        Names of the classes; None if they are 0, ..., n - 1.
    counts : ndarray, shape (n,)
        Count of each class in the training data.
    absolute : bool
        Whether the training loss used absolute values of the scores.
    step : int
        Number of steps of the training.
    """

    model: LinearSoftmax
    unit_inputs: bool
    leave_out: bool
    classes: Any
    counts: FloatArray
    absolute: bool
    step: int

    def top_k(self, inputs: Any, k: int) -> tuple[IntArray, Rows]:
        """Return the k best classes (B, k) for raw inputs (B, v), and their scores (B, k)."""
        leave_out = inputs if self.leave_out else None
        return self.model.top_k(self._model_inputs(inputs), k, leave_out=leave_out)

    def embed(self, inputs: Any) -> Rows:
        """Return contexts (B, d) of raw inputs (B, v), of norm 1 if the model normalises."""
        return self.model.embed(self._model_inputs(inputs))

    def _model_inputs(self, inputs: Any) -> Any:
        """Return raw inputs (B, v) in the dtype of the model; of norm 1 if `unit_inputs`."""
        if sparse.issparse(inputs):
            inputs = sum_repeated_entries(as_csr("inputs", inputs))
        return (with_unit_rows(inputs) if self.unit_inputs else inputs).astype(self.model.dtype)


def linear_softmax_config(
    model: LinearSoftmax, *, unit_inputs: bool, leave_out: bool
) -> dict[str, Any]:
    """Return the entry ``linear_softmax`` of a checkpoint's config, for `read_linear_softmax`.

    It describes the model, whose parameters the checkpoint stores in the group ``parameters``.
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
    """Read a trained linear softmax model for prediction.

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
        If the file is damaged, has another format, or holds another model.
    """
    with open_checkpoint(path) as (config, values, arrays):
        # a run describes the model in the entry "task" of its config, a classifier in the config
        config = config.get("task", config)
        description = config.get("linear_softmax")
        if description is None:
            raise ValueError(
                f"{str(path)!r} must hold a model that ranks classes for sparse inputs, got "
                f"{short_repr(config.get('model', 'something else'))}; take best.npz of samplesoft "
                "train xc or items, or what SampledSoftmaxClassifier.save wrote."
            )

        # prediction needs no sampler
        on_tree = description.get("on_tree", False)
        counts = arrays["counts" if "counts" in arrays else "examples/counts"]
        settings = LinearSoftmaxSettings(
            loss="hierarchical" if on_tree else "full",
            sampler=None,
            num_sampled=None,
            **{name: description[name] for name in ("tau", "normalize", "embedding_dim")},
        )

        model = LinearSoftmax(
            description["num_inputs"],
            description["num_classes"],
            settings,
            counts=counts if on_tree else None,
            dtype=description["dtype"],
            rng=0,
        )

        parameters = array_group("parameters", arrays)
        if settings.embedding_dim is None:  # a sampled model stores flattened weights
            shape = model.parameters["softmax.weights"].shape
            parameters = {name: array.reshape(shape) for name, array in parameters.items()}
        copy_arrays(path, parameters, model.parameters)
        model.pair_weights = stored_pair_weights(arrays, model)

        return TrainedLinearSoftmax(
            model,
            description["unit_inputs"],
            description["leave_out"],
            stored_classes(config, arrays),
            counts,
            description["absolute"],
            values["step"] if "step" in values else values["learner"]["num_steps"],
        )


def stored_pair_weights(arrays: Arrays, model: LinearSoftmax) -> PairWeights | None:
    """Return the pair weights of a checkpoint, or None if it has none."""
    group = array_group("pair_weights", arrays)
    if not group:
        return None
    return PairWeights.from_arrays(group, model.num_inputs, model.num_classes)


def classes_to_store(classes: NDArray[Any]) -> tuple[dict[str, Any], Arrays]:
    """Return class names as entries for the config and for the arrays of a checkpoint.

    `stored_classes` reads the entries. Names that are neither text nor numbers raise TypeError.
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
    # in JSON, because an array pads all texts to the longest, and has no integers beyond 64 bits
    return {**config, "class_objects": classes.tolist()}, {}


def stored_classes(config: Mapping[str, Any], arrays: Arrays) -> NDArray[Any] | None:
    """Return the class names (n,) of a checkpoint, or None if it has none."""
    if "class_objects" in config:
        classes = np.empty(len(config["class_objects"]), dtype=object)
        classes[:] = config["class_objects"]
        return classes

    if "classes" not in arrays:
        return None

    classes = arrays["classes"]
    dtype = np.dtype(config["classes"])
    if dtype not in (classes.dtype, np.dtype(object)):
        raise ValueError(f"classes are of type {classes.dtype}, and not {dtype}")
    if classes.dtype.kind == "U" and classes.dtype.itemsize > _MAX_PADDED_BYTES:
        return classes.astype(object)  # files of older versions have padded arrays of long texts

    return classes.astype(dtype)


@dataclass(frozen=True, eq=False)
class TrainedSoftmax:
    """A trained softmax layer, and contexts of examples.

    Attributes
    ----------
    embeddings : Embeddings
        Contexts, labels, class vectors and class counts. Vectors are float64, and of norm 1 if the
        layer normalises. Biases are stored as one more coordinate of the class vectors.
    tau : float
        Inverse temperature: logits are ``tau * h @ class_embeddings.T``.
    absolute : bool
        Whether the loss uses absolute values of these logits.
    step : int
        Number of steps of the training.
    """

    embeddings: Embeddings
    tau: float
    absolute: bool
    step: int


def softmax_config(layer: SoftmaxLayer) -> dict[str, Any]:
    """Return the entry ``softmax`` of a task's config, for `read_examples`.

    The task must name the parameters of the layer ``softmax.class_embeddings`` and, if there are
    any, ``softmax.biases``.
    """
    loss = layer.loss
    return {"tau": loss.tau, "normalize": loss.normalize, "absolute": loss.absolute}


def read_examples(path: str | Path) -> TrainedSoftmax:
    """Read the softmax layer of a checkpoint, and the contexts that are stored with it.

    Parameters
    ----------
    path : str or Path
        A checkpoint of `samplesoft.training.train`. It contains contexts of held-out examples, with
        one label each: of several labels of an example, one was drawn at random.

    Returns
    -------
    TrainedSoftmax
        The layer and the contexts.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If its arrays would not fit.
    ValueError
        If the file is damaged, or its task stored no contexts.

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
    with open_checkpoint(path) as (config, values, arrays):
        task = config.get("task", {})
        examples = array_group("examples", arrays)
        # language models have an entry "softmax", models of sparse inputs "linear_softmax"
        softmax = task.get("softmax", task.get("linear_softmax"))
        if softmax is None or "h" not in examples:
            remedy = "use one of samplesoft train"
            if "linear_softmax" in {**config, **task}:
                remedy = "name a file of examples with --input"
            raise ValueError(
                f"{str(path)!r} must hold contexts of a softmax layer, got "
                f"{', '.join(examples) or 'none'}; {remedy}."
            )

        parameters = array_group("parameters", arrays)
        return _trained_softmax(softmax, examples, parameters, values["step"])


def _trained_softmax(
    softmax: Mapping[str, Any], examples: Arrays, parameters: Arrays, step: int
) -> TrainedSoftmax:
    """Return the softmax layer that the config `softmax` describes, with contexts of examples.

    `examples` has the arrays ``h`` (N, d) and ``labels`` (N,), and optionally the class ``counts``.
    """
    h = examples["h"].astype(np.float64)
    rows = parameters["softmax.class_embeddings"].astype(np.float64)

    if softmax["normalize"]:
        h = unit_rows("h", h)[0]
        rows = unit_rows("class_embeddings", rows)[0]

    if "softmax.biases" in parameters:
        # append a coordinate, because tau * (h . c + 1 * b / tau) = tau * h . c + b
        h = np.column_stack([h, np.ones(len(h))])
        rows = np.column_stack([rows, parameters["softmax.biases"] / softmax["tau"]])

    embeddings = Embeddings(h, rows, examples["labels"], examples.get("counts"))
    return TrainedSoftmax(embeddings, softmax["tau"], softmax["absolute"], step)


def sample_trained_softmax(
    trained: TrainedLinearSoftmax, inputs: Any, labels: Any, num_examples: int, seed: int
) -> TrainedSoftmax:
    """Return the softmax layer of a trained model, with contexts of randomly chosen examples.

    Parameters
    ----------
    trained : TrainedLinearSoftmax
        The model.
    inputs, labels : scipy.sparse.csr_array, shapes (N, v) and (N, n)
        Raw inputs and labels of the examples to choose from. Examples without labels are ignored.
    num_examples : int
        Number of examples to choose; if there are fewer, all are taken.
    seed : int
        Seed of the choice of examples, and of the choice of one among several labels.

    Returns
    -------
    TrainedSoftmax
        The layer, the contexts of the chosen examples, and one label of each.

    Raises
    ------
    ValueError
        If no example has a label.
    """
    if isinstance(trained.model.softmax, HierarchicalSoftmax):
        raise ValueError("`trained` must have class vectors, got a model over a tree.")

    # leave out examples without labels: they have no loss, and so no bias of the loss
    rows = np.flatnonzero(np.diff(labels.indptr))
    if not len(rows):
        raise ValueError(
            f"`labels` must hold labels of some examples, got {labels.shape[0]} without any."
        )

    rows = rows[choose_indices(len(rows), num_examples, seed)]
    chosen_inputs, one_label = sample_one_label(
        inputs[rows], labels[rows], trained.leave_out, int(stream_key(seed))
    )

    examples = {"h": trained.embed(chosen_inputs), "labels": one_label, "counts": trained.counts}
    softmax = softmax_config(trained.model.softmax) | {"absolute": trained.absolute}
    return _trained_softmax(softmax, examples, trained.model.parameters, trained.step)


def sample_one_label(inputs: Any, labels: Any, leave_out: bool, seed: int) -> tuple[Any, IntArray]:
    """Return the inputs (B, v), a CSR matrix, and one random label (B,) for each example.

    A label is drawn with a probability proportional to its weight, so that the expected loss is the
    loss of the example with all its labels. If `leave_out`, labels are items of the input, and the
    drawn item is removed from the input.
    """
    num_examples = len(labels.indptr) - 1
    num_labels = np.diff(labels.indptr)

    # Each label gets an exponential random time, with its weight as the rate. The time of a label
    # is the smallest of its example with probability weight / sum of weights.
    exponential_clocks = np.random.default_rng(seed).standard_exponential(labels.nnz) / labels.data
    order = np.lexsort((exponential_clocks, np.repeat(np.arange(num_examples), num_labels)))
    one_label = labels.indices[order[labels.indptr[:-1]]].astype(np.int64)

    if leave_out:
        # remove the item to be predicted from the input
        example_ids = np.repeat(np.arange(num_examples), np.diff(inputs.indptr))
        inputs = select_entries(inputs, inputs.indices != one_label[example_ids])
    return inputs, one_label
