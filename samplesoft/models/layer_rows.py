"""What a softmax layer does with rows and ids, on the processor and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._validation import IntArray, as_float_rows, as_ids
from samplesoft.losses.vectors import check_biases, unit_rows
from samplesoft.samplers.base import Rows


class HostLayer:
    """On the processor."""

    @staticmethod
    def own_rows(class_embeddings: Any) -> Rows:
        """Return a copy of class vectors (n, d)."""
        return as_float_rows("class_embeddings", class_embeddings).copy()

    @staticmethod
    def own_biases(biases: Any, rows: Rows) -> Rows:
        """Return a copy of class biases (n,) of the type of the class vectors."""
        return check_biases(biases, len(rows), rows.dtype)

    @staticmethod
    def own_ids(ids: Any, num_classes: int) -> IntArray:
        """Return a copy of ids (k,), or all."""
        return np.arange(num_classes) if ids is None else as_ids("ids", ids, num_classes).copy()

    @staticmethod
    def union(ids: list[IntArray], num_classes: int) -> IntArray:
        """Return the ids that occur, rising and each once."""
        if len(ids) == 1 and (ids[0][1:] > ids[0][:-1]).all():  # as from a gradient
            return ids[0]
        every: IntArray = np.unique(np.concatenate(ids))
        return every

    @staticmethod
    def taken(rows: Rows, ids: IntArray, normalize: bool) -> Rows:
        """Return some class vectors, perhaps of norm 1."""
        some: Rows = rows[ids]
        return unit_rows("class_embeddings", some, ids)[0] if normalize else some
