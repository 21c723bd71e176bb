"""Dask arrays of classes in chunks: the passes of `passes.py`, merged by Dask."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from samplesoft._jit import single_threaded
from samplesoft._validation import FloatArray, as_labels
from samplesoft.bias.chunks.passes import BiasSums, ChunkBias, Pass

_FAN_IN = 16  # passes that are merged at a time


# --- Dask --------------------------------------------------------------------------------------


def bias_of_dask(
    logits: Any, labels: Any, q: Any, num_sampled: int, scheme: str
) -> tuple[Any, ...]:
    """Return what `ExactBias` is made of, for Dask arrays of (n,), or (B, n); arrays are lazy."""

    def make(label: int) -> BiasSums:
        return BiasSums(num_sampled, label, scheme)

    columns, found = rows_of_dask(logits, labels, q, make, ChunkBias.both)
    numbers = [[getattr(one, name) for one in found] for name in ChunkBias.NUMBERS]
    if columns.ndim == 2:
        return (*columns, *(values[0] for values in numbers))
    return (*columns, *map(np.array, numbers))


def rows_of_dask(
    logits: Any,
    labels: Any,
    q: Any,
    make: Callable[[int], Any],
    columns: Callable[..., FloatArray],
    vectors: Any = None,
) -> tuple[Any, list[Any]]:
    """Run the sums that `make` makes of each label over Dask arrays of (n,), or (B, n).

    Returns a lazy array (2, n), or (2, B, n), of `columns` (2, k) of each result and chunk, and the
    results. Passes that have `takes_vectors` get rows of `vectors` (n, d), too.
    """
    da: Any = import_module("dask.array")
    o, proposal = da.asarray(logits), da.asarray(q)
    if "c" in (o.dtype.kind, proposal.dtype.kind):
        raise TypeError("`logits` and `q` must hold real numbers, got complex ones.")
    o, proposal = o.astype(float), proposal.astype(float)
    if o.ndim not in (1, 2) or np.isnan(o.shape).any() or proposal.shape[-1:] != o.shape[-1:]:
        raise ValueError(
            f"`logits` and `q` must be of known shapes (n,) or (B, n) with the same n, got "
            f"{o.shape} and {proposal.shape}; call compute_chunk_sizes() for unknown ones."
        )
    if o.ndim == 1:
        label = as_labels("labels", labels, len(o), ()).item()
        lazy, found = _row_of_dask(o, proposal, make(label), columns, vectors)
        return lazy, [found]
    every = da.broadcast_to(proposal, o.shape)
    checked = as_labels("labels", labels, o.shape[1], o.shape[:1])
    rows = [
        _row_of_dask(o[i], every[i], make(t), columns, vectors)
        for i, t in enumerate(checked.tolist())
    ]
    return da.stack([lazy for lazy, _ in rows], axis=1), [found for _, found in rows]


def _row_of_dask(
    o: Any, q: Any, sums: Any, columns: Callable[..., FloatArray], vectors: Any
) -> tuple[Any, Any]:
    da, delayed = import_module("dask.array"), import_module("dask").delayed
    q = q.rechunk(o.chunks)
    starts = [0, *np.cumsum(o.chunks[0])[:-1].tolist()]
    pairs = list(zip(starts, o.to_delayed(), q.to_delayed(), strict=True))
    rows: list[tuple[Any, ...]] = [()] * len(pairs)
    if vectors is not None:
        blocks = vectors.rechunk((o.chunks[0], vectors.shape[1])).to_delayed()
        rows = [tuple(block) for block in blocks]
    while isinstance(sums, Pass):
        at, takes = delayed(sums), sums.takes_vectors
        parts = [
            delayed(_added)(at, *pair, *(more if takes else ()))
            for pair, more in zip(pairs, rows, strict=True)
        ]
        while len(parts) > 1:
            groups = range(0, len(parts), _FAN_IN)
            parts = [delayed(_merged)(parts[i : i + _FAN_IN]) for i in groups]
        sums = parts[0].compute().finish()
    options = {"starts": starts, "dtype": float, "meta": np.empty((0, 0)), "new_axis": 0}
    shape = ((2,), *o.chunks)
    return da.map_blocks(
        _of_block, o, q, found=sums, columns=columns, chunks=shape, **options
    ), sums


def _added(sums: Any, start: int, *columns: FloatArray) -> Any:
    with single_threaded():
        return sums.empty().add(start, *columns)


def _merged(parts: list[Any]) -> Any:
    total = parts[0].empty()
    for part in parts:
        total.merge(part)
    return total


def _of_block(
    logits: FloatArray,
    q: FloatArray,
    found: Any,
    columns: Callable[..., FloatArray],
    starts: list[int],
    block_id: tuple[int, ...],
) -> FloatArray:
    if not len(logits):
        return np.empty((2, 0))
    with single_threaded():
        return columns(found, starts[block_id[-1]], logits, q)
