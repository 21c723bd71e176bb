"""Monte Carlo estimates of the bias of sampled softmax, to check the exact values.

This file has, in this order: the public function; the trials of one example, in blocks on all
threads; the plan, which reduces every scheme to draws from one alias table; and the compiled loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import pdtr

from samplesoft._executors import as_executor, run_tasks
from samplesoft._jit import chunks, njit, njit_bare, thread_map
from samplesoft._random import mix64, stream_key, uniform
from samplesoft._validation import FloatArray, IntArray, as_count
from samplesoft.bias.inputs import Inputs, check_inputs, merge_certain_into_label
from samplesoft.bias.numerics.summation import log_softmax
from samplesoft.kernels.alias import alias_draw, build_alias
from samplesoft.kernels.sort_ids import count_below
from samplesoft.schemes import Scheme

# largest |log weight| for which weights are stored; beyond it, weights or their sums might overflow
# or underflow, and only their logs are used
_MAX_LINEAR_LOG = 600.0

_MAX_BLOCKS = 64
_MIN_DRAWS_PER_BLOCK = 1 << 15


@dataclass(frozen=True)
class MonteCarloBias:
    """Estimated bias of sampled softmax.

    Attributes
    ----------
    bias : ndarray, shape (n,) or (B, n)
        Mean of p' over the trials, minus the softmax.
    stderr : ndarray, shape (n,) or (B, n)
        Standard error of `bias`; 0 for a class that no trial drew.
    loss_bias : float or ndarray, shape (B,)
        Mean of the sampled loss minus the full softmax loss; infinite if it overflows.
    loss_stderr : float or ndarray, shape (B,)
        Standard error of `loss_bias`; infinite if the squares of the losses overflow.
    num_trials : int
        Number of trials.
    """

    bias: FloatArray
    stderr: FloatArray
    loss_bias: Any
    loss_stderr: Any
    num_trials: int


class Simulation(NamedTuple):
    """Estimates for one example, each with its standard error.

    A bias is the mean over the trials, minus the value for the full softmax.
    """

    bias: FloatArray  # (num_bins,) bias of the sum of p' in each bin of classes
    stderr: FloatArray  # (num_bins,) standard error of `bias`
    loss_bias: float
    loss_stderr: float
    projection_bias: FloatArray  # (P,) bias of ``p' @ projection``
    projection_stderr: FloatArray  # (P,) standard error of `projection_bias`


def monte_carlo_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    num_trials: int,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
    rng: int | np.random.Generator | None = None,
    executor: Executor | None = None,
) -> MonteCarloBias:
    """Estimate the bias of sampled softmax by drawing samples.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits.
    labels, h, certain
        As for `samplesoft.exact_bias`.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all classes, or an object with a method ``probs(h)``; inclusion
        probabilities for ``scheme="poisson"``.
    num_sampled : int
        Number of draws m in a trial; ``poisson`` ignores it.
    num_trials : int
        Number of independent trials for each example, at least 2.
    scheme : str
        As in `samplesoft.exact_bias`.
    rng : int or numpy.random.Generator or None
        Seed or generator; the same seed gives the same answer on any number of threads.
    executor : concurrent.futures.Executor, optional
        Computes the examples on its workers, each on one thread: a pool of threads or processes, or
        ``client.get_executor(pure=False)`` of Dask. For a single example, the trials are divided
        among the workers. The result has the same bits as without it.

    Returns
    -------
    MonteCarloBias
        Estimates with their standard errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the proposal misses a class that the scheme needs.

    Notes
    -----
    The standard error is estimated from the same trials. It is too small for a class that was drawn
    in few of them, and 0 if it was never drawn: compare such classes in groups, not one by one.

    References
    ----------
    Rawat et al., "Sampled softmax with random Fourier features", NeurIPS 2019, eqs. 5 to 8:
    p' and the bias of its gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.bias.monte_carlo import monte_carlo_bias
    >>> result = monte_carlo_bias(
    ...     np.log([4.0, 3.0, 1.0]), 0, np.full(3, 1 / 3), 1, num_trials=10_000, rng=0
    ... )
    >>> result.bias  # exactly [1/30, -3/40, 1/24]
    array([ 0.03..., -0.07...,  0.04...])
    """
    inputs = check_inputs(
        logits, labels, q, num_sampled, scheme, h, certain, allows_always_included=True
    )

    num_trials = as_count("num_trials", num_trials, 2)
    key = stream_key(rng)
    workers = as_executor(executor)

    if len(inputs.logits) == 1:
        estimates = iter([_simulate_examples(num_trials, key, (inputs, 0), workers)])
    else:
        tasks = ((inputs.of(examples), examples.start) for examples in inputs.parts())
        estimates = run_tasks(partial(_simulate_examples, num_trials, key), tasks, workers)

    bias, stderr, loss_bias, loss_stderr = inputs.columns(chain.from_iterable(estimates))
    return MonteCarloBias(bias, stderr, loss_bias, loss_stderr, num_trials)


def _simulate_examples(
    num_trials: int, key: np.uint64, task: tuple[Inputs, int], executor: Executor | None = None
) -> list[tuple[Any, ...]]:
    """Return (bias, stderr, loss_bias, loss_stderr) for each example of a task.

    `task` is the inputs of some examples, and the index of the first one in the batch.
    """
    inputs, start = task
    m = inputs.num_sampled
    scheme = inputs.scheme
    rows: list[tuple[Any, ...]] = []

    for i, row in enumerate(inputs.rows(), start):
        # a compiled function returns a plain int: convert it, so that Numba sees a uint64 again
        example_key = np.uint64(mix64(key, np.uint64(i)))

        if not len(inputs.certain):
            simulation = simulate(*row, m, scheme, num_trials, example_key, executor=executor)
            rows.append(simulation[:4])
            continue

        merged = merge_certain_into_label(*row, inputs.certain)
        bias = np.zeros(1)
        stderr = np.zeros(1)
        loss_bias = 0.0
        loss_stderr = 0.0

        # if no class remains, all classes are always included, and nothing is random
        if len(merged.remaining):
            example = merged.logits, merged.label, merged.q
            bias, stderr, loss_bias, loss_stderr = simulate(
                *example, m, scheme, num_trials, example_key, executor=executor
            )[:4]

        rows.append(
            (merged.unmerged_values(bias), merged.unmerged_values(stderr), loss_bias, loss_stderr)
        )

    return rows


def simulate(
    logits: FloatArray,
    label: int,
    q: FloatArray,
    m: int,
    scheme: Scheme,
    num_trials: int,
    key: np.uint64,
    bins: IntArray | None = None,
    projection: FloatArray | None = None,
    executor: Executor | None = None,
) -> Simulation:
    """Run `num_trials` trials of one checked example with `logits` and `q` (n,); return estimates.

    In each trial p' is summed within bins of classes, and multiplied by `projection` (n, P). `bins`
    (n,) contains the bin index of each class; by default each class is a bin.
    """
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    center: FloatArray = p if bins is None else np.bincount(bins, p).astype(np.float64)
    bins = np.zeros(0, np.int64) if bins is None else np.ascontiguousarray(bins, dtype=np.int64)
    projection = np.zeros((len(p), 0)) if projection is None else projection
    directions = np.ascontiguousarray(projection, dtype=np.float64)

    target = _Observables(bins, center, directions, p @ directions)
    plan = _make_plan(log_p, label, q, m, scheme)
    run_block = partial(_simulate_block, plan, target, key, scheme.jackknife)

    # the setup of a block takes O(n) memory and time, so a block has enough draws to outweigh it
    max_blocks = num_trials * plan.words_per_trial // max(8 * len(p), _MIN_DRAWS_PER_BLOCK)
    num_blocks = min(max(max_blocks, 1), _MAX_BLOCKS, num_trials)
    blocks = chunks(num_trials, -(-num_trials // num_blocks))
    results: Iterable[tuple[FloatArray, FloatArray]]
    if executor is None:
        results = thread_map(run_block, blocks)
    else:
        results = run_tasks(run_block, blocks, executor)

    # for each bin, over the trials that draw one of its classes: the sum of p' - center, the sum of
    # its square, and the number of these trials
    sums = np.zeros((len(center), 3))

    # mean over the trials, and sum of squared deviations from it: of the loss difference, and of
    # each projection
    mean, squares = np.zeros((2, 1 + directions.shape[1]))

    # merge in the order of the blocks, so that the bits do not depend on the number of threads
    for trials, (block_sums, (block_mean, block_squares)) in zip(blocks, results, strict=True):
        sums += block_sums[:, 1:]
        num_block_trials = trials.stop - trials.start
        change = block_mean - mean
        mean += change * (num_block_trials / trials.stop)

        # squares of losses beyond 1e154 overflow
        with np.errstate(over="ignore"):
            squares += block_squares
            if trials.start:
                squares += change**2 * (trials.start * num_block_trials / trials.stop)

    # for the trials that did not draw from a bin, p' - center is -center
    num_missed = num_trials - sums[:, 2]
    difference_sum = sums[:, 0] - num_missed * center
    square_sum = sums[:, 1] + num_missed * center**2
    variance = np.maximum(square_sum - difference_sum**2 / num_trials, 0.0) / (num_trials - 1)
    bias = difference_sum / num_trials
    stderr = np.sqrt(variance / num_trials)

    stderrs = np.sqrt(squares / (num_trials - 1) / num_trials)
    return Simulation(bias, stderr, float(mean[0]), float(stderrs[0]), mean[1:], stderrs[1:])


class _Plan(NamedTuple):
    """How to sample one example: an alias table of the draws, their weights, and a base mass.

    The sum S of a trial is the base mass plus the weights of its draws. Logits are shifted so that
    ``sum(exp(logits)) = 1``.
    """

    label: int
    num_draws: int  # number of draws in a trial; if it is random, its smallest value
    words_per_trial: int  # number of words of the random stream that belong to one trial

    # (k,) cdf of the random number of draws minus `num_draws`, or empty if the number is fixed. If
    # it is random, a class that is drawn several times counts once.
    num_draws_cdf: FloatArray

    # the alias table of the draws, (n,) and (n,)
    thresholds: np.ndarray
    alias: np.ndarray

    always_included: IntArray  # (k,) classes that are included in every trial
    log_weights: FloatArray  # (n,) log of the weight of one draw of each class
    weights: FloatArray  # (n,) exp(log_weights); empty if they could overflow or underflow
    log_base: float  # log of the base mass, which is in S without a draw
    offset: float  # log S + offset is the sampled loss minus the full softmax loss
    accepted_only: bool  # whether S is divided by the number of draws that are not the label


class _Observables(NamedTuple):
    """The observables of a trial: sums of p' in bins and projections of p', minus their centers."""

    bins: IntArray  # (n,) bin index of each class; empty if each class is a bin
    center: FloatArray  # (num_bins,) sum of the full softmax in each bin
    projection: FloatArray  # (n, P) directions of the projections
    projection_center: FloatArray  # (P,) projections of the full softmax


def _simulate_block(
    plan: _Plan, target: _Observables, key: np.uint64, jackknife: bool, trials: slice
) -> tuple[FloatArray, FloatArray]:
    """Run the trials of a slice `trials`; return the two arrays of `_run_block`."""
    ratios = np.empty(len(plan.log_weights) + 1) if jackknife else None
    return _run_block(plan, target, key, trials.start, trials.stop, ratios)


def _make_plan(log_p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> _Plan:
    """Return the plan of one example: a scheme as an alias table, weights and a base mass."""
    divisors = q.copy()
    if scheme.excludes_label or scheme.divides_by_accepted:
        divisors[label] = 0.0

    draws_cdf = np.zeros(0)
    always_included = np.zeros(0, np.int64)
    num_draws = m
    probs = q
    log_unit = 0.0

    if scheme.independent:
        # To include each class independently without O(n) time, draw a Poisson number of classes
        # with replacement, in proportion to rates r. Each class is then drawn at least once with
        # probability 1 - exp(-r), independently of all other classes, eq. (B29).
        divisors = np.minimum(divisors, 1.0)
        always_included = np.flatnonzero(divisors == 1.0)
        rates = -np.log1p(-np.where(divisors == 1.0, 0.0, divisors))
        num_draws, draws_cdf = _poisson_cdf(float(rates.sum()))
        probs = rates if draws_cdf.size else np.ones_like(q)
    else:
        # with `divides_by_accepted`, each trial divides by its number of accepted draws, not by m
        log_unit = float(np.log(divisors.sum())) if divisors.any() else 0.0
        if not scheme.divides_by_accepted:
            log_unit -= float(np.log(m))
        if scheme.excludes_label:
            probs = divisors

    log_weights = _divide_logs(log_p, divisors) + log_unit
    log_base = float(log_p[label]) if scheme.label_in_sum else -np.inf
    offset = 0.0
    if scheme.corrects_label:
        log_base = float(log_weights[label])
        offset = float(log_p[label]) - log_base
    if not scheme.draws_label:
        log_weights[label] = -np.inf

    is_linear = log_weights.max() <= _MAX_LINEAR_LOG and log_base <= _MAX_LINEAR_LOG
    is_linear = is_linear and max(log_base, log_weights.min()) >= -_MAX_LINEAR_LOG

    return _Plan(
        label,
        num_draws,
        num_draws + len(draws_cdf) + 1,
        draws_cdf,
        *build_alias(probs),
        always_included,
        log_weights,
        np.exp(log_weights) if is_linear else np.zeros(0),
        log_base,
        offset,
        scheme.divides_by_accepted,
    )


def _divide_logs(log_p: FloatArray, q: FloatArray) -> FloatArray:
    """Return ``log_p - log(q)`` (n,), with -inf for q = 0, because the class is never drawn."""
    with np.errstate(divide="ignore"):
        return np.where(q > 0.0, log_p - np.log(q), -np.inf)


def _poisson_cdf(rate: float) -> tuple[int, FloatArray]:
    """Return the cdf of a Poisson distribution with the mean `rate`: k0, and the cdf from k0 on.

    The cdf (k,) is at k0, k0 + 1, ...; it is empty for `rate` 0. Tails of probability below 1e-20
    are cut off.
    """
    if rate == 0.0:
        return 0, np.zeros(0)

    width = int(10.0 * np.sqrt(rate)) + 30
    min_draws = max(int(rate) - width, 0)
    cdf = pdtr(np.arange(min_draws, int(rate) + width + 1), rate).astype(np.float64)
    return min_draws, cdf


@njit
def _run_block(
    plan: _Plan,
    target: _Observables,
    key: np.uint64,
    start: int,
    stop: int,
    ratios: FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Run trials `start` to `stop`; each trial uses a separate part of the random stream of `key`.

    `ratios` (n + 1,) is workspace for the jackknife, or None without it.

    Returns two arrays. The first (num_bins, 4) has four columns: the center of each bin; and, over
    the trials that draw from the bin, the sum of d = p' - center, the sum of d**2, and the number
    of trials. The second (2, 1 + P) is for the loss difference and the P projections: row 0 is the
    mean, row 1 the sum of squared deviations from the mean.
    """
    n = len(plan.log_weights)
    num_bins = len(target.center)
    num_moments = 1 + len(target.projection_center)
    capacity = min(n, 1 + len(plan.always_included) + plan.words_per_trial) + 1

    seen = np.zeros(n, np.int32)  # all 0 between trials
    bin_slot = np.full(num_bins if len(target.bins) > 0 else 0, -1, np.int32)
    ids = np.empty(capacity, np.int32)
    counts = np.empty(capacity, np.int32)
    values = np.empty(capacity)

    # the center is stored with the sums, so that a bin needs one cache line
    sums = np.zeros((num_bins, 4))
    for b in range(num_bins):
        sums[b, 0] = target.center[b]

    moments = np.zeros((2, num_moments))
    x = np.empty(num_moments)
    for trial in range(start, stop):
        size = _draw_trial(plan, key, trial, seen, ids, counts)
        if ratios is not None:
            x[0] = plan.offset + _write_jackknife_probs(plan, size, ids, counts, values, ratios)
        else:
            x[0] = plan.offset + _write_probs(plan, size, ids, counts, values)

        if num_moments > 1:
            _write_projections(target.projection, target.projection_center, size, ids, values, x)

        # mean(x^2) - mean(x)^2 cancels if the deviations are small, so use Welford's update
        for i in range(num_moments):
            change = x[i] - moments[0, i]
            moments[0, i] += change / (trial - start + 1)
            moments[1, i] += change * (x[i] - moments[0, i])

        if len(target.bins) > 0:
            size = _merge_bins(size, ids, values, target.bins, bin_slot)

        for k in range(size):
            b = ids[k]
            d = values[k] - sums[b, 0]
            sums[b, 1] += d
            sums[b, 2] += d * d
            sums[b, 3] += 1.0

    return sums, moments


@njit_bare
def _write_projections(
    projection: FloatArray,
    center: FloatArray,
    size: int,
    ids: np.ndarray,
    values: FloatArray,
    x: FloatArray,
) -> None:
    """Write the projections (P,) of p', minus the projections of the softmax, to ``x[1:]``.

    p' is 0 except at the first `size` classes `ids`, where it is `values`. `center` (P,) are the
    projections of the full softmax.
    """
    out = x[1:]
    for i in range(len(center)):
        out[i] = 0.0

    for k in range(size):
        # read these once: the compiler cannot know that the loop does not change the arrays
        value = values[k]
        row = projection[ids[k]]
        for i in range(len(center)):
            out[i] += value * (row[i] - center[i])


@njit
def _draw_trial(
    plan: _Plan, key: np.uint64, trial: int, seen: np.ndarray, ids: np.ndarray, counts: np.ndarray
) -> int:
    """Draw the classes of one trial; return the number of different classes, the label included.

    Writes the label, followed by the different drawn classes, to `ids`, and the number of draws of
    each to `counts`. `seen` (n,) must be 0, and is 0 again afterwards.
    """
    ids[0] = plan.label
    size = 1
    for j in plan.always_included:
        ids[size] = j
        size += 1

    for k in range(size):
        seen[ids[k]] += 1

    position = np.uint64(trial) * np.uint64(plan.words_per_trial)
    num_draws = plan.num_draws
    if len(plan.num_draws_cdf) > 0:
        num_random = count_below(plan.num_draws_cdf, uniform(key, position))

        # the uniform may exceed the last value of the cdf, which is rounded
        num_draws += min(num_random, len(plan.num_draws_cdf) - 1)

    for i in range(num_draws):
        word = mix64(key, position + np.uint64(i + 1))
        j = alias_draw(word, plan.thresholds, plan.alias)

        # write j even if it is not new: a branch would often be mispredicted
        ids[size] = j
        size += seen[j] == 0
        seen[j] += 1

    for k in range(size):
        counts[k] = min(seen[ids[k]], 1) if len(plan.num_draws_cdf) > 0 else seen[ids[k]]
        seen[ids[k]] = 0

    # the label was inserted once without a draw
    counts[0] -= 1
    return size


@njit
def _write_draw_weights(
    plan: _Plan, size: int, ids: np.ndarray, counts: np.ndarray, weights: FloatArray
) -> tuple[float, float, float]:
    """Write the weight of one draw of each of the `size` classes in `ids` to `weights`.

    To avoid overflow, weights are divided by a unit. Returns the log of the unit, and then the base
    mass and the total weight of all draws, both divided by the unit.
    """
    is_linear = len(plan.weights) > 0
    log_unit = 0.0 if is_linear else plan.log_base
    drawn_mass = 0.0
    if not is_linear:
        for k in range(size):
            if counts[k] > 0:
                log_unit = max(log_unit, plan.log_weights[ids[k]])

    for k in range(size):
        weights[k] = 0.0
        if is_linear:
            weights[k] = plan.weights[ids[k]]
        elif counts[k] > 0:  # the weight of an undrawn label might overflow
            weights[k] = math.exp(plan.log_weights[ids[k]] - log_unit)
        drawn_mass += counts[k] * weights[k]

    return log_unit, math.exp(plan.log_base - log_unit), drawn_mass


@njit
def _write_probs(
    plan: _Plan, size: int, ids: np.ndarray, counts: np.ndarray, values: FloatArray
) -> float:
    """Write p' of the `size` classes in `ids`, the label first, to `values`; return log S."""
    log_unit, base, drawn_mass = _write_draw_weights(plan, size, ids, counts, values)
    scale = 1.0 / max(plan.num_draws - counts[0], 1) if plan.accepted_only else 1.0
    total = base + scale * drawn_mass
    for k in range(size):
        values[k] = counts[k] * values[k] * (scale / total)
    values[0] += base / total
    return math.log(total) + log_unit


@njit
def _write_jackknife_probs(
    plan: _Plan,
    size: int,
    ids: np.ndarray,
    counts: np.ndarray,
    values: FloatArray,
    ratios: FloatArray,
) -> float:
    """Write the delete-one jackknife of p' to `values`; return the jackknife of log S.

    Class j has N_j draws of weight w_j. Let S_k be the sum without one draw of class k, with the
    other draws rescaled by m / (m - 1). Class j gets ``N_j w_j (sum_k N_k (1/S - 1/S_k) + 1/S_j)``,
    eq. (B30). The differences cancel if S_k is near S. So they are computed from
    ``S_k / S = 1 + x_k`` with ``x_k = (sum_i N_i w_i - m w_k) / ((m - 1) S)``.

    x_k lies between -1/2 and 1, unless one draw of class k is more than half of S. At most one
    class is so heavy. Its S_k may be hundreds of orders of magnitude below S, and is summed in a
    separate unit. Draws of the label have weight 0.
    """
    m = plan.num_draws
    log_unit, base, drawn_mass = _write_draw_weights(plan, size, ids, counts, values)
    total = base + drawn_mass
    heavy_index = 0

    # sums over the draws of 1 - S / S_k, and of log(S_k / S)
    sum_ratios = log_ratio_sum = 0.0
    for k in range(size):
        ratios[k] = 0.0
        if values[k] > 0.5 * total:
            heavy_index = k
            continue

        change = (drawn_mass - m * values[k]) / ((m - 1) * total)
        ratios[k] = change / (1.0 + change)
        sum_ratios += counts[k] * ratios[k]
        log_ratio_sum += counts[k] * math.log1p(change)

    log_heavy_unit = sum_without_heavy = 0.0
    if heavy_index > 0:
        log_heavy_unit, sum_without_heavy = _sum_without_class(plan, size, ids, counts, heavy_index)
        log_ratio_sum += math.log(sum_without_heavy / total) + (log_heavy_unit - log_unit)

    for k in range(1, size):
        values[k] *= counts[k] / total * (1.0 + sum_ratios - ratios[k])
        if heavy_index > 0 and k != heavy_index:
            weight = plan.log_weights[ids[k]]
            values[k] += counts[k] * math.exp(weight - log_unit) / total
            values[k] -= counts[k] * math.exp(weight - log_heavy_unit) / sum_without_heavy

    fraction = (m - 1) / m
    values[0] = base / total * (1.0 + fraction * sum_ratios)
    if heavy_index > 0:
        values[0] += fraction * (
            base / total - math.exp(plan.log_base - log_heavy_unit) / sum_without_heavy
        )

    return math.log(total) + log_unit - fraction * log_ratio_sum


@njit
def _sum_without_class(
    plan: _Plan, size: int, ids: np.ndarray, counts: np.ndarray, heavy_index: int
) -> tuple[float, float]:
    """Return the sum S without the draw of class ``ids[heavy_index]``, as a unit and a multiple.

    The result is the log of the unit, which is the largest mass in the sum, and the sum divided by
    the unit. The remaining draws are rescaled by m / (m - 1).
    """
    log_unit = plan.log_base
    for k in range(1, size):
        if k != heavy_index:
            log_unit = max(log_unit, plan.log_weights[ids[k]])

    drawn_mass = 0.0
    for k in range(1, size):
        if k != heavy_index:
            drawn_mass += counts[k] * math.exp(plan.log_weights[ids[k]] - log_unit)

    scale = plan.num_draws / (plan.num_draws - 1)
    return log_unit, math.exp(plan.log_base - log_unit) + scale * drawn_mass


@njit
def _merge_bins(
    size: int, ids: np.ndarray, values: FloatArray, bins: IntArray, bin_slot: np.ndarray
) -> int:
    """Replace the `size` classes in `ids` by their bins in place; return the number of bins.

    The `values` within a bin are added up. `bin_slot` (num_bins,) must be -1, and is -1 again
    afterwards.
    """
    num_merged = 0
    for k in range(size):
        b = bins[ids[k]]
        slot = bin_slot[b]
        if slot < 0:
            bin_slot[b] = num_merged
            ids[num_merged] = b
            values[num_merged] = values[k]
            num_merged += 1
        else:
            values[slot] += values[k]

    for k in range(num_merged):
        bin_slot[ids[k]] = -1
    return num_merged
