"""What every function of the bias core is given, checked once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import to_host
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_choice,
    as_count,
    as_labels,
    as_probabilities,
    as_proposal,
    as_real_array,
)

SCHEMES = (
    "negatives",
    "reject",
    "candidate",
    "candidate_masked",
    "importance",
    "poisson",
    "jackknife",
)
_NEEDS_LABEL = ("candidate", "candidate_masked", "importance")


@dataclass(frozen=True)
class Inputs:
    """Checked arguments: `logits` (B, n), `labels` (B,), `q` (1, n) or (B, n)."""

    logits: FloatArray
    labels: IntArray
    q: FloatArray
    num_sampled: int
    scheme: str
    batched: bool

    def rows(self) -> Iterator[tuple[FloatArray, int, FloatArray]]:
        """Yield (logits (n,), label, q (n,)) for each example."""
        for i, (logits, label) in enumerate(zip(self.logits, self.labels, strict=True)):
            yield logits, int(label), self.q[i if len(self.q) > 1 else 0]


def read_inputs(
    logits: ArrayLike, label: Any, q: ArrayLike, num_sampled: Any, scheme: str = "negatives"
) -> Inputs:
    """Check the arguments that the bias functions share, copied from a GPU if they are there.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits.
    label : int or array_like of int, shape () or (B,)
        The true class of each example.
    q : array_like, shape (n,) or (B, n)
        Proposal over all classes; inclusion probabilities for ``scheme="poisson"``.
    num_sampled : int
        Number of draws m; ``poisson`` checks it and makes no use of it.
    scheme : str
        One of `SCHEMES`.

    Returns
    -------
    Inputs
        The arguments as float64 and int64 arrays with a batch dimension.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the proposal misses a class that the scheme needs.
    """
    logits, label, q = (to_host(value) for value in (logits, label, q))
    scheme = as_choice("scheme", scheme, SCHEMES)
    m = as_count("num_sampled", num_sampled, 2 if scheme == "jackknife" else 1)
    o = as_real_array("logits", logits, (1, 2))
    n = o.shape[-1]
    labels = as_labels("label", label, n, o.shape[:-1])
    as_q = as_probabilities if scheme == "poisson" else as_proposal
    proposal = as_q("q", q, n)
    if proposal.ndim == 2 and (o.ndim == 1 or len(proposal) not in (1, len(o))):
        raise ValueError(
            f"`q` of shape {proposal.shape} does not match `logits` of shape {o.shape}; "
            "give one row for all examples, or one row for each."
        )
    inputs = Inputs(
        np.atleast_2d(o),
        np.atleast_1d(labels),
        np.atleast_2d(proposal),
        m,
        scheme,
        batched=o.ndim == 2,
    )
    _check_support(inputs)
    return inputs


def _check_support(inputs: Inputs) -> None:
    """Raise where a class that the scheme draws has probability zero."""
    zeros = inputs.q == 0.0
    if not zeros.any() and inputs.logits.shape[1] > 1:
        return
    for row, (_, label, q) in enumerate(inputs.rows()):
        missing = zeros[row if len(zeros) > 1 else 0].copy()
        if inputs.scheme not in _NEEDS_LABEL:
            negatives = np.delete(q, label)
            if not negatives.any():
                if inputs.scheme == "reject":
                    continue
                raise ValueError(
                    f"`q` must leave mass on a class other than the label {label} "
                    f"(example {row}), got none: there is no negative to draw; "
                    'use scheme="reject", whose loss is 0 there.'
                )
            missing[label] = False
        if missing.any():
            raise ValueError(
                f"`q` must be greater than 0 on every class that scheme "
                f"{inputs.scheme!r} can draw, got 0 at class {int(np.argmax(missing))} "
                f"(example {row}); mix the proposal with a little of the uniform distribution."
            )
