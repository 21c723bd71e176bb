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


def class_weights(
    class_weight: Any, codec: LabelCodec, codes: Any, sample_weight: FloatArray
) -> FloatArray | None:
    """Return the weights (n + 1,) of classes, 0 for a label that is none; None if all have 1.

    "balanced" divides by how often a class occurs in `codes`, class numbers (N,) or a CSR matrix
    (N, n). A weight for a label that is no class is an error.
    """
    if class_weight is None:
        return None
    n = len(codec.classes)
    of_class = np.zeros(n + 1)
    if isinstance(class_weight, dict):
        labels = codec.classes.tolist()
        strange = class_weight.keys() - set(labels)
        if strange:
            raise ValueError(
                f"`class_weight` must name classes, got {min(strange, key=repr)!r}, which is none "
                f"of the {n}; mind the type."
            )
        of_class[:n] = [class_weight.get(label, 1.0) for label in labels]
    else:
        counts = class_counts(codes, n, sample_weight)
        occurs = np.flatnonzero(counts)  # what a class without examples weighs does not matter
        of_class[occurs] = counts.sum() / (len(occurs) * counts[occurs])
    return of_class


def example_weights(
    of_class: FloatArray | None, codes: Any, sample_weight: FloatArray
) -> FloatArray:
    """Return the weights (N,) of examples, their own times that of the class or classes.

    Of several labels it is the mean. `codes` are class numbers (N,) or a CSR matrix. A weight that
    gradients of float32 would not stand is an error.
    """
    if of_class is None:
        return _moderate(sample_weight)
    weights: FloatArray = of_class[_class_numbers(codes)]
    if not isinstance(codes, np.ndarray):
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
