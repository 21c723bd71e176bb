"""Inputs of the classifier, checked as scikit-learn does it."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from samplesoft._validation import require_well_formed
from samplesoft.sklearn.label_forms import require_labels


def checked_inputs(estimator: Any, X: Any, reset: bool) -> Any:
    """Return inputs (N, v) as an array or a CSR matrix; `reset` for those of a new model."""
    if sparse.issparse(X) and hasattr(X, "check_format"):
        require_well_formed("X", X)  # before its indices are followed
    kinds = [np.float64, np.float32]
    with np.errstate(over="ignore"):  # infinity is refused, here or by the model
        try:
            return validate_data(estimator, X, accept_sparse="csr", dtype=kinds, reset=reset)
        except OverflowError as error:
            raise ValueError(
                f"`X` must hold numbers of float64, got one beyond: {error}."
            ) from None


def checked_examples(estimator: Any, X: Any, y: Any, reset: bool) -> Any:
    """Return inputs to train on, once there are as many labels."""
    require_labels(y)
    X = checked_inputs(estimator, X, reset)
    check_consistent_length(X, y)
    return X


def mean_norm(X: Any) -> float:
    """Return the mean norm of the rows of inputs (N, v) that are not zero, 1 if all are."""
    largest = float(abs(X).max()) if min(X.shape) else 0.0
    if largest == 0.0:
        return 1.0
    scaled = X.astype(np.float64) / largest
    squares = scaled.multiply(scaled).sum(axis=1) if sparse.issparse(X) else (scaled**2).sum(axis=1)
    norms = np.sqrt(np.asarray(squares).reshape(-1))
    return largest * float(norms[norms > 0.0].mean())
