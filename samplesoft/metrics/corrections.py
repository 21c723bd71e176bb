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
    as_fraction,
    as_positive,
    as_real_array,
    scale_by_power_of_two,
)
from samplesoft.metrics.rank_distribution import rank_distributions
from samplesoft.metrics.target_ranks import TargetRanks

_CHUNK_PROBABILITIES = 1 << 22  # probabilities of sampled ranks that are computed at a time


class MetricCorrection(NamedTuple):
    """An estimate of a metric for each sampled rank, with its exact bias and variance.

    Parameters
    ----------
    values : ndarray of float64, shape (m + 1,)
        Estimate at the sampled rank 1, ..., m + 1.
    bias : ndarray of float64, shape (n,)
        Expectation of the estimate minus the metric, for an item of rank 1, ..., n.
    variance : ndarray of float64, shape (n,)
        Variance of the estimate, for an item of rank 1, ..., n.
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
    r"""Compute an estimate of a metric on all candidates for each rank among sampled negatives.

    Parameters
    ----------
    metric : array_like, shape (n,)
        The metric of one relevant item at the ranks 1, ..., n, for example from `rank_metric`.
    num_sampled : int
        Number m of sampled negatives, which are drawn uniformly.
    method : str
        ``"bias-variance"``, or ``"rank"``: the metric at the unbiased estimate of the rank.
    gamma : float
        Weight of the variance relative to the squared bias, from 0 to 1. With 0 the estimate has
        the smallest variance among those of smallest bias. With 1 it is the mean of the metric
        conditional on the sampled rank.
    prior : array_like, shape (n,), optional
        Weights of the ranks in the average of squared bias and variance; by default equal.
    replacement : bool
        Whether a negative may be drawn more than once.

    Returns
    -------
    MetricCorrection
        The estimates at the sampled ranks, and their exact bias and variance for an item of each
        rank. The estimate is 0 at sampled ranks that are impossible under `prior`.

    Raises
    ------
    MemoryError
        If a matrix of m + 1 rows and columns does not fit into memory.
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    With the distribution :math:`A_{ri}` of the sampled rank i of an item of rank r, the metric
    M and the prior p, ``"bias-variance"`` minimises over the values c

    .. math:: \sum_r p_r \left[ (A_r c - M_r)^2 + \gamma \operatorname{Var}_r(c) \right] ,

    which has :math:`((1 - \gamma) A' P A + \gamma \operatorname{diag}(p A)) c = A' P M` [1]_.
    Forming :math:`A' P A` would lose half of the digits. Instead, A is reduced to a triangular
    matrix block by block (QR). Its singular values s, at most 1 after scaling by
    :math:`(pA)^{-1/2}`, become :math:`s / ((1 - \gamma) s^2 + \gamma)`. The time is
    :math:`O(n m^2 + m^3)`.

    ``"rank"`` evaluates the metric at the rank :math:`1 + (n - 1)(i - 1)/m`, rounded down [1]_. For
    recall this is recall among the sampled negatives at another length of list, the linear map of
    [2]_.

    Not every metric has an unbiased estimator: with replacement the expectation is a polynomial of
    degree m in the rank, and recall at k is not a polynomial. A metric that is linear in the rank,
    such as AUC, needs no correction. If the ranks of a recommender do not follow the prior, the
    bias over its ranks may be large, so inspect `bias`. A prior from `estimate_rank_distribution`
    is estimated from the same sampled ranks [3]_; `bias` and `variance` then treat that prior as
    fixed.

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
    >>> from samplesoft.metrics import TargetRanks, rank_metric, sampled_rank_distribution
    >>> recall = rank_metric("recall", 10, np.arange(1, 1001))
    >>> naive = rank_metric("recall", 10, np.arange(1, 101))  # at the sampled ranks
    >>> distribution = sampled_rank_distribution(TargetRanks([50], 1000), 99)
    >>> (distribution @ naive).round(2)  # though an item of rank 50 is in no list of 10
    array([0.98])
    >>> correct_metric(recall, 99).bias[49].round(2)
    np.float64(-0.02)
    """
    metric_by_rank = as_real_array("metric", metric, (1,))
    num_ranks = len(metric_by_rank)
    variance_weight = as_fraction("gamma", gamma)
    targets = TargetRanks(np.arange(1, num_ranks + 1), num_ranks)
    draws, without_replacement = targets._checked_draws(num_sampled, replacement)

    prior_weights = scale_by_power_of_two(
        as_counts("prior", np.ones(num_ranks) if prior is None else prior, num_ranks)
    )
    prior_weights = prior_weights / prior_weights.sum()

    chunks_of_ranks = row_chunks((num_ranks, draws + 1), _CHUNK_PROBABILITIES)
    if as_choice("method", method, ("bias-variance", "rank")) == "rank":
        values = metric_by_rank[np.arange(draws + 1) * (num_ranks - 1) // draws]
    else:
        require_memory("num_sampled", draws, 64.0 * (draws + 2) ** 2)

        triangle = np.empty((0, draws + 2))
        rank_pmf = np.zeros(draws + 1)
        for ranks in chunks_of_ranks:
            distributions = rank_distributions(targets, ranks, draws, without_replacement)
            rank_pmf += prior_weights[ranks] @ distributions
            block = (
                np.column_stack([distributions, metric_by_rank[ranks]])
                * np.sqrt(prior_weights[ranks])[:, None]
            )
            triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, block]), mode="r"))

        # 1 / sqrt(probability of each sampled rank), or 0 if the rank is impossible
        scaling = np.divide(
            1.0, np.sqrt(rank_pmf), out=np.zeros_like(rank_pmf), where=rank_pmf > 0.0
        )
        u, s, vt = np.linalg.svd(triangle[:, :-1] * scaling, full_matrices=False)

        is_nonzero = s > np.finfo(np.float64).eps * num_ranks
        factor = np.divide(
            s,
            (1.0 - variance_weight) * s**2 + variance_weight,
            out=np.zeros_like(s),
            where=is_nonzero,
        )
        values = scaling * (vt.T @ (factor * (u.T @ triangle[:, -1])))

    bias = np.empty(num_ranks)
    variance = np.empty(num_ranks)

    for ranks in chunks_of_ranks:
        distributions = rank_distributions(targets, ranks, draws, without_replacement)
        mean = distributions @ values
        bias[ranks] = mean - metric_by_rank[ranks]
        variance[ranks] = np.einsum("ri,ri->r", distributions, (values - mean[:, None]) ** 2)

    return MetricCorrection(values, bias, variance)


def estimate_rank_distribution(
    counts: ArrayLike, num_candidates: int, *, replacement: bool = False, tol: float = 1e-4
) -> FloatArray:
    r"""Estimate the distribution of ranks among all candidates from ranks among sampled negatives.

    The estimate maximises the likelihood of the sampled ranks.

    Parameters
    ----------
    counts : array_like, shape (m + 1,)
        Number, or fraction, of the relevant items that have the sampled rank 1, ..., m + 1.
    num_candidates : int
        Number n of candidates: the relevant item and all negatives.
    replacement : bool
        Whether a negative may be drawn more than once.
    tol : float
        Stop when the mean log-likelihood of an item is at most this far below its maximum, in nats.

    Returns
    -------
    ndarray of float64, shape (n,)
        Probabilities of the ranks 1, ..., n. Their inner product with the metric at these ranks
        estimates the mean of the metric.

    Raises
    ------
    MemoryError
        If a matrix of shape (n, m + 1) does not fit into memory.
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    The method is expectation maximisation, which begins with the uniform distribution and takes at
    most 5,000 steps [1]_. There are more ranks than m draws can distinguish, so that many
    distributions are about equally likely. If `tol` is not very small, the estimate stays close to
    uniform where the data do not determine it. The stopping rule uses that the largest directional
    derivative bounds the distance from the maximum likelihood [2]_.

    References
    ----------
    .. [1] R. Jin, D. Li, B. Mudrak, J. Gao and Z. Liu, "On Estimating Recommendation Evaluation
       Metrics under Sampling", AAAI 2021: maximum likelihood by expectation maximisation.
    .. [2] B. G. Lindsay, "The Geometry of Mixture Likelihoods: A General Theory", Annals of
       Statistics 11(1), 1983.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.metrics import TargetRanks, sampled_rank_distribution
    >>> seen = sampled_rank_distribution(TargetRanks([5], 50), 20)[0]  # all items have rank 5
    >>> estimate = estimate_rank_distribution(seen, 50)
    >>> (estimate @ np.arange(1, 51)).round(1)
    np.float64(5.0)
    """
    observed = scale_by_power_of_two(as_counts("counts", counts, remedy="count the sampled ranks"))
    observed = observed / observed.sum()

    tolerance = as_positive("tol", tol)
    num_ranks = as_count("num_candidates", num_candidates)
    m = len(observed) - 1
    max_draws = m if as_flag("replacement", replacement) else num_ranks - 1
    if num_ranks < 2 or not 1 <= m <= max_draws:
        raise ValueError(
            f"`counts` must have shape (m + 1,), for m from 1 draw to all of the {num_ranks - 1} "
            f"negatives, got {observed.shape}; with replacement m may be larger."
        )

    targets = TargetRanks(np.arange(1, num_ranks + 1), num_ranks)
    draws, without_replacement = targets._checked_draws(m, replacement)
    require_memory("num_candidates", num_ranks, 8.0 * num_ranks * (draws + 1))
    distributions = rank_distributions(targets, slice(None), draws, without_replacement)

    estimate = np.full(num_ranks, 1.0 / num_ranks)
    for _ in range(5000):
        ratio = np.divide(
            observed, estimate @ distributions, out=np.zeros_like(observed), where=observed > 0.0
        )
        # derivatives of the mean log-likelihood in the probabilities of the ranks; their mean under
        # the estimate is 1
        gradient = distributions @ ratio
        if gradient.max() <= 1.0 + tolerance:
            break
        estimate *= gradient

    return estimate
