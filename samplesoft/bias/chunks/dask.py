"""The bias for Dask arrays: the passes of ``passes.py``, with Dask tasks for chunks and merges."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from samplesoft._jit import single_threaded
from samplesoft._validation import FloatArray, as_labels
from samplesoft.bias.chunks.passes import BiasSums, ChunkBias, Pass

_MERGES_PER_TASK = 16


def bias_of_dask(
    logits: Any, labels: Any, q: Any, num_sampled: int, scheme: str
) -> tuple[Any, ...]:
    """Return the fields of `ExactBias` for Dask arrays (n,) or (B, n); array fields are lazy."""

    def make_first_pass(label: int) -> BiasSums:
        return BiasSums(num_sampled, label, scheme)

    columns, results = run_passes_on_dask(logits, labels, q, make_first_pass, ChunkBias.both)
    scalars = [[getattr(result, name) for result in results] for name in ChunkBias.SCALARS]
    if columns.ndim == 2:
        return (*columns, *(values[0] for values in scalars))
    return (*columns, *map(np.array, scalars))


def run_passes_on_dask(
    logits: Any,
    labels: Any,
    q: Any,
    make_first_pass: Callable[[int], Any],
    evaluate_chunk: Callable[..., FloatArray],
    vectors: Any = None,
) -> tuple[Any, list[Any]]:
    """Run all passes over Dask arrays `logits` and `q`, (n,) or (B, n), for each example.

    The first pass of an example is ``make_first_pass(label)``. Passes with `takes_vectors` also get
    the rows of `vectors` (n, d).

    Returns a lazy array (2, n) or (2, B, n), and a list with the result of the last pass of each
    example. A chunk of the lazy array is ``evaluate_chunk(result, start, logits, q)``, (2, k) for
    the k classes of the chunk.
    """
    da: Any = import_module("dask.array")
    o = da.asarray(logits)
    proposal = da.asarray(q)
    if "c" in (o.dtype.kind, proposal.dtype.kind):
        raise TypeError("`logits` and `q` must hold real numbers, got complex ones.")

    o = o.astype(float)
    proposal = proposal.astype(float)
    if o.ndim not in (1, 2) or np.isnan(o.shape).any() or proposal.shape[-1:] != o.shape[-1:]:
        raise ValueError(
            f"`logits` and `q` must be of known shapes (n,) or (B, n) with the same n, got "
            f"{o.shape} and {proposal.shape}; call compute_chunk_sizes() for unknown ones."
        )

    if o.ndim == 1:
        label = as_labels("labels", labels, len(o), ()).item()
        first_pass = make_first_pass(label)
        lazy, result = _run_passes_of_example(o, proposal, first_pass, evaluate_chunk, vectors)
        return lazy, [result]

    proposals = da.broadcast_to(proposal, o.shape)
    targets = as_labels("labels", labels, o.shape[1], o.shape[:1])
    rows = [
        _run_passes_of_example(o[i], proposals[i], make_first_pass(t), evaluate_chunk, vectors)
        for i, t in enumerate(targets.tolist())
    ]

    return da.stack([lazy for lazy, _ in rows], axis=1), [result for _, result in rows]


def _run_passes_of_example(
    o: Any, q: Any, sums: Any, evaluate_chunk: Callable[..., FloatArray], vectors: Any
) -> tuple[Any, Any]:
    """Run the pass `sums` of one example and all passes after it.

    Returns the lazy array (2, n) of the example, and the result of the last pass.
    """
    da = import_module("dask.array")
    delayed = import_module("dask").delayed

    q = q.rechunk(o.chunks)
    starts = [0, *np.cumsum(o.chunks[0])[:-1].tolist()]
    chunks = list(zip(starts, o.to_delayed(), q.to_delayed(), strict=True))
    chunk_vectors: list[tuple[Any, ...]] = [()] * len(chunks)
    if vectors is not None:
        blocks = vectors.rechunk((o.chunks[0], vectors.shape[1])).to_delayed()
        chunk_vectors = [tuple(block) for block in blocks]

    while isinstance(sums, Pass):
        # the delayed sums of each chunk
        delayed_sums = delayed(sums)
        takes_vectors = sums.takes_vectors
        partial_sums = [
            delayed(_sums_of_chunk)(delayed_sums, *chunk, *(rows if takes_vectors else ()))
            for chunk, rows in zip(chunks, chunk_vectors, strict=True)
        ]

        # merge them, many at a time
        while len(partial_sums) > 1:
            groups = range(0, len(partial_sums), _MERGES_PER_TASK)
            partial_sums = [
                delayed(_merge_passes)(partial_sums[i : i + _MERGES_PER_TASK]) for i in groups
            ]

        sums = partial_sums[0].compute().finish()

    lazy = da.map_blocks(
        _evaluate_block,
        o,
        q,
        result=sums,
        evaluate_chunk=evaluate_chunk,
        starts=starts,
        chunks=((2,), *o.chunks),
        dtype=float,
        meta=np.empty((0, 0)),
        new_axis=0,
    )

    return lazy, sums


def _sums_of_chunk(sums: Any, start: int, *columns: FloatArray) -> Any:
    """Return a copy of the pass `sums` with the classes of one chunk only."""
    with single_threaded():
        return sums.empty().add(start, *columns)


def _merge_passes(passes: list[Any]) -> Any:
    """Return the merged copies of a pass, each of which has the classes of some chunks."""
    total = passes[0].empty()
    for one_pass in passes:
        total.merge(one_pass)
    return total


def _evaluate_block(
    logits: FloatArray,
    q: FloatArray,
    result: Any,
    evaluate_chunk: Callable[..., FloatArray],
    starts: list[int],
    block_id: tuple[int, ...],
) -> FloatArray:
    """Return ``evaluate_chunk(result, start, logits, q)`` (2, k) for the k classes of one block."""
    if not len(logits):
        return np.empty((2, 0))
    with single_threaded():
        return evaluate_chunk(result, starts[block_id[-1]], logits, q)
