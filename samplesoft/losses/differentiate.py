"""Losses and their derivatives in the scores, for the kernel of any loss.

The functions made here have one signature, ``differentiate(pairs, first, last, parameters, weights,
logits, losses, d_labels, d_sampled)``. They process the pairs [first, last), which are all pairs of
some examples:

- ``pairs`` are `Pairs`.
- ``parameters`` are the further arguments of the loss kernel.
- ``weights``, (B, m) or (1, m), are the weights of the draws; (0, 0) if the kernel takes none.
- ``logits`` (K,), K at least 3 (2 + m), is workspace. Its dtype is that of the computation.
- ``losses`` (P,) are written: the losses of the pairs times their label weights.
- ``d_labels`` (P,) and ``d_sampled`` (B, m) are written: derivatives of the example's loss in the
  scores of labels and of draws. ``d_labels`` may overwrite the scores; ``d_sampled`` may do so only
  if each example has one label.

`make_row_differentiator` computes a row of logits for each pair: its label and all draws.
`make_merged_differentiator` replaces all draws of an example by one merged logit, so that several
labels cost no more than one. Both compile for a kernel on first use: in a
`samplesoft.models.SoftmaxLayer` for a batch, and in `samplesoft.training.fused` for a block of
examples of many steps. For kernels in NumPy the same function runs as Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from samplesoft._jit import njit, njit_bare
from samplesoft._limits import ignoring_overflow
from samplesoft._validation import FloatArray
from samplesoft.losses.step import (
    Floats,
    Pairs,
    has_draws,
    keeps_hits,
    scatter_logit_gradients,
    write_pair_logits,
)

Kernel = Callable[..., Any]


def name_after_kernels(function: Kernel, *kernels: Kernel) -> Kernel:
    """Append the names of kernels to that of a function, so that each has its own cache file."""
    names = [function.__name__]
    for kernel in kernels:
        code: Any = getattr(kernel, "py_func", kernel)
        module = str(code.__module__)  # None for functions made by exec
        module_names = [] if module.startswith("samplesoft.") else [module]
        names += [*module_names, code.__name__]
    function.__name__ = function.__qualname__ = re.sub(r"\W+", "_", "_".join(names))
    return function


def make_row_differentiator(kernel: Kernel, weighs_draws: bool) -> Kernel:
    """Return a differentiator with a row of logits, of all draws, for each label."""
    if not _is_compilable(kernel):  # in NumPy
        return ignoring_overflow(_row_differentiator(kernel, weighs_draws))
    return _compiled_row_differentiator(kernel, weighs_draws)


def make_merged_differentiator(kernel: Kernel, merge: Kernel, separate_hits: bool) -> Kernel:
    """Return a differentiator with one merged logit for all draws of an example.

    Accidental hits have separate logits if `separate_hits`, because the pairs of an example treat
    them differently; else they have no weight.
    """
    if not (_is_compilable(kernel) and _is_compilable(merge)):
        return ignoring_overflow(_merged_differentiator(kernel, merge, separate_hits))
    return _compiled_merged_differentiator(kernel, merge, separate_hits)


def _is_compilable(function: Kernel) -> bool:
    """Whether a function is compiled, or would be if Numba were installed."""
    return type(function) not in (FunctionType, MethodType) or hasattr(function, "py_func")


@cache
def _compiled_row_differentiator(kernel: Kernel, weighs_draws: bool) -> Kernel:
    return njit(name_after_kernels(_row_differentiator(kernel, weighs_draws), kernel))


@cache
def _compiled_merged_differentiator(kernel: Kernel, merge: Kernel, separate_hits: bool) -> Kernel:
    function = _merged_differentiator(kernel, merge, separate_hits)
    if separate_hits:
        function.__name__ = "differentiate_merged_and_hits"
    return njit_bare(name_after_kernels(function, kernel, merge))


def _row_differentiator(kernel: Kernel, weighs_draws: bool) -> Kernel:
    def differentiate_rows(
        pairs: Pairs,
        first: int,
        last: int,
        parameters: Any,
        weights: FloatArray,
        logits: Floats,
        losses: FloatArray,
        d_labels: Floats,
        d_sampled: Floats,
    ) -> None:
        width = 1 + pairs.sampled_scores.shape[1]
        max_rows = len(logits) // width
        for start in range(first, last, max_rows):
            stop = min(start + max_rows, last)
            rows = logits[: (stop - start) * width].reshape((stop - start, width))
            write_pair_logits(pairs, start, rows)
            if weighs_draws:  # a constant when compiled
                pair_weights = weights[
                    (pairs.example_ids[start:stop] - pairs.first_example) % len(weights)
                ]
                kernel(rows, losses[start:stop], pair_weights, *parameters)
            else:
                kernel(rows, losses[start:stop], *parameters)
            scatter_logit_gradients(pairs, start, rows, losses, d_labels, d_sampled)

    return differentiate_rows


def _merged_differentiator(kernel: Kernel, merge: Kernel, separate_hits: bool) -> Kernel:
    def differentiate_merged(
        pairs: Pairs,
        first: int,
        last: int,
        parameters: Any,
        weights: FloatArray,
        logits: Floats,
        losses: FloatArray,
        d_labels: Floats,
        d_sampled: Floats,
    ) -> None:
        label_logits = pairs.label_logits
        example_ids = pairs.example_ids
        label_weights = pairs.label_weights
        starts, stops, columns = pairs.hit_starts, pairs.hit_stops, pairs.hit_columns
        width, shared = d_sampled.shape[1], len(pairs.log_counts) == 1
        # workspace: logits of separate hits; derivatives in these and in the merged logit; and
        # the logits of one pair
        hit_logits, derivatives = logits[:width], logits[width : 2 * width + 1]
        pair_logits = logits[2 * width + 1 : 3 * width + 3]
        end = first
        while end < last:
            begin, b, num_hits = end, example_ids[end] - pairs.first_example, 0
            row = d_sampled[b]
            for k in range(width):
                row[k] = pairs.sampled_scores[b, k] - pairs.log_counts[0 if shared else b, k]
            while end < last and example_ids[end] == example_ids[begin]:
                for i in range(starts[end], stops[end]):
                    if separate_hits:
                        hit_logits[num_hits] = row[columns[i]]
                        num_hits += 1
                    row[columns[i]] = -np.inf
                end += 1
            merge(row.reshape((1, width)), pair_logits[:1])  # overwrites the row by derivatives
            merged = pair_logits[0]
            for i in range(num_hits + 1):
                derivatives[i] = 0.0
            for p in range(begin, end):
                pair_logits[0], pair_logits[1 + num_hits] = label_logits[p], merged
                if separate_hits:
                    i = 1
                    for q in range(begin, end):
                        has_weight = keeps_hits(pairs, p, q)
                        for _ in range(starts[q], stops[q]):
                            pair_logits[i] = hit_logits[i - 1] if has_weight else -np.inf
                            i += 1
                if not has_draws(pairs, p):
                    for i in range(1, num_hits + 2):
                        pair_logits[i] = -np.inf
                kernel(
                    pair_logits[: num_hits + 2].reshape((1, num_hits + 2)),
                    losses[p : p + 1],
                    *parameters,
                )
                label_weight = label_weights[p] if len(label_weights) > 0 else 1.0
                losses[p] *= label_weight if abs(label_logits[p]) < np.inf else np.nan
                d_labels[p] = label_weight * pair_logits[0]
                for i in range(num_hits + 1):
                    derivatives[i] += label_weight * pair_logits[1 + i]
            derivative = row.dtype.type(derivatives[num_hits])
            for k in range(width):
                row[k] *= derivative
            if separate_hits:
                i = 0
                for p in range(begin, end):
                    for h in range(starts[p], stops[p]):
                        row[columns[h]] = derivatives[i]
                        i += 1

    return differentiate_merged
