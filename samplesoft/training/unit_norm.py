"""Sparse rows of norm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def unit_norm(matrix: Any) -> sparse.csr_array:
    """Divide the rows of a CSR matrix (N, v) by their norms, as float32; empty ones stay empty."""
    owners = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    values = matrix.data.astype(np.float64)
    largest = np.zeros(matrix.shape[0])
    np.maximum.at(largest, owners, np.abs(values))
    values /= np.where(largest > 0.0, largest, 1.0)[owners]
    norms = np.sqrt(np.bincount(owners, values**2, minlength=matrix.shape[0]))
    values /= np.where(norms > 0.0, norms, 1.0)[owners]
    return sparse.csr_array(
        (values.astype(np.float32), matrix.indices, matrix.indptr), matrix.shape
    )
