"""The bias of Dask arrays: the passes of `passes.py`, with chunks and merges as Dask tasks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from samplesoft._jit import single_threaded
from samplesoft._validation import FloatArray, as_labels
from samplesoft.bias.chunks.passes import BiasSums, ChunkBias, Pass

_MERGES_PER_TASK = 16


# --- Dask --------------------------------------------------------------------------------------


def bias_of_dask(
    logits: Any, labels: Any, q: Any, num_sampled: int, scheme: str
) -> tuple[Any, ...]:
    """Return the fields of `ExactBias` for Dask arrays (n,) or (B, n); array fields are lazy."""

    def make(label: int) -> BiasSums:
        return BiasSums(num_sampled, label, scheme)

    columns, results = rows_of_dask(logits, labels, q, make, ChunkBias.both)
    scalars = [[getattr(result, name) for result in results] for name in ChunkBias.SCALARS]
    if columns.ndim == 2:
        return (*columns, *(values[0] for values in scalars))
    return (*columns, *map(np.array, scalars))


def rows_of_dask(
    logits: Any,
    labels: Any,
    q: Any,
    make: Callable[[int], Any],
    columns: Callable[..., FloatArray],
    vectors: Any = None,
) -> tuple[Any, list[Any]]:
    """Run the passes over Dask arrays (n,) or (B, n), starting with ``make(label)`` per example.

    Returns a lazy array (2, n) or (2, B, n), and the results of the examples. The array consists of
    ``columns(result, start, logits, q)``, (2, k) for each chunk. Passes with `takes_vectors` also
    get the rows of `vectors` (n, d).
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
        lazy, result = _run_example(o, proposal, make(label), columns, vectors)
        return lazy, [result]
    proposals = da.broadcast_to(proposal, o.shape)
    targets = as_labels("labels", labels, o.shape[1], o.shape[:1])
    rows = [
        _run_example(o[i], proposals[i], make(t), columns, vectors)
        for i, t in enumerate(targets.tolist())
    ]
    return da.stack([lazy for lazy, _ in rows], axis=1), [result for _, result in rows]


def _run_example(
    o: Any, q: Any, sums: Any, columns: Callable[..., FloatArray], vectors: Any
) -> tuple[Any, Any]:
    """Run all passes of one example; return its lazy columns (2, n), and its result."""
    da, delayed = import_module("dask.array"), import_module("dask").delayed
    q = q.rechunk(o.chunks)
    starts = [0, *np.cumsum(o.chunks[0])[:-1].tolist()]
    pairs = list(zip(starts, o.to_delayed(), q.to_delayed(), strict=True))
    rows: list[tuple[Any, ...]] = [()] * len(pairs)
    if vectors is not None:
        blocks = vectors.rechunk((o.chunks[0], vectors.shape[1])).to_delayed()
        rows = [tuple(block) for block in blocks]
    while isinstance(sums, Pass):
        current, takes_vectors = delayed(sums), sums.takes_vectors
        partial_sums = [
            delayed(_add_chunk)(current, *pair, *(chunk_vectors if takes_vectors else ()))
            for pair, chunk_vectors in zip(pairs, rows, strict=True)
        ]
        while len(partial_sums) > 1:
            groups = range(0, len(partial_sums), _MERGES_PER_TASK)
            partial_sums = [
                delayed(_merge_passes)(partial_sums[i : i + _MERGES_PER_TASK]) for i in groups
            ]
        sums = partial_sums[0].compute().finish()
    options = {"starts": starts, "dtype": float, "meta": np.empty((0, 0)), "new_axis": 0}
    shape = ((2,), *o.chunks)
    return da.map_blocks(
        _evaluate_block, o, q, result=sums, columns=columns, chunks=shape, **options
    ), sums


def _add_chunk(sums: Any, start: int, *columns: FloatArray) -> Any:
    """Return the sums over one chunk."""
    with single_threaded():
        return sums.empty().add(start, *columns)


def _merge_passes(parts: list[Any]) -> Any:
    """Return the merged sums of several chunks."""
    total = parts[0].empty()
    for part in parts:
        total.merge(part)
    return total


def _evaluate_block(
    logits: FloatArray,
    q: FloatArray,
    result: Any,
    columns: Callable[..., FloatArray],
    starts: list[int],
    block_id: tuple[int, ...],
) -> FloatArray:
    """Return the columns (2, k) of a result for one block of classes."""
    if not len(logits):
        return np.empty((2, 0))
    with single_threaded():
        return columns(result, starts[block_id[-1]], logits, q)
