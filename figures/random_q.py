"""The bias where the proposal is itself random, as one of random features is.

Three answers: `random_q_bias`, to second order in the errors of q; `positive_features_bias`, the
mean leading term for positive random features of any number; and `sampled_q_bias`, which draws
proposals. Section 20 of ``samplesoft/bias/README.md`` has the equations.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from samplesoft._executors import as_executor, run_tasks
from samplesoft._jit import chunks
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._random import stream_key
from samplesoft._validation import FloatArray, as_count, as_positive, as_real_array
from samplesoft.bias.exact import exact_bias
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.negatives import make_negatives
from samplesoft.bias.with_replacement.integral import with_replacement_bias

_STEP = 0.1  # of log v
_LEFT, _RIGHT = 20.0, 5.0  # beyond the fastest and the slowest change
_LEAST = 1e-300  # of S, which may underflow
_FAR = 1e4  # an exponent that is as good as infinite
_ASYMMETRY = 1e-9  # of the largest covariance

_BLOCK = 64  # classes whose numbers stay in the cache
_TAIL = 9.0  # standard deviations; beyond are 1e-19 of a Gaussian
_STEP_U = 0.3  # of log u
_LEFT_U, _RIGHT_U = 30.0, 4.0  # beyond the fastest and the slowest change
_WIDEST = 0.5  # step over a Gaussian, in standard deviations
_FINEST = 0.35  # and over what changes where a lognormal number passes 1, times its deviation


@dataclass(frozen=True)
class RandomQBias:
    """The bias of sampled softmax over a random proposal, to second order in its errors.

    Attributes
    ----------
    kernel_bias : ndarray, shape (n,)
        The exact bias where q is in proportion to the kernel: what ever more features tend to.
    correction : ndarray, shape (n,)
        What the errors of the estimates add to its mean, to second order; for D independent
        features it falls like 1/D.
    deviation : ndarray, shape (n,)
        Standard deviation of the bias of each class from one q to another, to first order; it
        falls like ``D**-0.5``. Below 1e-5 largest_error / m it is rounding.
    largest_error : float
        The largest standard deviation of an estimate, of a class that is drawn, divided by its
        kernel. The expansion is one in these errors, and says little where they are not small.
    """

    kernel_bias: FloatArray
    correction: FloatArray
    deviation: FloatArray
    largest_error: float

    @property
    def mean_bias(self) -> FloatArray:
        """Mean bias (n,) of q drawn anew for each gradient; it sums to 0."""
        return self.kernel_bias + self.correction

    @property
    def mean_norm(self) -> float:
        """Mean L1 norm of the bias of one q, with errors taken for Gaussian."""
        mean, spread = self.mean_bias, np.maximum(self.deviation, np.finfo(np.float64).tiny)
        with np.errstate(under="ignore", over="ignore"):
            z = mean / (2.0**0.5 * spread)
            near = spread * (2.0 / np.pi) ** 0.5 * np.exp(-(z**2))
        return float((near + mean * erf(z)).sum())


def random_q_bias(
    logits: ArrayLike, labels: Any, kernel: ArrayLike, covariance: ArrayLike, num_sampled: int
) -> RandomQBias:
    r"""Return how random errors of a proposal move the bias, to second order.

    The proposal is in proportion to estimates of a kernel, such as inner products of random
    features, whose errors have mean 0 and a known covariance. One draw of the features has one q
    and one bias, which `samplesoft.exact_bias` computes; here are mean and deviation over all of
    them, without drawing any. Scheme ``negatives``.

    Parameters
    ----------
    logits : array_like, shape (n,)
        Finite logits o of one example.
    labels : int
        Its true class t.
    kernel : array_like, shape (n,)
        Mean estimate of each class, greater than 0, in any scale: ``phi.kernel(h, classes)[0]``.
    covariance : array_like, shape (n, n)
        Covariance of the estimates, in the square of that scale:
        ``feature_moments.covariance(phi, h, classes)``. Those of the label have no effect.
    num_sampled : int
        Number m of draws.

    Returns
    -------
    RandomQBias
        The bias of the kernel, its correction and its deviation.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or errors are too large for a float64.

    Notes
    -----
    Eqs. (B55) to (B57) of ``samplesoft/bias/README.md``. If the kernel is the softmax itself, then
    its bias is 0, that of one q is of order ``D**-0.5``, and their mean of order 1/D: then
    features that are drawn anew for each step have much less bias than those that are kept.

    How small errors must be depends on the kernel. Random Fourier features have, for unit
    vectors at right angles, a relative variance of ``(cosh(2 nu) - 1) / D``: 1,490 / D for
    nu = 4. With errors of up to 0.2, `mean_norm` was within 4% of means over draws, with up to
    0.5 within 20%. Where estimates are clipped, or rarely large, the mean of
    `sampled_q_bias` is another; `positive_features_bias` has no expansion.

    The cost is O(n^2) for each of some hundred nodes, and O(n^3) once: 0.1 s for 1,000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> from feature_moments import covariance
    >>> from samplesoft.feature_maps import RandomFourierFeatures
    >>> h, classes = np.array([1.0, 0.0]), np.array([[0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
    >>> phi = RandomFourierFeatures(2, 100, nu=1.0)
    >>> args = phi.kernel(h, classes)[0], covariance(phi, h, classes)
    >>> found = random_q_bias(classes @ h, 0, *args, num_sampled=5)
    >>> [float(np.abs(x).sum().round(5)) for x in (found.kernel_bias, found.correction)]
    [0.0, 0.00112]
    >>> print(f"{found.mean_norm:.5f}, for errors of up to {found.largest_error:.2f}")
    0.00376, for errors of up to 0.34
    """
    o = as_real_array("logits", logits, (1,))
    kappa, spread = _check_estimates(kernel, covariance, len(o))
    scaled = kappa / kappa.max()
    inputs = check_inputs(o, labels, scaled / scaled.sum(), num_sampled)
    m, facts = inputs.num_sampled, inputs.scheme
    (row,) = inputs.rows()
    exact = with_replacement_bias(*row, m, facts)
    drawn = np.delete(np.arange(len(o)), row[1])
    with np.errstate(all="ignore"):
        relative = (spread[np.ix_(drawn, drawn)] / kappa[drawn]) / kappa[drawn, None]
    if not np.isfinite(relative).all():
        raise ValueError(
            "`covariance` divided by the squares of `kernel` must be within the range of float64, "
            "got more; the expansion says nothing of such errors, take sampled_q_bias."
        )
    correction, deviation = np.zeros_like(o), np.zeros_like(o)
    if len(drawn):
        e, q = exact.probs[drawn], scaled[drawn] / scaled[drawn].sum()
        with np.errstate(all="ignore"):
            terms = _expand(e, float(exact.probs[row[1]]), q, relative, m)
        correction[drawn], deviation[drawn] = terms[0], terms[1]
        correction[row[1]], deviation[row[1]] = -terms[0].sum(), terms[2]
    if not (np.isfinite(correction).all() and np.isfinite(deviation).all()):
        raise ValueError(
            "`logits` must not be so far from `kernel`: the expansion is beyond float64; take "
            "sampled_q_bias."
        )
    largest = float(np.sqrt(np.max(np.diag(relative), initial=0.0)))
    return RandomQBias(exact.bias, correction, deviation, largest)


def _check_estimates(
    kernel: ArrayLike, covariance: ArrayLike, n: int
) -> tuple[FloatArray, FloatArray]:
    """Return the kernel (n,) and the covariance (n, n)."""
    kappa = as_real_array("kernel", kernel, (1,))
    spread = as_real_array("covariance", covariance, (2,))
    if kappa.shape != (n,) or spread.shape != (n, n):
        raise ValueError(
            f"`kernel` of shape {kappa.shape} and `covariance` of shape {spread.shape} do not "
            f"match `logits` of shape {(n,)}; give shapes {(n,)} and {(n, n)}."
        )
    if kappa.min() <= 0.0:
        raise ValueError(
            f"`kernel` must be greater than 0, got {kappa.min():g} at class {kappa.argmin()}."
        )
    if np.diag(spread).min() < 0.0 or np.any(
        np.abs(spread - spread.T) > _ASYMMETRY * np.abs(spread).max()
    ):
        raise ValueError(
            "`covariance` must be symmetric and of no negative variance; phi.covariance(h, "
            "class_embeddings) of a feature map gives one."
        )
    return kappa, spread


def _expand(
    e: FloatArray, a: float, q: FloatArray, relative: FloatArray, m: int
) -> tuple[FloatArray, FloatArray, float]:
    """Return the correction and the deviation (n - 1,) of the negatives, and that of the label.

    `e` and `q` are of the negatives, with sums 1 - a and 1; eqs. (B55) and (B57).
    """
    mean = relative @ q
    total = float(q @ mean)
    drift = total - mean
    spread = relative - mean[:, None] - mean + total  # of eps: the errors of q, not of estimates
    own = np.diag(spread)
    r = e / q
    first = -np.log(m * min(max(float(r.max()), a), 1.0 / _LEAST)) - _LEFT
    last = -np.log(m * max(a + float(r.min()), _LEAST)) + _RIGHT
    v = np.exp(np.arange(first, last, _STEP))[:, None]
    x = np.minimum(v * r, _FAR)
    log_t = _log_mean(x, q)
    psi = np.exp(-x - log_t)
    slope = q * (np.expm1(-x - log_t) + x * psi)  # of log T in eps
    slope -= q * slope.sum(axis=1, keepdims=True)  # no effect, as q . eps = 0, but on rounding
    weight = _STEP * m * v * np.exp(m * (log_t - v * a)) * psi * e  # of a node in E[p'_j]
    along = slope @ spread
    square = (along * slope).sum(axis=1, keepdims=True)
    bent = (x**2 * psi) @ (q * own)
    both = (m - 1) * (slope @ drift + 0.5 * bent)[:, None] + 0.5 * (m - 1) * (m - 2) * square
    second = both + x * (drift + (m - 1) * along + (0.5 * x - 1.0) * own)
    correction = (weight * second).sum(axis=0)
    jacobian = (m - 1) * weight.T @ slope  # of b in eps
    jacobian[np.diag_indices(len(e))] += (weight * x).sum(axis=0)
    variance = ((jacobian @ spread) * jacobian).sum(axis=1)
    label = jacobian.sum(axis=0)
    return (
        correction,
        np.sqrt(np.maximum(variance, 0.0)),
        max(float(label @ spread @ label), 0.0) ** 0.5,
    )


def _log_mean(x: FloatArray, q: FloatArray) -> FloatArray:
    """Return ``log sum_j q_j exp(-x_j)`` (k, 1) for exponents (k, n), with all its digits."""
    least = x.min(axis=1, keepdims=True)
    small = np.expm1(least - x) @ q
    with np.errstate(divide="ignore"):
        far = np.log(np.exp(least - x) @ q)
    found = np.where(small > -0.5, np.log1p(np.maximum(small, -0.5)), far)
    return np.asarray(found[:, None] - least)


@dataclass(frozen=True)
class PositiveFeaturesBias:
    """The bias of sampled softmax, on average over positive random features.

    Attributes
    ----------
    leading_bias : ndarray, shape (n,)
        Mean over the features of the term of order 1/m of the bias ``E[p'] - p``, in probability.
    norm_bound : float
        What the mean over the features of the L1 norm of the bias does not exceed; at most 2.
    """

    leading_bias: FloatArray
    norm_bound: float


def positive_features_bias(
    logits: ArrayLike,
    labels: Any,
    h: ArrayLike,
    class_embeddings: ArrayLike,
    num_sampled: int,
    *,
    tau: float,
    num_features: int,
) -> PositiveFeaturesBias:
    """Return the mean leading bias of positive random features, for any number of them.

    The proposal is in proportion to the inner products of `PositiveRandomFeatures` with independent
    frequencies, drawn once for all m draws. Its leading bias is linear in ``r_j = e_j / q_j``, and
    the mean of ``1 / q_j`` over the features is a sum of integrals in one variable. Scheme
    ``negatives``.

    Parameters
    ----------
    logits : array_like, shape (n,)
        Finite logits o of one example, whatever they come from.
    labels : int
        Its true class t.
    h : array_like, shape (d,)
        Its context vector.
    class_embeddings : array_like, shape (n, d)
        The class vectors.
    num_sampled : int
        Number m of draws.
    tau : float
        Sharpness of the kernel ``exp(tau h . c)`` that the features estimate.
    num_features : int
        Number D of features.

    Returns
    -------
    PositiveFeaturesBias
        The leading bias, and a bound on the bias that holds for every m.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or vectors are so long that the means are beyond float64.

    Notes
    -----
    Eqs. (B58) and (B59) of ``samplesoft/bias/README.md``. The means are often made by features that
    are drawn rarely: with few of them a simulation misses most of the bias. A floor under the
    estimates, as `samplesoft.samplers.KernelTree` has one, makes it smaller. The cost is O(n^2).

    Examples
    --------
    >>> import numpy as np
    >>> h, classes = np.array([1.0, 0.0]), np.array([[0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
    >>> for num_features in (1, 100):
    ...     found = positive_features_bias(
    ...         classes @ h, 0, h, classes, 50, tau=1.0, num_features=num_features
    ...     )
    ...     print(found.leading_bias.round(6), f"{found.norm_bound:.4f}")
    [ 0.000468 -0.000927  0.000459] 0.0030
    [ 1.1e-05 -2.5e-05  1.3e-05] 0.0003
    """
    o = as_real_array("logits", logits, (1,))
    context = as_real_array("h", h, (1,))
    classes = as_real_array("class_embeddings", class_embeddings, (2,))
    if classes.shape != (len(o), len(context)):
        raise ValueError(
            f"`class_embeddings` of shape {classes.shape} does not match `logits` of shape "
            f"{o.shape} and `h` of shape {context.shape}; give shape (n, d)."
        )
    tau, num = as_positive("tau", tau), as_count("num_features", num_features)
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = tau**0.5 * (context + classes)
        log_kernel = tau * (classes @ context)
        largest = float((vectors**2).sum(axis=1).max())
    if not largest < LARGEST_EXPONENT / 2.0:
        raise ValueError(
            "`tau` times the squared norm of h + c must be below 350 for every class, got "
            f"{largest:g}; lower tau, or scale the vectors down."
        )
    kernel = np.exp(log_kernel - log_kernel.max())
    inputs = check_inputs(o, labels, kernel / kernel.sum(), num_sampled)
    (row,) = inputs.rows()
    negatives = make_negatives(*row)
    if negatives.log_p.size < 2:
        return PositiveFeaturesBias(np.zeros_like(o), 0.0)
    q, e = np.exp(negatives.log_qn), np.exp(negatives.log_p)
    zt = float(np.exp(negatives.log_zt))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        growth = _mean_inverses(vectors[negatives.is_negative], q, num)
        ratio = np.exp(negatives.log_ratio)  # r_j / Z_t of the kernel
        variance = zt**2 * float(
            np.exp(negatives.log_chi2)
            + np.exp(negatives.log_p - negatives.log_zt) @ (ratio * growth)
        )
        deviation = zt * (np.expm1(negatives.log_ratio) + ratio * growth)
        leading = e * (variance - deviation)
        out = negatives.fill_classes(float(np.exp(negatives.log_a)) * variance, leading)
        # V + sqrt(V (V + Z_t^2)) bounds m times the L1 norm, eq. (B59)
        spread = max(variance, 0.0) ** 0.5
        bound = spread * (spread + float(np.hypot(spread, zt))) / inputs.num_sampled
    if not np.isfinite(out).all():
        raise ValueError(
            "the mean bias must be within the range of float64, got more; take more features than "
            f"num_features={num}, a lower tau, or logits that are closer together."
        )
    return PositiveFeaturesBias(out / inputs.num_sampled, min(2.0, bound))


def _mean_inverses(vectors: FloatArray, q: FloatArray, num: int) -> FloatArray:
    """Return ``E[sum_k q_k (k_k / kappa_k) / (k_j / kappa_j)] - 1`` for each class j.

    An estimate over its kernel is a mean of `num` numbers ``exp(g . y_j - |y_j|^2 / 2)`` with g
    from N(0, I), and `vectors` are the y (n, d); eq. (B58).
    """
    inner = vectors @ vectors.T
    lengths = np.sqrt(np.diag(inner))
    longest = float(lengths.max())
    out = np.zeros(len(q))
    for j, length in enumerate(lengths):
        if length == 0.0:  # of no variance
            continue
        step = min(_WIDEST, _FINEST / length)
        reach = _TAIL + longest + length
        g = np.arange(-reach, reach + step, step)
        log_x = length * g - 0.5 * length**2
        nodes = np.arange(-log_x[-1] - np.log(num) - _LEFT_U, -log_x[0] + _RIGHT_U, _STEP_U)
        exponents = np.outer(-np.exp(nodes), np.exp(log_x))
        falls = np.exp(exponents)
        rest = (num - 1) * _log_gaussian_mean(exponents, falls, _gaussian(g, step))
        inverse = (num * _STEP_U * np.exp(nodes + rest)) @ falls
        for part in chunks(len(q), _BLOCK):
            means = _gaussian(g - (inner[j, part] / length)[:, None], step) @ inverse
            out[j] += q[part] @ (means - 1.0)
    return out


def _log_gaussian_mean(exponents: FloatArray, falls: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the logarithms (k,) of means of ``falls = exp(exponents)`` (k, G), near 0 too."""
    log_mean = np.log(np.maximum(falls @ weights, np.finfo(np.float64).tiny))
    near = log_mean > -0.5
    log_mean[near] = np.log1p(np.expm1(exponents[near]) @ weights)
    return log_mean


def _gaussian(g: FloatArray, step: float) -> FloatArray:
    density = np.multiply(g, g)
    density *= -0.5
    np.exp(density, out=density)
    density *= step / (2.0 * np.pi) ** 0.5
    return density


@dataclass(frozen=True)
class SampledQBias:
    """Means over draws of a proposal, each with its exact bias.

    Attributes
    ----------
    mean_bias : ndarray, shape (n,) or (B, n)
        Estimated mean of ``E[p'] - p`` over q: the bias where q is drawn anew for each gradient.
    standard_error : ndarray, shape (n,) or (B, n)
        Its standard errors.
    mean_norm : float or ndarray, shape (B,)
        Estimated mean of the L1 norm of the bias of one q: where q is drawn once and kept.
    norm_error : float or ndarray, shape (B,)
        Its standard error.
    """

    mean_bias: FloatArray
    standard_error: FloatArray
    mean_norm: Any
    norm_error: Any


def sampled_q_bias(
    logits: ArrayLike,
    labels: Any,
    draw_q: Callable[[np.random.Generator], Any],
    num_sampled: int,
    *,
    num_draws: int = 100,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
    rng: int | np.random.Generator | None = None,
    executor: Executor | None = None,
) -> SampledQBias:
    """Draw proposals, and average their exact biases.

    A sampler of random features, or one whose clusters start at random, is one proposal for each
    seed. Its bias is computed without sampling; what is sampled is the seed alone.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels : int or array_like of int, shape (B,)
        The true class t.
    draw_q : callable
        Makes a q as `samplesoft.exact_bias` takes it, probabilities or a sampler, from a
        `numpy.random.Generator`.
    num_sampled, scheme, h
        As for `samplesoft.exact_bias`.
    num_draws : int
        How many proposals are drawn, at least 2.
    rng : int, numpy.random.Generator or None
        Seed of the generators.
    executor : concurrent.futures.Executor, optional
        Whose workers share the draws out; for processes `draw_q` must be a function of a module.

    Returns
    -------
    SampledQBias
        The mean bias and the mean of its L1 norm, with standard errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or `samplesoft.exact_bias` refuses what `draw_q` makes.

    Warns
    -----
    RuntimeWarning
        As `samplesoft.exact_bias`.

    Notes
    -----
    The L1 norm of `mean_bias` is too large by about the sum of 0.8 `standard_error`, where
    that is not small beside it. A standard error says little while the mean comes from rare draws,
    as with few features: `positive_features_bias` needs no draws.

    Examples
    --------
    Features that are drawn once have a bias; drawn anew for each gradient, they have a smaller one.

    >>> import numpy as np
    >>> from samplesoft.samplers import RFSoftmaxSampler
    >>> classes, h = np.array([[0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]]), np.array([1.0, 0.0])
    >>> def draw_q(rng):
    ...     return RFSoftmaxSampler(
    ...         classes, nu=1.0, num_features=100, leaf="kernel", leaf_size=1, rng=rng
    ...     )
    >>> found = sampled_q_bias(classes @ h, 0, draw_q, num_sampled=5, h=h, rng=0)
    >>> print(f"{found.mean_norm:.4f}, and {np.abs(found.mean_bias).sum():.4f}")
    0.0030, and 0.0006
    """
    if not callable(draw_q):
        raise TypeError(
            "`draw_q` must be a function that makes a proposal from a numpy.random.Generator, got "
            f"{type(draw_q).__name__}; write for example lambda rng: make_sampler(..., rng=rng)."
        )
    num = as_count("num_draws", num_draws, 2)
    parent = np.random.default_rng(int(stream_key(rng)))
    ask = partial(_bias_of_draw, logits, labels, draw_q, num_sampled, scheme, h)
    draws = (parent.spawn(1)[0] for _ in range(num))
    norms: list[Any] = []
    mean: Any = 0.0
    square: Any = 0.0
    for count, bias in enumerate(run_tasks(ask, draws, as_executor(executor)), 1):
        norms.append(np.abs(bias).sum(axis=-1))
        change = bias - mean  # Welford's sums: means of squares would cancel
        mean = mean + change / count
        square = square + change * (bias - mean)
    return SampledQBias(
        mean,
        np.sqrt(square / (num * (num - 1))),
        np.mean(norms, axis=0),
        np.std(norms, axis=0, ddof=1) / num**0.5,
    )


def _bias_of_draw(
    logits: ArrayLike,
    labels: Any,
    draw_q: Callable[[np.random.Generator], Any],
    num_sampled: int,
    scheme: str,
    h: ArrayLike | None,
    rng: np.random.Generator,
) -> FloatArray:
    return exact_bias(logits, labels, draw_q(rng), num_sampled, scheme=scheme, h=h).bias
