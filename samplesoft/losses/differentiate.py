"""Differentiators: functions that compute losses and their derivatives in the scores.

`make_row_differentiator` and `make_merged_differentiator` return a differentiator for the kernel of
any loss, ``differentiate(pairs, start, stop, parameters, weights, logits, losses, d_labels,
d_sampled)``. A call processes the pairs [start, stop), which must be all pairs of their examples:

- ``pairs`` are `Pairs`.
- ``parameters`` are the further arguments of the loss kernel.
- ``weights``, (B, m) or (1, m), are the weights of the draws; (0, 0) if the kernel takes none.
- ``logits`` (K,), with K at least 3 (2 + m), is workspace, in the dtype of the computation.
- ``losses`` (P,) receives the losses of the pairs, multiplied by their label weights.
- ``d_labels`` (P,) and ``d_sampled`` (B, m) receive the derivatives of the examples' losses in the
  scores of labels and draws. ``d_labels`` may be the array of the label scores; ``d_sampled`` may
  be the array of the sampled scores if each example has one label.

A row differentiator computes, for each pair, a row of logits of the label and all draws. A merged
differentiator replaces all draws of an example by one merged logit, so that several labels cost no
more than one. `samplesoft.losses.log_sums` makes a differentiator of moving averages from these.

A differentiator is compiled on first use. `samplesoft.models.SoftmaxLayer` calls it for a batch,
`samplesoft.training.fused` for blocks of examples of many steps. For kernels in NumPy, which cannot
be compiled, it runs as Python.
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
    """Rename a function in place, and return it: the names of kernels are appended to its name.

    The names of Numba's cache files are then distinct for distinct kernels.
    """
    names = [function.__name__]
    for kernel in kernels:
        code: Any = getattr(kernel, "py_func", kernel)
        module = str(code.__module__)  # "None" for functions made by exec
        module_names = [] if module.startswith("samplesoft.") else [module]
        names += [*module_names, code.__name__]
    function.__name__ = function.__qualname__ = re.sub(r"\W+", "_", "_".join(names))
    return function


def make_row_differentiator(kernel: Kernel, weighs_draws: bool) -> Kernel:
    """Return a differentiator that computes a row of logits, of label and draws, for each pair."""
    if not _is_compilable(kernel):  # the kernel is a NumPy function: run it in Python
        return ignoring_overflow(_row_differentiator(kernel, weighs_draws))
    return _compiled_row_differentiator(kernel, weighs_draws)


def make_merged_differentiator(kernel: Kernel, merge: Kernel, separate_hits: bool) -> Kernel:
    """Return a differentiator that replaces all draws of an example by one merged logit.

    If `separate_hits`, accidental hits are not merged, because they enter the loss of some pairs of
    an example and not of others. Otherwise accidental hits are masked for all pairs.
    """
    if not (_is_compilable(kernel) and _is_compilable(merge)):
        return ignoring_overflow(_merged_differentiator(kernel, merge, separate_hits))
    return _compiled_merged_differentiator(kernel, merge, separate_hits)


def _is_compilable(function: Kernel) -> bool:
    """Whether a function is marked for compilation, even if Numba is not installed."""
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
        start: int,
        stop: int,
        parameters: Any,
        weights: FloatArray,
        logits: Floats,
        losses: FloatArray,
        d_labels: Floats,
        d_sampled: Floats,
    ) -> None:
        width = 1 + pairs.sampled_scores.shape[1]
        max_rows = len(logits) // width

        for chunk_start in range(start, stop, max_rows):
            chunk_stop = min(chunk_start + max_rows, stop)
            rows = logits[: (chunk_stop - chunk_start) * width].reshape(
                (chunk_stop - chunk_start, width)
            )
            write_pair_logits(pairs, chunk_start, rows)
            if weighs_draws:  # a constant at compile time, so only one branch is compiled
                pair_weights = weights[
                    (pairs.example_ids[chunk_start:chunk_stop] - pairs.first_example) % len(weights)
                ]
                kernel(rows, losses[chunk_start:chunk_stop], pair_weights, *parameters)
            else:
                kernel(rows, losses[chunk_start:chunk_stop], *parameters)
            scatter_logit_gradients(pairs, chunk_start, rows, losses, d_labels, d_sampled)

    return differentiate_rows


def _merged_differentiator(kernel: Kernel, merge: Kernel, separate_hits: bool) -> Kernel:
    def differentiate_merged(
        pairs: Pairs,
        start: int,
        stop: int,
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
        hit_starts = pairs.hit_starts
        hit_stops = pairs.hit_stops
        hit_columns = pairs.hit_columns
        width = d_sampled.shape[1]
        shared = len(pairs.log_counts) == 1

        # Slices of the workspace: logits of the separate hits; derivatives in these logits and in
        # the merged logit, summed over pairs; logits of one pair.
        hit_logits = logits[:width]
        derivatives = logits[width : 2 * width + 1]
        pair_logits = logits[2 * width + 1 : 3 * width + 3]

        example_stop = start
        while example_stop < stop:
            example_start = example_stop
            b = example_ids[example_stop] - pairs.first_example
            row = d_sampled[b]
            for k in range(width):
                row[k] = pairs.sampled_scores[b, k] - pairs.log_counts[0 if shared else b, k]

            # remove the hits of all labels of the example from the row, which is then merged
            num_hits = 0
            while example_stop < stop and example_ids[example_stop] == example_ids[example_start]:
                for i in range(hit_starts[example_stop], hit_stops[example_stop]):
                    if separate_hits:
                        hit_logits[num_hits] = row[hit_columns[i]]
                        num_hits += 1
                    row[hit_columns[i]] = -np.inf
                example_stop += 1

            merge(row.reshape((1, width)), pair_logits[:1])  # overwrites the row by derivatives
            merged = pair_logits[0]
            for i in range(num_hits + 1):
                derivatives[i] = 0.0

            for p in range(example_start, example_stop):
                pair_logits[0] = label_logits[p]
                pair_logits[1 + num_hits] = merged
                if separate_hits:
                    i = 1
                    for q in range(example_start, example_stop):
                        has_weight = keeps_hits(pairs, p, q)
                        for _ in range(hit_starts[q], hit_stops[q]):
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

            # chain rule: the derivative of the merged logit in a draw's logit, times the
            # derivative of the loss in the merged logit
            derivative = row.dtype.type(derivatives[num_hits])
            for k in range(width):
                row[k] *= derivative

            if separate_hits:
                i = 0
                for p in range(example_start, example_stop):
                    for h in range(hit_starts[p], hit_stops[p]):
                        row[hit_columns[h]] = derivatives[i]
                        i += 1

    return differentiate_merged
