"""Examples for a linear softmax model as a softmax layer sees them: a context, and one label."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._random import as_key
from samplesoft._validation import IntArray
from samplesoft.data.embeddings import choose
from samplesoft.models.linear_softmax import some_entries
from samplesoft.training.examples import TrainedSoftmax, trained_softmax
from samplesoft.training.linear_model import TrainedLinearSoftmax


def one_label_each(inputs: Any, labels: Any, leave_out: bool, seed: int) -> tuple[Any, IntArray]:
    """Return inputs (B, v) and labels (B,) of examples that have one or more, as CSR matrices.

    One of several is drawn by their weights, so that on average its loss is that of the example.
    With `leave_out` labels are items of the input, which loses the one that is drawn.
    """
    size, each = len(labels.indptr) - 1, np.diff(labels.indptr)
    times = np.random.default_rng(seed).standard_exponential(labels.nnz) / labels.data
    order = np.lexsort((times, np.repeat(np.arange(size), each)))  # the first comes by its weight
    drawn = labels.indices[order[labels.indptr[:-1]]].astype(np.int64)
    if leave_out:
        owners = np.repeat(np.arange(size), np.diff(inputs.indptr))
        inputs = some_entries(inputs, inputs.indices != drawn[owners])
    return inputs, drawn


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
    rows = np.flatnonzero(np.diff(labels.indptr))
    if not len(rows):
        raise ValueError(
            f"`labels` must hold labels of some examples, got {labels.shape[0]} without any."
        )
    rows = rows[choose(len(rows), num_examples, seed)]
    given, drawn = one_label_each(inputs[rows], labels[rows], trained.leave_out, int(as_key(seed)))
    settings = trained.model.settings
    softmax = {
        "tau": settings.tau,
        "normalize": settings.normalize,
        "absolute": trained.absolute,
    }
    found = {"h": trained.embed(given), "labels": drawn}
    if trained.counts is not None:
        found["counts"] = trained.counts
    return trained_softmax(softmax, found, trained.model.parameters, trained.step)
