"""Which examples have labels, how often each class occurs, and what examples weigh."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._validation import FloatArray, IntArray, as_nonnegative, as_real_array
from samplesoft.sklearn.label_codec import LabelCodec

_LARGEST = 1e15  # weight of an example


def labelled_rows(codes: Any) -> IntArray:
    """Return the rows that have a label, for class numbers (N,) or a CSR matrix (N, n)."""
    if isinstance(codes, np.ndarray):
        return np.arange(len(codes))
    rows: IntArray = np.flatnonzero(np.diff(codes.indptr))
    return rows


def class_counts(codes: Any, num_classes: int, sample_weight: FloatArray) -> FloatArray:
    """Return how often each class occurs, (n,); an example counts as often as its weight says."""
    times = _per_label(codes, sample_weight)
    return np.bincount(_class_numbers(codes), times, num_classes).astype(np.float64)


def check_sample_weight(sample_weight: Any, num_examples: int) -> FloatArray:
    """Return the weights (N,) that a user gives to examples; ones for None."""
    if sample_weight is None:
        return np.ones(num_examples)
    weights = as_real_array("sample_weight", sample_weight, (1,))
    if len(weights) != num_examples:
        raise ValueError(
            f"`sample_weight` must have shape ({num_examples},), one for each example, got "
            f"{weights.shape}."
        )
    if weights.min() < 0.0:
        raise ValueError(f"`sample_weight` must be at least 0, got {weights.min()}.")
    return weights


def check_class_weight(class_weight: Any) -> None:
    """Require a dict of weights of at least 0, "balanced" or None."""
    if isinstance(class_weight, dict):
        for label, weight in class_weight.items():
            as_nonnegative(f"class_weight[{label!r}]", weight)
    elif class_weight is not None and not (
        isinstance(class_weight, str) and class_weight == "balanced"
    ):
        raise ValueError(
            f"`class_weight` must be a dict, 'balanced' or None, got {type(class_weight).__name__}."
        )


def example_weights(
    class_weight: Any, codec: LabelCodec, codes: Any, sample_weight: FloatArray
) -> FloatArray:
    """Return the weights (N,) of examples, their own times that of the class or classes.

    Of several labels it is the mean. `codes` are class numbers (N,) or a CSR matrix (N, n);
    "balanced" divides by how often a class occurs in them. A weight for a label that is no class is
    an error, and so is one that gradients of float32 would not stand.
    """
    if class_weight is None:
        return _moderate(sample_weight)
    ids, places = np.unique(_class_numbers(codes), return_inverse=True)
    if isinstance(class_weight, dict):
        strange = [label for label in class_weight if not np.isin(label, codec.classes).any()]
        if strange:
            raise ValueError(
                f"`class_weight` must name classes, got {strange[0]!r}, which is none of the "
                f"{len(codec.classes)}; mind the type."
            )
        labels = codec.classes[ids].tolist()
        of_class = np.array([class_weight.get(label, 1.0) for label in labels])
    else:
        counts = np.bincount(places, _per_label(codes, sample_weight))
        occurs = counts > 0.0
        of_class = np.zeros(len(ids))  # of a class whose examples have weight 0, no matter what
        of_class[occurs] = counts.sum() / (occurs.sum() * counts[occurs])
    weights: FloatArray = of_class[places]
    if codec.multilabel:
        matrix = sparse.csr_array((weights, codes.indices, codes.indptr), codes.shape)
        weights = matrix.sum(axis=1) / np.maximum(np.diff(codes.indptr), 1)
    return _moderate(weights * sample_weight)


def _moderate(weights: FloatArray) -> FloatArray:
    if weights.max() > _LARGEST:
        raise ValueError(
            f"`sample_weight` times `class_weight` must be at most {_LARGEST:g}, got "
            f"{weights.max():g}; divide all by one number."
        )
    return weights


def _class_numbers(codes: Any) -> IntArray:
    """Return the labels of all examples, one after another."""
    ids: IntArray = codes if isinstance(codes, np.ndarray) else codes.indices
    return ids


def _per_label(codes: Any, values: FloatArray) -> FloatArray:
    """Return values (N,) of examples for the labels of all of them."""
    return values if isinstance(codes, np.ndarray) else np.repeat(values, np.diff(codes.indptr))
