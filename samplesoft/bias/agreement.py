"""Monte Carlo against the exact bias: which statistics can be tested, and their z-scores."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.monte_carlo import simulate

ALPHA = 1e-4  # chance of one false alarm in a whole report, for normal statistics
HITS = 400  # a bin is expected to be hit in so many trials; a mean has skewness below 1/20
_MAX_BINS = 128
_ROUNDING = 1e-12  # relative error of p' in a trial of many draws


@dataclass(frozen=True)
class Tested:
    """z-scores of the statistics that were tested, and how many could not be.

    Attributes
    ----------
    z : ndarray, shape (number tested,)
        Monte Carlo mean minus exact value, in standard errors.
    num_untested : int
        Statistics that rest on too few effective draws to be close to normal.
    """

    z: FloatArray
    num_untested: int

    @property
    def max_abs_z(self) -> float:
        """Largest |z|; 0 where nothing could be tested."""
        return float(np.abs(self.z).max(initial=0.0))


def merge(parts: list[Tested]) -> Tested:
    """Join the statistics of several examples."""
    return Tested(np.concatenate([part.z for part in parts]), sum(p.num_untested for p in parts))


def z_limit(num_tests: int, alpha: float = ALPHA) -> float:
    """Return the |z| that one of `num_tests` normal statistics exceeds with chance `alpha`."""
    return -NormalDist().inv_cdf(alpha / (2.0 * max(num_tests, 1)))


def p_value(max_abs_z: float, num_tests: int) -> float:
    """Return Bonferroni's chance of so large a |z| among `num_tests` statistics."""
    return min(1.0, 2.0 * num_tests * NormalDist().cdf(-max_abs_z))


@dataclass(frozen=True)
class Trials:
    """Monte Carlo of one example beside its exact bias.

    Attributes
    ----------
    logits, h, loss : Tested
        Bins of classes with the two norms below; coordinates of h; the loss.
    max_bias, l1_bias : tuple of float
        Estimate and standard error of the two norms of the bias in the logits: of
        ``sign(b_i) b_i`` at the exact bias's largest coordinate i, and of ``sign(b) . b``. Both
        are linear in b, so they have none of the upward bias of a norm of noisy numbers.
    """

    logits: Tested
    h: Tested
    loss: Tested
    max_bias: tuple[float, float]
    l1_bias: tuple[float, float]


@dataclass(frozen=True)
class Draws:
    """How one draw moves p', to first order: what tells a heavy-tailed statistic beforehand.

    Attributes
    ----------
    rates : ndarray, shape (n,)
        Variance of the number of draws of each class in a trial.
    hits : ndarray, shape (n,)
        Probability that a trial draws the class.
    weights : ndarray, shape (n,)
        Mass of one draw where the partition function is 1.
    total : ndarray, shape (n,)
        Expected S of a trial with a draw of the class.
    mean : float
        Expected mass of one draw.
    """

    rates: FloatArray
    hits: FloatArray
    weights: FloatArray
    total: FloatArray
    mean: float


def describe_draws(p: FloatArray, label: int, q: FloatArray, m: int, scheme: str) -> Draws:
    """Return `Draws` for one example, with p the softmax (n,)."""
    drawn = q.copy()
    if scheme in ("negatives", "jackknife", "reject", "poisson", "candidate_masked"):
        drawn[label] = 0.0
    if scheme in ("negatives", "jackknife"):
        drawn /= drawn.sum()
    num = 1 if scheme == "poisson" else m
    with np.errstate(divide="ignore"):
        hits = -np.expm1(num * np.log1p(-np.minimum(drawn, 1.0)))
    weights = np.divide(p, num * drawn, out=np.zeros_like(p), where=drawn > 0.0)
    mass = float(p[drawn > 0.0].sum())
    base = float(p[label])
    if scheme.startswith("candidate"):
        base /= m * float(q[label])
    elif scheme == "importance":
        base = 0.0
    if scheme == "poisson":
        rest = base + mass - p
        mean = 0.0
    else:
        rest = np.full_like(p, base + mass * (1.0 - 1.0 / m))
        mean = mass / m
    total = np.maximum(rest, 0.0) + weights
    return Draws(num * drawn * (1.0 - np.minimum(drawn, 1.0)), hits, weights, total, mean)


def bin_classes(label: int, draws: Draws, num_trials: int) -> IntArray:
    """Merge classes of like weight until a bin is expected to be hit in `HITS` trials.

    Parameters
    ----------
    label : int
        A bin of its own.
    draws : Draws
        Of this example.
    num_trials : int
        Number of trials.

    Returns
    -------
    ndarray of int64, shape (n,)
        Bin of each class; the label's is 0.
    """
    expected = num_trials * draws.hits
    expected[label] = 0.0
    size = max(HITS, expected.sum() / _MAX_BINS)
    # like weights go together: one heavy, rare class would be the whole variance of its bin
    order = np.argsort(-draws.weights, kind="stable")
    filled = np.cumsum(expected[order])
    number = np.minimum(filled / size, max(filled[-1] // size - 1.0, 0.0)).astype(np.int64)
    number[order == label] = -1
    bins = np.empty_like(number)
    bins[order] = np.unique(number, return_inverse=True)[1]
    return bins


def compare(
    p: FloatArray,
    label: int,
    q: FloatArray,
    m: int,
    scheme: str,
    exact: tuple[FloatArray, float, float],
    jacobian: FloatArray | None,
    num_trials: int,
    key: np.uint64,
    logits: FloatArray,
) -> Trials:
    """Simulate one example and compare it with its exact bias.

    Parameters
    ----------
    p, q, logits : ndarray, shape (n,)
        Softmax, proposal and logits.
    label, m, scheme
        As for `samplesoft.exact_bias`.
    exact : tuple
        Exact bias (n,), exact loss bias, and the numerical error of the former in L1.
    jacobian : ndarray, shape (n, d), or None
        Derivatives of the logits in h.
    num_trials : int
        Number of trials.
    key : numpy.uint64
        Key of the random stream.

    Returns
    -------
    Trials
        Tested statistics and the two norms.
    """
    bias, loss_bias, error = exact
    draws = describe_draws(p, label, q, m, scheme)
    bins = bin_classes(label, draws, num_trials)
    top = int(np.argmax(np.abs(bias)))
    norms = np.zeros((len(p), 2))
    norms[top, 0] = np.sign(bias[top])
    norms[:, 1] = np.sign(bias)
    directions = norms if jacobian is None else np.hstack([norms, jacobian])
    got = simulate(logits, label, q, m, scheme, num_trials, key, bins, directions)
    assert got.projection_bias is not None and got.projection_stderr is not None

    p_bin = np.bincount(bins, p)
    binned = _tested(
        got.bias,
        np.bincount(bins, bias),
        got.stderr,
        error + _ROUNDING * p_bin,
        _bin_skewness(draws, bins, p_bin, num_trials),
    )
    sizes = np.abs(directions).max(axis=0, initial=0.0)
    projected = (
        got.projection_bias,
        bias @ directions,
        got.projection_stderr,
        (error + _ROUNDING) * sizes,
        _projection_skewness(draws, directions - p @ directions, m, num_trials),
    )
    relative = (draws.weights - draws.mean) / draws.total
    loss = _tested(
        np.array([got.loss_bias]),
        np.array([loss_bias]),
        np.array([got.loss_stderr]),
        np.array([error + _ROUNDING * (1.0 + float(np.abs(logits).max()))]),
        _skewness(draws.rates, relative[:, None], num_trials),
    )
    first, rest = ([x[part] for x in projected] for part in (slice(2), slice(2, None)))
    (max_bias, l1_bias), (max_stderr, l1_stderr) = first[0], first[2]
    return Trials(
        merge([binned, _tested(*first)]),
        _tested(*rest),
        loss,
        (float(max_bias), float(max_stderr)),
        (float(l1_bias), float(l1_stderr)),
    )


def _tested(
    estimate: FloatArray,
    exact: FloatArray,
    stderr: FloatArray,
    rounding: FloatArray,
    skewness: FloatArray,
) -> Tested:
    """Return z-scores; a difference within rounding is none, whatever its standard error."""
    difference = estimate - exact
    apart = np.sign(difference) * np.maximum(np.abs(difference) - rounding, 0.0)
    z = np.divide(apart, stderr, out=np.where(apart == 0.0, 0.0, np.inf), where=stderr > 0.0)
    z[apart == 0.0] = 0.0
    normal = skewness <= 1.0 / np.sqrt(HITS)
    return Tested(z[normal], int((~normal).sum()))


def _skewness(rates: FloatArray, effects: FloatArray, num_trials: int) -> FloatArray:
    """Return the skewness of a mean over trials of ``sum_j N_j effects_j``, without signs."""
    size = np.abs(effects)
    square = size * size
    return _ratio(rates @ square, rates @ (square * size), num_trials)


def _ratio(second: FloatArray, third: FloatArray, num_trials: int) -> FloatArray:
    out = np.zeros_like(second)
    np.divide(third, second**1.5, out=out, where=second > 0.0)
    return out / np.sqrt(num_trials)


def _projection_skewness(
    draws: Draws, centered: FloatArray, m: int, num_trials: int
) -> FloatArray:
    """Return the skewness of ``p' @ directions``, with `centered` (n, P) directions minus mean."""
    moved = draws.weights[:, None] * centered
    if draws.mean > 0.0:
        moved -= draws.rates @ moved / m
    return _skewness(draws.rates, moved / draws.total[:, None], num_trials)


def _bin_skewness(
    draws: Draws, bins: IntArray, p_bin: FloatArray, num_trials: int
) -> FloatArray:
    """Return the skewness of the mass of each bin: of its own draws, and of S below the line."""
    own = draws.weights / draws.total
    common = np.abs(draws.weights - draws.mean) / draws.total
    second = np.bincount(bins, draws.rates * own**2)
    second += p_bin**2 * (draws.rates @ common**2)
    third = np.bincount(bins, draws.rates * own**3)
    third += p_bin**3 * (draws.rates @ common**3)
    return _ratio(second, third, num_trials)
