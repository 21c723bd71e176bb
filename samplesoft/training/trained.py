"""What a file of a trained model holds, made again: to rank classes, and to look at its bias."""

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
    without_repeats,
)
from samplesoft.data.embeddings import Embeddings, choose_indices
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.hierarchical import HierarchicalSoftmax
from samplesoft.models.linear_softmax import (
    LinearSoftmax,
    LinearSoftmaxSettings,
    some_entries,
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
        Whether the model wants inputs divided by their norms.
    leave_out : bool
        Whether inputs are items, which are left out of the lists.
    classes : ndarray, shape (n,), or None
        What classes are called, if not by their numbers.
    counts : ndarray, shape (n,)
        How often each class occurs in the training data.
    absolute : bool
        Whether the scores that were trained are absolute values of the model's.
    step : int
        Steps of training.
    """

    model: LinearSoftmax
    unit_inputs: bool
    leave_out: bool
    classes: Any
    counts: FloatArray
    absolute: bool
    step: int

    def top_k(self, inputs: Any, k: int) -> tuple[IntArray, Rows]:
        """Find the best classes, as `LinearSoftmax.top_k`, of inputs (B, v) as they were read."""
        leave_out = inputs if self.leave_out else None
        return self.model.top_k(self._prepared(inputs), k, leave_out=leave_out)

    def embed(self, inputs: Any) -> Rows:
        """Return contexts (B, d), as `LinearSoftmax.embed`, of inputs (B, v) as they were read."""
        return self.model.embed(self._prepared(inputs))

    def _prepared(self, inputs: Any) -> Any:
        if sparse.issparse(inputs):
            inputs = without_repeats(as_csr("inputs", inputs))
        return (unit_norm(inputs) if self.unit_inputs else inputs).astype(self.model.dtype)


def linear_softmax_config(
    model: LinearSoftmax, *, unit_inputs: bool, leave_out: bool
) -> dict[str, Any]:
    """Return what `read_linear_softmax` must know: ``linear_softmax`` in a checkpoint's config.

    The checkpoint holds the parameters of the model as its part ``parameters``.
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
        # a run has its task beside how it was trained, a classifier's file nothing but the model
        config = config.get("task", config)
        about = config.get("linear_softmax")
        if about is None:
            raise ValueError(
                f"{str(path)!r} must hold a model that ranks classes for sparse inputs, got "
                f"{short_repr(config.get('model', 'something else'))}; take best.npz of samplesoft "
                "train xc or items, or what SampledSoftmaxClassifier.save wrote."
            )
        # prediction needs scores alone, so the model has no sampler, whatever it was trained with
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
        if settings.embedding_dim is None:  # a model that draws classes keeps them in one row
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
    """Return what `stored_classes` reads: parts of the config and the arrays of a checkpoint.

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
    # an array would be padded to the longest text, and holds no integer beyond 64 bits
    return {**config, "class_objects": classes.tolist()}, {}


def stored_classes(config: Mapping[str, Any], arrays: Arrays) -> NDArray[Any] | None:
    """Return the classes of a checkpoint, None if it has none."""
    if "class_objects" in config:
        classes = np.empty(len(config["class_objects"]), dtype=object)
        classes[:] = config["class_objects"]
        return classes
    if "classes" not in arrays:
        return None
    found, dtype = arrays["classes"], np.dtype(config["classes"])
    if dtype not in (found.dtype, np.dtype(object)):
        raise ValueError(f"classes are of type {found.dtype}, and not {dtype}")
    if found.dtype.kind == "U" and found.dtype.itemsize > _LONGEST_PADDED:
        return found.astype(object)  # of a file that an older version has written
    return found.astype(dtype)


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
        # language models say the first, models of sparse inputs the second; both hold what is asked
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
    """Return a softmax layer of `softmax_config`, with the arrays ``h`` and ``labels`` of examples.

    Where there is an array ``counts``, it says how often each class occurs.
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
    """Return the softmax layer of a model, with some of the examples that are given.

    Parameters
    ----------
    trained : TrainedLinearSoftmax
        The model.
    inputs, labels : scipy.sparse.csr_array, shapes (N, v) and (N, n)
        Inputs as they were read; those without a label are not taken.
    num_examples : int
        How many to draw; all where there are no more.
    seed : int
        Of the examples, and of the label of an example that has several.

    Returns
    -------
    TrainedSoftmax
        Contexts that the model makes, and one label of each.

    Raises
    ------
    ValueError
        If no example has a label.
    """
    if isinstance(trained.model.softmax, HierarchicalSoftmax):
        raise ValueError("`trained` must have class vectors, got a model over a tree.")
    # an example without a label has no loss whose bias could be looked at
    rows = np.flatnonzero(np.diff(labels.indptr))
    if not len(rows):
        raise ValueError(
            f"`labels` must hold labels of some examples, got {labels.shape[0]} without any."
        )
    rows = rows[choose_indices(len(rows), num_examples, seed)]
    some, drawn = one_label_each(inputs[rows], labels[rows], trained.leave_out, int(as_key(seed)))
    examples = {"h": trained.embed(some), "labels": drawn, "counts": trained.counts}
    softmax = softmax_config(trained.model.softmax) | {"absolute": trained.absolute}
    return _trained_softmax(softmax, examples, trained.model.parameters, trained.step)


def one_label_each(inputs: Any, labels: Any, leave_out: bool, seed: int) -> tuple[Any, IntArray]:
    """Return inputs (B, v) and labels (B,) of examples that have one or more, as CSR matrices.

    One of several is drawn by their weights, so that on average its loss is that of the example.
    With `leave_out` labels are items of the input, which loses the one that is drawn.
    """
    size, each = len(labels.indptr) - 1, np.diff(labels.indptr)
    # of exponential times with the weights as rates, the first comes from each with its share
    times = np.random.default_rng(seed).standard_exponential(labels.nnz) / labels.data
    order = np.lexsort((times, np.repeat(np.arange(size), each)))  # the first comes by its weight
    drawn = labels.indices[order[labels.indptr[:-1]]].astype(np.int64)
    if leave_out:
        # the item that is to be found must not be among those it is found from
        example_ids = np.repeat(np.arange(size), np.diff(inputs.indptr))
        inputs = some_entries(inputs, inputs.indices != drawn[example_ids])
    return inputs, drawn
