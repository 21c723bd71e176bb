"""The arguments of `verify`, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._temperature import require_squares
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_labels,
    as_positive,
    as_proposal,
    as_real_array,
)
from samplesoft.bias.certain import require_none_certain
from samplesoft.bias.inputs import check_inputs, probs_of
from samplesoft.schemes import Scheme, as_scheme
from samplesoft.verification.blocks import WRT


@dataclass(frozen=True)
class Problem:
    """Checked arguments of `verify`: `logits` (B, n), `labels` (B,), vectors or None."""

    logits: FloatArray
    labels: IntArray
    h: FloatArray | None
    class_embeddings: FloatArray | None
    tau: float
    wrt: tuple[str, ...]
    scheme: Scheme
    num_trials: int

    @property
    def jacobian(self) -> FloatArray | None:
        """Derivatives of the logits in h, (n, d)."""
        return None if self.class_embeddings is None else self.tau * self.class_embeddings


def check_problem(
    logits: ArrayLike,
    labels: Any,
    h: ArrayLike | None,
    class_embeddings: ArrayLike | None,
    tau: float,
    wrt: Sequence[str],
    scheme: str | Scheme,
    num_trials: int,
) -> Problem:
    """Check the arguments of `verify` except the proposals and the numbers of draws."""
    o = as_real_array("logits", logits, (1, 2))
    t = np.atleast_1d(as_labels("labels", labels, o.shape[-1], o.shape[:-1]))
    o = np.atleast_2d(o)
    if isinstance(wrt, str):
        wrt = (wrt,)
    if as_array("wrt", wrt).ndim != 1:
        raise TypeError(f"`wrt` must be a list of names, got {type(wrt).__name__}.")
    blocks = tuple(dict.fromkeys(as_choice("wrt", name, WRT) for name in wrt))
    if (h is None) != (class_embeddings is None):
        names = ("h", "class_embeddings")
        given, absent = names if class_embeddings is None else names[::-1]
        raise ValueError(f"`{absent}` must be given together with `{given}`, got None.")
    vectors: tuple[FloatArray | None, FloatArray | None] = (None, None)
    if h is not None and class_embeddings is not None:
        contexts = np.atleast_2d(as_real_array("h", h, (1, 2)))
        classes = as_real_array("class_embeddings", class_embeddings, (2,))
        wanted = (len(o), o.shape[1])
        if (len(contexts), len(classes)) != wanted or contexts.shape[1] != classes.shape[1]:
            raise ValueError(
                f"`h` and `class_embeddings` must have shapes ({wanted[0]}, d) and "
                f"({wanted[1]}, d) to match `logits` of shape {o.shape}, got {contexts.shape} "
                f"and {classes.shape}."
            )
        vectors = contexts, classes
    else:
        blocks = tuple(name for name in blocks if name == "logits")
    if not blocks:
        raise ValueError(
            f"`wrt` must name at least one block that the input has, got {tuple(wrt)}; give `h` "
            "and `class_embeddings`, or include 'logits'."
        )
    scale = as_positive("tau", tau)
    require_squares(np.ones(1) if vectors[1] is None else vectors[1], scale)
    return Problem(
        o,
        t,
        *vectors,
        scale,
        blocks,
        as_scheme(scheme),
        as_count("num_trials", num_trials, 2),
    )


def check_counts(num_sampled: int | Iterable[int], scheme: Scheme) -> list[int]:
    """Return the numbers of draws, each checked, as a list."""
    values = list(num_sampled) if isinstance(num_sampled, Iterable) else [num_sampled]
    counts = [as_count("num_sampled", value, scheme.least_draws) for value in values]
    if not counts or len(set(counts)) < len(counts):
        raise ValueError(
            f"`num_sampled` must hold one or more different numbers of draws, got {counts}."
        )
    return sorted(counts)


def check_proposals(
    proposals: Mapping[str, Any], problem: Problem, counts: list[int]
) -> dict[str, FloatArray]:
    """Return each proposal as (1, n) or (B, n); that of a sampler is taken at the contexts."""
    if not isinstance(proposals, Mapping) or not proposals:
        raise ValueError(
            "`proposals` must map at least one name to probabilities, got "
            f"{type(proposals).__name__}; write for example {{'uniform': numpy.full(n, 1 / n)}}."
        )
    checked = {}
    for name, value in proposals.items():
        title = f"proposals[{name!r}]"
        require_none_certain(title, value)
        n = problem.logits.shape[1]
        q = probs_of(value, problem.h, problem.labels, n, problem.scheme, title)
        q = np.atleast_2d(as_proposal(title, q, n))
        try:
            check_inputs(problem.logits, problem.labels, q, counts[0], problem.scheme)
        except ValueError as error:
            raise ValueError(f"{title}: {error}") from None
        checked[str(name)] = q
    return checked
