"""From scores to losses and their derivatives, by the terms of any loss: one family of functions.

All are called ``differentiate(pairs, first, last, numbers, weights, logits, losses, d_own,
d_drawn)``, to do it for the pairs [first, last), which are whole examples:

- ``pairs`` are `Pairs`;
- ``numbers`` are those that the kernel of the loss takes, and ``weights``, (B, m) or (1, m) for
  all, those of the draws, (0, 0) where it takes none;
- ``logits`` (K,), of at least 3 (2 + m), is room for as many logits as it holds, in the type in
  which they are computed;
- written are the ``losses`` (P,) of the pairs, times what they weigh, and the derivatives of what
  an example loses in scores of labels ``d_own`` (P,) and of draws ``d_drawn`` (B, m). The former
  may take the place of the scores, the latter only where an example has one label.

`by_rows` gives each pair a row of logits of its label and of all draws. `by_merged` has one logit
stand for all draws of an example, so that several labels cost no more than one. Either is compiled
for a kernel when they first come together, by a `samplesoft.models.SoftmaxLayer` for a batch or by
`samplesoft.training.fused` for a block of examples of many steps; for terms in NumPy the
same function runs as Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from samplesoft._jit import njit, njit_bare
from samplesoft._limits import quietly
from samplesoft._validation import FloatArray
from samplesoft.losses.step import (
    Floats,
    Pairs,
    has_draws,
    keeps_hits,
    pair_logits,
    scatter_logit_gradients,
)

Kernel = Callable[..., Any]


def named(function: Kernel, *kernels: Kernel) -> Kernel:
    """Name a function by what it is compiled for, so that on disk each has a place of its own."""
    names = [function.__name__]
    for kernel in kernels:
        code: Any = getattr(kernel, "py_func", kernel)
        module = str(code.__module__)  # None of what was made by exec
        others = [] if module.startswith("samplesoft.") else [module]
        names += [*others, code.__name__]
    function.__name__ = function.__qualname__ = re.sub(r"\W+", "_", "_".join(names))
    return function


def by_rows(kernel: Kernel, weighs_draws: bool) -> Kernel:
    """Return the function that differentiates by a row of all draws for each label."""
    if not _is_kernel(kernel):  # in NumPy
        return quietly(_rows(kernel, weighs_draws))
    return _compiled_rows(kernel, weighs_draws)


def by_merged(kernel: Kernel, merge: Kernel, apart: bool) -> Kernel:
    """Return the function that differentiates with one logit for all draws of an example.

    Draws that are labels of their example have logits of their own where `apart`, for its pairs
    treat them differently; else they have no weight.
    """
    if not (_is_kernel(kernel) and _is_kernel(merge)):
        return quietly(_merged(kernel, merge, apart))
    return _compiled_merged(kernel, merge, apart)


def _is_kernel(function: Kernel) -> bool:
    """Tell whether a function is compiled, or would be with Numba."""
    return type(function) not in (FunctionType, MethodType) or hasattr(function, "py_func")


@cache
def _compiled_rows(kernel: Kernel, weighs_draws: bool) -> Kernel:
    return njit(named(_rows(kernel, weighs_draws), kernel))


@cache
def _compiled_merged(kernel: Kernel, merge: Kernel, apart: bool) -> Kernel:
    function = _merged(kernel, merge, apart)
    if apart:
        function.__name__ = "by_merged_and_apart"
    return njit_bare(named(function, kernel, merge))


def _rows(kernel: Kernel, weighs_draws: bool) -> Kernel:
    def by_rows(
        pairs: Pairs,
        first: int,
        last: int,
        numbers: Any,
        weights: FloatArray,
        logits: Floats,
        losses: FloatArray,
        d_own: Floats,
        d_drawn: Floats,
    ) -> None:
        width = 1 + pairs.drawn.shape[1]
        most = len(logits) // width
        for start in range(first, last, most):
            stop = min(start + most, last)
            rows = logits[: (stop - start) * width].reshape((stop - start, width))
            pair_logits(pairs, start, rows)
            if weighs_draws:  # decided when it is compiled
                of_pairs = weights[(pairs.example_ids[start:stop] - pairs.begin) % len(weights)]
                kernel(rows, losses[start:stop], of_pairs, *numbers)
            else:
                kernel(rows, losses[start:stop], *numbers)
            scatter_logit_gradients(pairs, start, rows, losses, d_own, d_drawn)

    return by_rows


def _merged(kernel: Kernel, merge: Kernel, apart: bool) -> Kernel:
    def by_merged(
        pairs: Pairs,
        first: int,
        last: int,
        numbers: Any,
        weights: FloatArray,
        logits: Floats,
        losses: FloatArray,
        d_own: Floats,
        d_drawn: Floats,
    ) -> None:
        own, example_ids, label_weights = pairs.own, pairs.example_ids, pairs.label_weights
        starts, stops, columns = pairs.hit_starts, pairs.hit_stops, pairs.hit_columns
        width, of_all = d_drawn.shape[1], len(pairs.log_counts) == 1
        # room for logits of draws that are apart, for derivatives in these and in the merged logit,
        # and for the logits of a pair
        few, derivatives = logits[:width], logits[width : 2 * width + 1]
        of_pair = logits[2 * width + 1 : 3 * width + 3]
        end = first
        while end < last:
            begin, b, num = end, example_ids[end] - pairs.begin, 0
            row = d_drawn[b]
            for k in range(width):
                row[k] = pairs.drawn[b, k] - pairs.log_counts[0 if of_all else b, k]
            while end < last and example_ids[end] == example_ids[begin]:
                for i in range(starts[end], stops[end]):
                    if apart:
                        few[num] = row[columns[i]]
                        num += 1
                    row[columns[i]] = -np.inf
                end += 1
            merge(row.reshape((1, width)), of_pair[:1])  # the row becomes derivatives
            merged = of_pair[0]
            for i in range(num + 1):
                derivatives[i] = 0.0
            for p in range(begin, end):
                of_pair[0], of_pair[1 + num] = own[p], merged
                if apart:
                    i = 1
                    for q in range(begin, end):
                        kept = keeps_hits(pairs, p, q)
                        for _ in range(starts[q], stops[q]):
                            of_pair[i] = few[i - 1] if kept else -np.inf
                            i += 1
                if not has_draws(pairs, p):
                    for i in range(1, num + 2):
                        of_pair[i] = -np.inf
                kernel(of_pair[: num + 2].reshape((1, num + 2)), losses[p : p + 1], *numbers)
                label_weight = label_weights[p] if len(label_weights) > 0 else 1.0
                losses[p] *= label_weight if abs(own[p]) < np.inf else np.nan
                d_own[p] = label_weight * of_pair[0]
                for i in range(num + 1):
                    derivatives[i] += label_weight * of_pair[1 + i]
            derivative = row.dtype.type(derivatives[num])
            for k in range(width):
                row[k] *= derivative
            if apart:
                i = 0
                for p in range(begin, end):
                    for hit in range(starts[p], stops[p]):
                        row[columns[hit]] = derivatives[i]
                        i += 1

    return by_merged
