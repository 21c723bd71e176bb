"""The checked arguments of `verify`, and a check that its logits are products of its vectors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._limits import ignore_overflow
from samplesoft._temperature import require_squarable
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_flag,
    as_labels,
    as_positive,
    as_proposal,
    as_real_array,
)
from samplesoft.bias.certified.balls import import_flint
from samplesoft.bias.inputs import (
    Inputs,
    check_support,
    probs_of,
    require_digits,
    require_none_certain,
)
from samplesoft.schemes import Scheme, as_scheme
from samplesoft.verification.bounds import PARAMETER_BLOCKS

_FLOAT32 = float(np.finfo(np.float32).eps)
# If another tau leaves at most this fraction of the sum of squares of the logits unexplained, the
# warning names this tau.
_MAX_UNEXPLAINED = 1e-6


@dataclass(frozen=True)
class VerificationProblem:
    """The checked arguments of `verify`, without the proposals.

    Shapes are (B, n) for `logits`, (B,) for `labels`, (B, d) for `h` and (n, d) for
    `class_embeddings`; the vectors are None if only logits were passed.
    """

    logits: FloatArray
    labels: IntArray
    h: FloatArray | None
    class_embeddings: FloatArray | None
    tau: float
    blocks: tuple[str, ...]  # names of parameters, from `PARAMETER_BLOCKS`
    scheme: Scheme
    draw_counts: list[int]  # numbers of draws m, in increasing order
    num_trials: int
    certified: bool

    @property
    def jacobian(self) -> FloatArray | None:
        """Derivatives (n, d) of the logits with respect to h; None without vectors."""
        return None if self.class_embeddings is None else self.tau * self.class_embeddings

    def select_examples(self, examples: slice) -> VerificationProblem:
        """Return the problem of a slice of the examples."""
        h = None if self.h is None else self.h[examples]
        return replace(self, logits=self.logits[examples], labels=self.labels[examples], h=h)


def checked_problem(
    logits: ArrayLike,
    labels: Any,
    num_sampled: int | Iterable[int],
    h: ArrayLike | None,
    class_embeddings: ArrayLike | None,
    tau: float,
    wrt: Sequence[str],
    scheme: str,
    num_trials: int,
    certified: bool = False,
) -> VerificationProblem:
    """Check the arguments of `verify` except the proposals, and return them in one record."""
    o = as_real_array("logits", logits, (1, 2))
    t = np.atleast_1d(as_labels("labels", labels, o.shape[-1], o.shape[:-1]))

    o = np.atleast_2d(o)
    wrt = (wrt,) if isinstance(wrt, str) else wrt
    if as_array("wrt", wrt).ndim != 1:
        raise TypeError(f"`wrt` must be a list of names, got {type(wrt).__name__}.")

    blocks = tuple(dict.fromkeys(as_choice("wrt", name, PARAMETER_BLOCKS) for name in wrt))

    contexts, class_vectors = _check_vectors(h, class_embeddings, o)
    if contexts is None:
        blocks = tuple(name for name in blocks if name == "logits")
    if not blocks:
        raise ValueError(
            f"`wrt` must name at least one block that the input has, got {tuple(wrt)}; give `h` "
            "and `class_embeddings`, or include 'logits'."
        )

    checked_tau = as_positive("tau", tau)

    # moments contain squares of tau * class_embeddings, which must not overflow
    require_squarable(np.ones(1) if class_vectors is None else class_vectors, checked_tau)

    checked_scheme = as_scheme(scheme)

    counts = list(num_sampled) if isinstance(num_sampled, Iterable) else [num_sampled]
    draw_counts = sorted(
        as_count("num_sampled", value, checked_scheme.min_draws) for value in counts
    )
    if not draw_counts or len(set(draw_counts)) < len(draw_counts):
        raise ValueError(
            f"`num_sampled` must hold one or more different numbers of draws, got {counts}."
        )

    trials = as_count("num_trials", num_trials, 2)
    if as_flag("certified", certified):
        import_flint()
        if "logits" not in blocks:
            raise ValueError(
                f"`wrt` must include 'logits' where `certified` is True, got {blocks}: the bias "
                "in the logits is what is certified."
            )
    return VerificationProblem(
        o,
        t,
        contexts,
        class_vectors,
        checked_tau,
        blocks,
        checked_scheme,
        draw_counts,
        trials,
        certified,
    )


def _check_vectors(
    h: ArrayLike | None, class_embeddings: ArrayLike | None, logits: FloatArray
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return contexts (B, d) and class vectors (n, d) as checked arrays, or None for both."""
    if h is None and class_embeddings is None:
        return None, None
    if h is None or class_embeddings is None:
        names = ("h", "class_embeddings")
        present, absent = names if class_embeddings is None else names[::-1]
        raise ValueError(f"`{absent}` must be given together with `{present}`, got None.")

    contexts = np.atleast_2d(as_real_array("h", h, (1, 2)))
    vectors = as_real_array("class_embeddings", class_embeddings, (2,))
    batch, n = logits.shape
    if (len(contexts), len(vectors)) != (batch, n) or contexts.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"`h` and `class_embeddings` must have shapes ({batch}, d) and ({n}, d) to match "
            f"`logits` of shape {logits.shape}, got {contexts.shape} and {vectors.shape}."
        )

    return contexts, vectors


def checked_inputs(proposals: Mapping[str, Any], problem: VerificationProblem) -> dict[str, Inputs]:
    """Check the proposals of `verify`; return the `Inputs` of the exact bias for each name.

    A proposal that is a sampler is evaluated at the contexts. The number of draws in the inputs is
    the smallest of the problem. For schemes with independent inclusion, the q in the inputs are
    those of a single draw, not yet inclusion probabilities.
    """
    if not isinstance(proposals, Mapping) or not proposals:
        raise ValueError(
            "`proposals` must map at least one name to probabilities, got "
            f"{type(proposals).__name__}; write for example {{'uniform': numpy.full(n, 1 / n)}}."
        )

    checked = {}
    no_classes = np.empty(0, np.int64)
    num_examples, num_classes = problem.logits.shape

    for name, value in proposals.items():
        title = f"proposals[{name!r}]"
        require_none_certain(title, value)
        probs = probs_of(value, problem.h, problem.labels, num_classes, problem.scheme, title)
        q = np.atleast_2d(as_proposal(title, probs, num_classes))
        if len(q) not in (1, num_examples):
            raise ValueError(
                f"`{title}` of shape {q.shape} does not match `logits` of shape "
                f"({num_examples}, {num_classes}); give one row for all examples, or one row for "
                "each."
            )

        # check q now, so that the message of an error can contain the name of the proposal
        inputs = Inputs(
            problem.logits,
            problem.labels,
            q,
            problem.draw_counts[0],
            problem.scheme,
            True,
            no_classes,
        )
        try:
            check_support(inputs)
            require_digits(inputs)
        except ValueError as error:
            raise ValueError(f"{title}: {error}") from None

        checked[str(name)] = inputs

    return checked


def warn_unless_logits_fit_vectors(problem: VerificationProblem) -> None:
    """Warn if the logits (B, n) are not ``tau h . c`` for the vectors of the problem.

    A bias of each class, a constant of each example, and float32 rounding are allowed. To remove
    the biases, the logits of the example with the shortest context are subtracted from all others,
    so that a single example always fits. The warning shows the line that called `verify`.
    """
    logits = problem.logits
    h = problem.h
    class_embeddings = problem.class_embeddings
    if h is None or class_embeddings is None:
        return

    with ignore_overflow():  # products that overflow cannot be compared
        norms = np.linalg.norm(h, axis=1)
        reference = int(norms.argmin())

        # differences from the reference example, in which the class biases cancel
        y = logits - logits[reference]
        x = (h - h[reference]) @ class_embeddings.T

        # bound on the float32 rounding of the logits: of d products and their sum, of normalised
        # vectors, and of biases and constants
        rounding_unit = (
            _FLOAT32 * (h.shape[1] + 4) * problem.tau * np.linalg.norm(class_embeddings, axis=1)
        )
        slack = (norms[:, None] + norms[reference]) * rounding_unit
        slack += 4.0 * _FLOAT32 * (np.abs(logits) + np.abs(logits[reference]))
        slack += np.median(slack, axis=1, keepdims=True)
        residual = y - problem.tau * x

        # estimate the constant of an example by the median of its residuals, which a single wrong
        # logit hardly changes
        residual = np.abs(residual - np.median(residual, axis=1, keepdims=True))
        row, column = np.unravel_index(np.argmax(residual - slack), residual.shape)
        deviation = float(residual[row, column])
        allowed = float(slack[row, column])
        if not deviation > allowed:
            return

        y -= y.mean(axis=1, keepdims=True)
        x -= x.mean(axis=1, keepdims=True)
        yy = np.vdot(y, y)
        xy = np.vdot(y, x)
        xx = np.vdot(x, x)

        # whether another tau leaves almost no residual
        fits = xy > 0.0 and yy - xy / xx * xy <= _MAX_UNEXPLAINED * yy

    remedy = "pass the vectors and the tau that the logits were made of, or leave the vectors out"
    if fits:
        remedy = f"pass tau={xy / xx:.6g}, which fits"

    warnings.warn(
        "`logits` must be tau h . c of `h` and `class_embeddings`, to which a bias of each "
        "class and a constant of each example may be added, else gradients in these are wrong: "
        f"with tau = {problem.tau:g} class {column} of example {row} is off by {deviation:.3g} "
        f"against example {reference}, and rounding explains {allowed:.1g}; {remedy}.",
        RuntimeWarning,
        stacklevel=3,
    )
