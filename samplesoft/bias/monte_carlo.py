"""Monte Carlo estimate of the bias of sampled softmax, the check on the exact values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import as_device, twin
from samplesoft._random import as_key, mix64
from samplesoft._validation import FloatArray, IntArray, as_count
from samplesoft.bias.certain import Joined, join
from samplesoft.bias.draw_law import log_softmax
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.trials import HostTrials
from samplesoft.kernels.alias import build_alias
from samplesoft.kernels.bias.trials import Plan
from samplesoft.schemes import Scheme

_SAFE_LOG = 600.0  # exp of a weight within this stays clear of the ends of float64


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
        Mean of the sampled loss minus the full softmax loss; infinite beyond float64.
    loss_stderr : float or ndarray, shape (B,)
        Standard error of `loss_bias`; infinite where squares of the losses are beyond float64.
    num_trials : int
        Number of trials.
    """

    bias: FloatArray
    stderr: FloatArray
    loss_bias: Any
    loss_stderr: Any
    num_trials: int


class Simulation(NamedTuple):
    """Estimates for one example; each is a mean minus its value under the full softmax."""

    bias: FloatArray  # (num_bins,) of the mass of p' in each bin
    stderr: FloatArray
    loss_bias: float
    loss_stderr: float
    projection_bias: FloatArray  # (P,) of ``p' @ projection``
    projection_stderr: FloatArray


def monte_carlo_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    num_trials: int,
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
    rng: int | np.random.Generator | None = None,
    device: str = "cpu",
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
        Number of draws m in a trial; ``poisson`` makes no use of it.
    num_trials : int
        Number of independent trials for each example, at least 2.
    scheme : str or samplesoft.schemes.Scheme
        As in `samplesoft.exact_bias`.
    rng : int or numpy.random.Generator or None
        Seed or generator; the same seed gives the same answer on any number of threads.
    device : {"cpu", "cuda"}
        Where the trials run, with the same draws on both. Arguments and results are NumPy arrays.

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
    The standard error is measured on the same trials. A class drawn in few of them has too
    small a one, and 0 if it was never drawn: compare such classes in groups, not one by one.

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
    trials = twin(as_device(device), "samplesoft.bias.trials:Trials")
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, h, certain, takes_certain=True)
    num_trials = as_count("num_trials", num_trials, 2)
    key = as_key(rng)
    given = inputs.num_sampled, inputs.scheme, num_trials
    rows = []
    for i, row in enumerate(inputs.rows()):
        # a compiled function returns a plain int, which would not be taken for a uint64 again
        own = np.uint64(mix64(key, np.uint64(i)))
        if len(inputs.certain):
            rows.append(_simulate_certain(join(*row, inputs.certain), *given, own, trials))
        else:
            rows.append(simulate(*row, *given, own, trials=trials)[:4])
    bias, stderr, loss_bias, loss_stderr = inputs.columns(rows)
    return MonteCarloBias(bias, stderr, loss_bias, loss_stderr, num_trials)


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
    trials: type[HostTrials] = HostTrials,
) -> Simulation:
    """Run the trials of one checked example, `logits` and `q` (n,), on the processor.

    p' is added up in `bins` (n,), numbered from 0, each class one of its own by default, and
    projected on the columns of `projection` (n, P), trial by trial.
    """
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    center: FloatArray = p
    more: tuple[Any, ...] = ()
    if bins is not None and projection is not None:
        directions = np.ascontiguousarray(projection, dtype=np.float64)
        center = np.bincount(bins, p).astype(np.float64)
        more = np.ascontiguousarray(bins, dtype=np.int64), directions, p @ directions
    plan = _plan(log_p, label, q, m, scheme)
    sums, mean, squares = trials.run(plan, center, num_trials, key, *more)
    bias, stderr = _bin_moments(sums, center, num_trials)
    stderrs = np.sqrt(squares / (num_trials - 1) / num_trials)
    return Simulation(bias, stderr, float(mean[0]), float(stderrs[0]), mean[1:], stderrs[1:])


def _simulate_certain(
    joined: Joined, m: int, scheme: Scheme, num_trials: int, key: np.uint64, trials: Any
) -> tuple[FloatArray, FloatArray, float, float]:
    """Run the trials of an example in which classes are certain."""
    if not len(joined.rest):  # nothing is left to draw
        zeros = joined.spread(np.zeros(1))
        return zeros, zeros, 0.0, 0.0
    found = simulate(*joined[:3], m, scheme, num_trials, key, trials=trials)
    shared = joined.spread(found.bias), joined.spread(found.stderr)
    return *shared, found.loss_bias, found.loss_stderr


def _bin_moments(
    sums: FloatArray, center: FloatArray, num_trials: int
) -> tuple[FloatArray, FloatArray]:
    """Mean of p' - center and its standard error; a trial that missed a bin has p' = 0 there."""
    missed = num_trials - sums[:, 2]
    total = sums[:, 0] - missed * center
    square = sums[:, 1] + missed * center**2
    variance = np.maximum(square - total**2 / num_trials, 0.0) / (num_trials - 1)
    return total / num_trials, np.sqrt(variance / num_trials)


def _plan(log_p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> Plan:
    """Reduce a scheme to draws from one alias table, weights and a base mass."""
    draws_cdf, fixed = np.zeros(0), np.zeros(0, np.int64)
    num_draws, stride = m, m + 1
    if scheme.independent:
        # a class drawn at least once in Poisson(rate) draws is included with probability
        # 1 - exp(-rate), independently of the others, eq. (B29): the cost is that of the draws
        inclusion = np.minimum(_without(q, label), 1.0)
        log_weights = _divide_logs(log_p, inclusion)
        fixed = np.flatnonzero(inclusion == 1.0)
        rates = -np.log1p(-np.where(inclusion == 1.0, 0.0, inclusion))
        num_draws, draws_cdf = _poisson_table(float(rates.sum()))
        stride = num_draws + len(draws_cdf) + 1
        probs = rates if draws_cdf.size else np.ones_like(q)
    else:
        probs, log_weights = _weights_of_draws(log_p, label, q, m, scheme)
    log_base, offset = float(log_p[label]) if scheme.label_in_sum else -np.inf, 0.0
    if scheme.corrects_label:
        log_base = float(log_weights[label])
        offset = float(log_p[label]) - log_base
    if not scheme.draws_label:
        log_weights[label] = -np.inf
    linear = log_weights.max() <= _SAFE_LOG and log_base <= _SAFE_LOG
    linear = linear and max(log_base, log_weights.min()) >= -_SAFE_LOG
    thresholds, alias = build_alias(probs)
    return Plan(
        label=label,
        num_draws=num_draws,
        stride=stride,
        draws_cdf=draws_cdf,
        thresholds=thresholds,
        alias=alias,
        fixed=fixed,
        log_weights=log_weights,
        weights=np.exp(log_weights) if linear else np.zeros(0),
        log_base=log_base,
        offset=offset,
        linear=bool(linear),
        once=scheme.independent,
        kept_only=scheme.divides_by_kept,
        jackknife=scheme.jackknife,
    )


def _weights_of_draws(
    log_p: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> tuple[FloatArray, FloatArray]:
    """Return what a draw with replacement is made from, and the log weight of each class."""
    if scheme.excludes_label or scheme.divides_by_kept:
        negatives = _without(q, label)
        total = negatives.sum()
        log_weights = _divide_logs(log_p, negatives) + (np.log(total) if total > 0 else 0.0)
        if scheme.divides_by_kept:  # by a number that each trial finds
            return q, log_weights
        return negatives, log_weights - float(np.log(m))
    return q, _divide_logs(log_p, q) + np.log(q.sum()) - float(np.log(m))


def _without(q: FloatArray, label: int) -> FloatArray:
    """Return a copy of `q` with 0 at the label."""
    negatives = q.copy()
    negatives[label] = 0.0
    return negatives


def _divide_logs(log_p: FloatArray, q: FloatArray) -> FloatArray:
    """Return ``log_p - log(q)``, and -inf where q is 0 for such a class is never drawn."""
    out = np.full_like(log_p, -np.inf)
    np.log(q, out=out, where=q > 0.0)
    return np.where(q > 0.0, log_p - out, -np.inf)


def _poisson_table(rate: float) -> tuple[int, FloatArray]:
    """Return the first value and the cdf from there on of a Poisson law, tails below 1e-20 cut."""
    if rate == 0.0:
        return 0, np.zeros(0)
    mode = int(rate)
    width = int(10.0 * np.sqrt(rate)) + 30
    first = max(mode - width, 0)
    values = np.arange(first, mode + width + 1)
    steps = np.log(rate) - np.log(values[1:])
    log_mass = np.concatenate(([0.0], np.cumsum(steps)))
    cdf = np.cumsum(np.exp(log_mass - log_mass.max()))
    return first, cdf / cdf[-1]
