"""The bias of a softmax over some classes that are chosen by a rule, and not drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from samplesoft._validation import as_ids, as_labels, as_real_array
from samplesoft.bias.exact import ExactBias

_EPS = float(np.finfo(np.float64).eps)


def truncated_bias(logits: ArrayLike, labels: Any, ids: Any) -> ExactBias:
    """Compute exactly what a softmax over the label and some other classes does to the gradient.

    With the set A of the label and `ids`, ``p'_i = p_i / p(A)`` in A and 0 elsewhere. Where A does
    not depend on chance, nothing cancels in the mean: this is the bias of every step, and no number
    of steps removes it. Examples are the highest scores as hard negatives, the buckets of SCE [1]_
    and RECE [2]_ given their hashes, distillation from the k best classes, and lists that an index
    has found for an older model.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels : int or array_like of int, shape (B,)
        The true class t, in A in any case.
    ids : array_like of int, shape (k,) or (B, k)
        The other classes of A; those that occur more than once count once.

    Returns
    -------
    ExactBias
        With ``mass = 1 - p(A)``, a bias of ``p'_i mass`` in A and ``-p_i`` elsewhere, so an L1
        norm of twice `mass`, and a loss bias of ``log p(A) = log1p(-mass)``: the loss is never too
        large.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    `mass` and the shares of classes in A and outside are computed apart, so that no digits cancel
    where A has nearly all of the mass, or nearly none; the error fields are bounds on rounding. A
    set of m random classes beside A, with weights 1 / (m q), has no such floor: see
    `samplesoft.exact_bias` with `certain`.

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
    n, rows = o.shape[-1], np.atleast_2d(o)
    targets = np.atleast_1d(as_labels("labels", labels, n, o.shape[:-1]))
    inside = np.zeros(rows.shape, np.bool_)
    np.put_along_axis(inside, as_ids("ids", ids, n, len(rows)), True, axis=1)
    np.put_along_axis(inside, targets[:, None], True, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # of logits 1e308 apart, and of no class
        tops = [rows.max(axis=1, where=part, initial=-np.inf) for part in (inside, ~inside)]
        gaps = np.maximum(rows - np.where(inside, tops[0][:, None], tops[1][:, None]), -1e300)
        weights = np.exp(gaps)
        sums = [weights.sum(axis=1, where=part) for part in (inside, ~inside)]
        # log of mass / p(A): -inf where no class is outside; of others the largest adds 1 to a sum
        odds = tops[1] - tops[0] + np.log(np.maximum(sums[1], 1.0) / sums[0])
    shares = weights / np.where(inside, sums[0][:, None], sums[1][:, None])
    mass = expit(odds)[:, None]
    bias = np.where(inside, shares, -shares) * mass
    probs = shares * np.where(inside, expit(-odds)[:, None], mass)
    loss_bias = 0.0 - np.logaddexp(0.0, odds)
    # relative: of sums, of exponentials of rounded gaps, and of the odds
    unit = _EPS * (16.0 + np.log2(n))
    of_odds = _EPS * np.abs(np.where(np.isfinite(odds), odds, 0.0))
    relative = unit + (of_odds * expit(-odds))[:, None] + _EPS * np.abs(gaps)
    error = (np.abs(bias) * relative).sum(axis=1)
    loss_error = (unit + of_odds) * mass[:, 0] + unit * np.abs(loss_bias)
    columns = bias, probs, loss_bias, error, loss_error
    return ExactBias(*(columns if o.ndim == 2 else (column[0] for column in columns)))
