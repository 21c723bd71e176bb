"""The exact bias of draws from strata: a given number of draws from each group of classes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_count, as_ids
from samplesoft.bias.exact import ExactBias
from samplesoft.bias.inputs import Inputs, check_correction, check_inputs, require_digits
from samplesoft.bias.without_replacement.set_bias import strata_bias
from samplesoft.schemes import Scheme


def stratified_bias(
    logits: ArrayLike,
    labels: Any,
    q: ArrayLike,
    num_sampled: Any,
    strata: ArrayLike,
    *,
    scheme: str = "distinct",
    correction: ArrayLike | None = None,
) -> ExactBias:
    """Compute the exact bias of sampled softmax with separate draws from each stratum of classes.

    For example, the strata are the shards of Partial FC, each of which draws from its own classes.

    Parameters
    ----------
    logits, labels
        As for `samplesoft.exact_bias`.
    q : array_like, shape (n,) or (B, n)
        Proposal. Within a stratum, classes are drawn in proportion to q.
    num_sampled : int or array_like of int, shape (G,)
        Number of draws in each stratum.
    strata : array_like of int, shape (n,)
        The stratum of each class, from 0 to G - 1.
    scheme : str
        ``distinct``, ``distinct_masked``, ``distinct_candidate``, ``distinct_candidate_masked`` or
        ``distinct_importance`` for draws without replacement, or the corresponding scheme with
        replacement. A draw of class j is divided by the probability that j is drawn; with
        replacement, by the expected number of its draws.
    correction : array_like, shape (n,) or (B, n), optional
        Divisors of the draws, in place of the default ones; all 1 for no correction, as in Partial
        FC.

    Returns
    -------
    ExactBias
        The bias, the loss bias, and estimates of their numerical errors; `inclusion` contains the
        default divisors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a stratum has fewer classes than draws without replacement.

    Notes
    -----
    ``S`` is a sum over independent strata, so that ``E exp(-u S)`` is a product over the strata:
    section 22 of ``samplesoft/bias/README.md``.

    References
    ----------
    An et al., "Partial FC: Training 10 Million Identities on a Single Machine", 2020, section 3:
    S consists of the labels and of uniform draws without replacement from each shard, without
    correction.

    Examples
    --------
    Two shards of two and three classes, with one draw from each, with correction and without:

    >>> import numpy as np
    >>> from samplesoft.bias import stratified_bias
    >>> logits, shards = [0.0, 1.0, 2.0, 0.5, 1.5], [0, 0, 1, 1, 1]
    >>> for correction in None, np.ones(5):
    ...     result = stratified_bias(
    ...         logits, 0, np.full(5, 0.2), 1, shards, correction=correction
    ...     )
    ...     print(result.bias.round(3), round(result.loss_bias, 3))
    [ 0.013  0.035 -0.143  0.095  0.001] -0.095
    [ 0.075  0.203 -0.207  0.007 -0.078] -0.783
    """
    has_correction = correction is not None
    inputs = check_inputs(
        logits, labels, q, 1, scheme, takes_missing=has_correction, require=_require_sum
    )
    require_digits(inputs)

    stratum, counts = _check_strata(strata, num_sampled, inputs)
    _require_divisors(stratum, counts, inputs, has_correction)

    rows: Iterable[FloatArray | None] = repeat(None, len(inputs.logits))
    if correction is not None:
        rows = np.broadcast_to(check_correction(correction, inputs), inputs.logits.shape)

    pairs = zip(inputs.rows(), rows, strict=True)
    results = (
        strata_bias(example, (counts, stratum), inputs.scheme, divisors)
        for example, divisors in pairs
    )

    return ExactBias(*inputs.columns(results))


def _require_sum(scheme: Scheme) -> None:
    """Raise ValueError for a scheme whose S is not a sum of independent parts, one per stratum."""
    if scheme.jackknife or scheme.independent or scheme.divides_by_accepted:
        raise ValueError(
            f"`scheme` must be one whose draws add up in S, got {scheme.name!r}; take 'distinct', "
            "or 'negatives' for draws with replacement."
        )


def _require_divisors(
    stratum: IntArray, counts: list[int], inputs: Inputs, has_correction: bool
) -> None:
    """Raise ValueError if S would be empty, or the label would be divided by 0."""
    if not inputs.scheme.label_in_sum and not any(counts):
        raise ValueError(
            f"`num_sampled` must be above 0 in a stratum with scheme={inputs.scheme.name!r}, whose "
            f"sum is of draws alone, got {counts}."
        )

    if has_correction or not inputs.scheme.corrects_label:
        return

    for row, label in enumerate(inputs.labels):
        if not counts[stratum[label]]:
            raise ValueError(
                f"`num_sampled` must be above 0 in the stratum of a label that is corrected, got 0 "
                f"for stratum {stratum[label]} (example {row}); draw from it, give `correction`, "
                "or take a scheme that does not correct the label."
            )


def _check_strata(strata: Any, num_sampled: Any, inputs: Inputs) -> tuple[IntArray, list[int]]:
    """Check the strata; return the stratum of each class (n,) and the draws per stratum (G,)."""
    n = inputs.logits.shape[1]
    stratum = as_ids("strata", strata, n)
    if len(stratum) != n:
        raise ValueError(
            f"`strata` must have shape ({n},), one number for each class, got ({len(stratum)},)."
        )

    num_strata = int(stratum.max()) + 1
    requested = [num_sampled] * num_strata if np.ndim(num_sampled) == 0 else list(num_sampled)
    if len(requested) != num_strata:
        raise ValueError(
            f"`num_sampled` must be one number, or one for each of the {num_strata} strata, got "
            f"{len(requested)}."
        )

    counts = [as_count("num_sampled", count, 0) for count in requested]
    for row, (_, label, q) in enumerate(inputs.rows()):
        can_be_drawn = q > 0.0
        can_be_drawn[label] &= not inputs.scheme.excludes_label
        num_drawable = np.bincount(stratum[can_be_drawn], minlength=num_strata)

        # a stratum without draws may be empty; with replacement, one class suffices for any number
        needed = np.array(counts) if inputs.scheme.distinct else np.minimum(counts, 1)
        too_small = np.flatnonzero(num_drawable < needed)
        if len(too_small):
            g = too_small[0]
            raise ValueError(
                f"`num_sampled` must be at most the number of classes that can be drawn, got "
                f"{counts[g]} for stratum {g}, which has {num_drawable[g]} (example {row})."
            )

    return stratum, counts
