"""Estimates of metrics on all candidates from ranks among sampled negatives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import row_chunks
from samplesoft._memory import require_memory
from samplesoft._validation import (
    FloatArray,
    as_choice,
    as_count,
    as_counts,
    as_flag,
    as_positive,
    as_real_array,
    as_share,
    in_small_unit,
)
from samplesoft.metrics.rank_distribution import rank_distributions
from samplesoft.metrics.target_ranks import TargetRanks

_PROBABILITIES_AT_A_TIME = 1 << 22  # probabilities that are made at a time


class MetricCorrection(NamedTuple):
    """A function of the sampled rank that estimates a metric, and how well it does.

    Parameters
    ----------
    values : ndarray of float64, shape (m + 1,)
        What a sampled rank of 1, ..., m + 1 counts.
    bias : ndarray of float64, shape (n,)
        The mean of these, less the metric, for an item of rank 1, ..., n.
    variance : ndarray of float64, shape (n,)
        Their variance.
    """

    values: FloatArray
    bias: FloatArray
    variance: FloatArray


def correct_metric(
    metric: ArrayLike,
    num_sampled: int,
    *,
    method: str = "bias-variance",
    gamma: float = 0.1,
    prior: ArrayLike | None = None,
    replacement: bool = False,
) -> MetricCorrection:
    r"""Make a function of the sampled rank that estimates a metric on all candidates.

    Parameters
    ----------
    metric : array_like, shape (n,)
        The metric of one relevant item by its rank 1, ..., n, as from `rank_metric`.
    num_sampled : int
        Negatives m that are drawn uniformly.
    method : str
        ``"bias-variance"``, or ``"rank"``: the metric at the rank that is estimated without bias.
    gamma : float
        Weight of the variance against the squared bias, from 0 to 1. 0 asks for the least bias, and
        for the least variance among such; 1 gives the mean of the metric given the sampled rank.
    prior : array_like, shape (n,), optional
        Weights of the ranks, with which bias and variance are averaged; by default all are equal.
    replacement : bool
        Whether a negative may be drawn more than once.

    Returns
    -------
    MetricCorrection
        The values by sampled rank, 0 for those that `prior` rules out, and their exact bias and
        variance for an item of each rank.

    Raises
    ------
    MemoryError
        If a matrix of m + 1 rows and columns does not fit.
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    With the distribution :math:`A_{ri}` of the sampled rank i of an item of rank r, the metric
    M and the prior p, ``"bias-variance"`` minimises over the values c

    .. math:: \sum_r p_r \left[ (A_r c - M_r)^2 + \gamma \operatorname{Var}_r(c) \right] ,

    which has :math:`((1 - \gamma) A' P A + \gamma \operatorname{diag}(p A)) c = A' P M` [1]_.
    Squares of A would lose half of the digits. Here A is brought to a triangle, block by block, and
    its singular values s, in the metric of :math:`pA` at most 1, become
    :math:`s / ((1 - \gamma) s^2 + \gamma)`. That takes :math:`O(n m^2 + m^3)` in time.

    ``"rank"`` takes the metric at the rank :math:`1 + (n - 1)(i - 1)/m`, rounded down [1]_. For
    recall that reads the sampled curve at another length of list, the linear map of [2]_.

    No values are without bias for every metric: with replacement the mean is a polynomial of degree
    m in the rank, and recall at k is none. A metric that is linear in the rank, as AUC, needs no
    correction. Where the ranks of a recommender are not as the prior says, the bias over its ranks
    may be large: look at it. A prior from `estimate_rank_distribution` is made from the same
    sampled ranks [3]_; bias and variance then are those of the values, with the prior as it is.

    References
    ----------
    .. [1] W. Krichene and S. Rendle, "On Sampled Metrics for Item Recommendation", KDD 2020,
       section 5: unbiased rank estimator, and bias-variance trade-off.
    .. [2] D. Li, R. Jin, J. Gao and Z. Liu, "On Sampling Top-K Recommendation Evaluation", KDD
       2020.
    .. [3] D. Li, R. Jin, Z. Liu, B. Ren, J. Gao and Z. Liu, "Towards Reliable Item Sampling for
       Recommendation Evaluation", AAAI 2023.

    Examples
    --------
    >>> import numpy as np
    >>> recall = rank_metric("recall", 10, np.arange(1, 1001))
    >>> naive = rank_metric("recall", 10, np.arange(1, 101))  # of sampled ranks
    >>> distribution = sampled_rank_distribution(TargetRanks([50], 1000), 99)
    >>> (distribution @ naive).round(2)  # though an item of rank 50 is in no list of 10
    array([0.98])
    >>> correct_metric(recall, 99).bias[49].round(2)
    np.float64(-0.02)
    """
    exact = as_real_array("metric", metric, (1,))
    size = len(exact)
    weight = as_share("gamma", gamma)
    targets = TargetRanks(np.arange(1, size + 1), size)
    draws, removed = targets._draws(num_sampled, replacement)
    prior_shares = in_small_unit(
        as_counts("prior", np.ones(size) if prior is None else prior, size)
    )
    prior_shares = prior_shares / prior_shares.sum()
    parts = row_chunks((size, draws + 1), _PROBABILITIES_AT_A_TIME)
    if as_choice("method", method, ("bias-variance", "rank")) == "rank":
        values = exact[np.arange(draws + 1) * (size - 1) // draws]
    else:
        require_memory("num_sampled", draws, 64.0 * (draws + 2) ** 2)
        triangle = np.empty((0, draws + 2))
        seen = np.zeros(draws + 1)
        for part in parts:
            distributions = rank_distributions(targets, part, draws, removed)
            seen += prior_shares[part] @ distributions
            block = (
                np.column_stack([distributions, exact[part]]) * np.sqrt(prior_shares[part])[:, None]
            )
            triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, block]), mode="r"))
        unit = np.divide(1.0, np.sqrt(seen), out=np.zeros_like(seen), where=seen > 0.0)
        left, s, right = np.linalg.svd(triangle[:, :-1] * unit, full_matrices=False)
        kept = s > np.finfo(np.float64).eps * size
        factor = np.divide(s, (1.0 - weight) * s**2 + weight, out=np.zeros_like(s), where=kept)
        values = unit * (right.T @ (factor * (left.T @ triangle[:, -1])))
    bias = np.empty(size)
    variance = np.empty(size)
    for part in parts:
        distributions = rank_distributions(targets, part, draws, removed)
        mean = distributions @ values
        bias[part] = mean - exact[part]
        variance[part] = np.einsum("ri,ri->r", distributions, (values - mean[:, None]) ** 2)
    return MetricCorrection(values, bias, variance)


def estimate_rank_distribution(
    counts: ArrayLike, num_candidates: int, *, replacement: bool = False, tol: float = 1e-4
) -> FloatArray:
    r"""Estimate how ranks among all candidates are distributed, by the likelihood of sampled ranks.

    Parameters
    ----------
    counts : array_like, shape (m + 1,)
        How many relevant items have the sampled rank 1, ..., m + 1, or what share of them.
    num_candidates : int
        Number n of candidates: an item, and its negatives.
    replacement : bool
        Whether a negative may be drawn more than once.
    tol : float
        End when the mean log-likelihood of an item is within this of the largest, in nats.

    Returns
    -------
    ndarray of float64, shape (n,)
        Probabilities of the ranks 1, ..., n. Their product with a metric by rank estimates it.

    Raises
    ------
    MemoryError
        If a matrix of n times m + 1 does not fit.
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Steps of expectation maximisation from the uniform distribution, at most 5,000 [1]_. There are
    more ranks than m draws can tell apart, so that many distributions are about as likely; a `tol`
    that is not very small keeps what is not seen near to uniform. The largest directional
    derivative bounds what is missing of the likelihood [2]_.

    References
    ----------
    .. [1] R. Jin, D. Li, B. Mudrak, J. Gao and Z. Liu, "On Estimating Recommendation Evaluation
       Metrics under Sampling", AAAI 2021: maximum likelihood by expectation maximisation.
    .. [2] B. G. Lindsay, "The Geometry of Mixture Likelihoods: A General Theory", Annals of
       Statistics 11(1), 1983.

    Examples
    --------
    >>> import numpy as np
    >>> seen = sampled_rank_distribution(TargetRanks([5], 50), 20)[0]  # all items have rank 5
    >>> found = estimate_rank_distribution(seen, 50)
    >>> (found @ np.arange(1, 51)).round(1)
    np.float64(5.0)
    """
    number = in_small_unit(as_counts("counts", counts, remedy="count the sampled ranks"))
    number = number / number.sum()
    bound = as_positive("tol", tol)
    size = as_count("num_candidates", num_candidates)
    m = len(number) - 1
    most = m if as_flag("replacement", replacement) else size - 1
    if size < 2 or not 1 <= m <= most:
        raise ValueError(
            f"`counts` must have shape (m + 1,), for m from 1 draw to all of the {size - 1} "
            f"negatives, got {number.shape}; with replacement m may be larger."
        )
    targets = TargetRanks(np.arange(1, size + 1), size)
    draws, removed = targets._draws(m, replacement)
    require_memory("num_candidates", size, 8.0 * size * (draws + 1))
    distributions = rank_distributions(targets, slice(None), draws, removed)
    found = np.full(size, 1.0 / size)
    for _ in range(5000):
        ratio = np.divide(
            number, found @ distributions, out=np.zeros_like(number), where=number > 0.0
        )
        gradient = distributions @ ratio  # of the likelihood, towards each rank; 1 on average
        if gradient.max() <= 1.0 + bound:
            break
        found *= gradient
    return found
