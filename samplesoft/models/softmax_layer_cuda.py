"""What a softmax layer does with rows and ids on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import to_device
from samplesoft._device.arrays_cuda import CudaArrays, copied, take_rows, union
from samplesoft._device.select import to_host
from samplesoft.losses.sampled_cuda import unit_rows
from samplesoft.losses.vectors import check_biases


class CudaLayer:
    """The twin of `HostLayer`."""

    union = staticmethod(union)

    @staticmethod
    def own_rows(class_embeddings: Any) -> Any:
        """Return a copy of class vectors (n, d)."""
        return copied(CudaArrays.float_rows("class_embeddings", class_embeddings))

    @staticmethod
    def own_biases(biases: Any, rows: Any) -> Any:
        """Return a copy of class biases (n,) of the type of the class vectors."""
        # checked on the host: there are few of them, and they come once
        return to_device(check_biases(to_host(biases), rows.shape[0], rows.dtype))

    @staticmethod
    def own_ids(ids: Any, num_classes: int) -> Any:
        """Return a copy of ids (k,), or all."""
        if ids is None:
            return to_device(np.arange(num_classes))
        return copied(CudaArrays.ids("ids", ids, num_classes))

    @staticmethod
    def taken(rows: Any, ids: Any, normalize: bool) -> Any:
        """Return some class vectors, perhaps of norm 1."""
        some = take_rows(rows, ids)
        return unit_rows("class_embeddings", some, ids)[0] if normalize else some
