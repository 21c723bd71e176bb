"""The bias of a softmax over a deterministic subset of the classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from samplesoft._validation import as_ids, as_labels, as_real_array
from samplesoft.bias.exact import ExactBias

_EPS = float(np.finfo(np.float64).eps)


def truncated_bias(logits: ArrayLike, labels: Any, ids: Any) -> ExactBias:
    """Compute the exact bias of a softmax over the label and a given set of other classes.

    With the set A of the label and `ids`, ``p'_i = p_i / p(A)`` in A and 0 elsewhere. Because A is
    not random, errors do not average out: every step has this bias. Examples of `ids` are the
    classes with the highest scores, as hard negatives; the buckets of SCE [1]_ and RECE [2]_, given
    their hashes; the k best classes in distillation; and nearest neighbours that an index found for
    an older model.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels : int or array_like of int, shape (B,)
        The true class t, which is always in A.
    ids : array_like of int, shape (k,) or (B, k)
        The other classes of A; duplicates count once.

    Returns
    -------
    ExactBias
        With ``mass = 1 - p(A)``, the bias is ``p'_i mass`` in A and ``-p_i`` elsewhere. Its L1 norm
        is twice `mass`. The loss bias is ``log p(A) = log1p(-mass)``, which is never above 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    `mass` and the softmaxes within A and outside are computed separately, so that no digits cancel
    where A has nearly all of the mass, or nearly none. The error fields are bounds on rounding.
    With m random classes in addition to A, weighted by 1 / (m q), the bias tends to 0 for large m:
    see `samplesoft.exact_bias` with `certain`.

    References
    ----------
    .. [1] G. Mezentsev et al., "Scalable Cross-Entropy Loss for Sequential Recommendations with
       Large Item Catalogs", RecSys 2024.
    .. [2] D. Gusak et al., "RECE: Reduced Cross-Entropy Loss for Large-Catalogue Sequential
       Recommenders", CIKM 2024.

    Examples
    --------
    >>> from samplesoft.bias.truncation import truncated_bias
    >>> result = truncated_bias([0.0, 1.0, 2.0, -3.0], 0, [2, 1])
    >>> result.bias.round(5), round(float(result.loss_bias), 5)
    (array([ 0.0004 ,  0.00109,  0.00297, -0.00446]), -0.00447)
    """
    o = as_real_array("logits", logits, (1, 2))
    n = o.shape[-1]
    rows = np.atleast_2d(o)
    targets = np.atleast_1d(as_labels("labels", labels, n, o.shape[:-1]))

    is_inside = np.zeros(rows.shape, np.bool_)
    np.put_along_axis(is_inside, as_ids("ids", ids, n, len(rows)), True, axis=1)
    np.put_along_axis(is_inside, targets[:, None], True, axis=1)

    # warnings are ignored for logits that differ by 1e308, and if no class is outside A
    masks = is_inside, ~is_inside
    with np.errstate(over="ignore", invalid="ignore"):
        largest = [rows.max(axis=1, where=mask, initial=-np.inf) for mask in masks]
        gaps = rows - np.where(is_inside, largest[0][:, None], largest[1][:, None])
        gaps = np.maximum(gaps, -1e300)
        weights = np.exp(gaps)

        # log((1 - p(A)) / p(A)): -inf if no class is outside A; otherwise the sum outside A, in
        # units of its largest term, is at least 1
        masses = [weights.sum(axis=1, where=mask) for mask in masks]
        log_odds = largest[1] - largest[0] + np.log(np.maximum(masses[1], 1.0) / masses[0])

    fractions = weights / np.where(is_inside, masses[0][:, None], masses[1][:, None])
    mass = expit(log_odds)[:, None]
    bias = np.where(is_inside, fractions, -fractions) * mass
    probs = fractions * np.where(is_inside, expit(-log_odds)[:, None], mass)
    loss_bias = 0.0 - np.logaddexp(0.0, log_odds)

    # relative errors: of the sums, of the odds, and of exponentials of rounded differences
    sum_error = _EPS * (16.0 + np.log2(n))
    odds_error = _EPS * np.abs(np.where(np.isfinite(log_odds), log_odds, 0.0))
    relative_error = sum_error + (odds_error * expit(-log_odds))[:, None] + _EPS * np.abs(gaps)
    error = (np.abs(bias) * relative_error).sum(axis=1)
    loss_error = (sum_error + odds_error) * mass[:, 0] + sum_error * np.abs(loss_bias)

    columns = bias, probs, loss_bias, error, loss_error
    if o.ndim == 1:
        return ExactBias(*(column[0] for column in columns))
    return ExactBias(*columns)
