"""The bias of positive random features, on average over the features, without drawing any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, as_count, as_positive, as_real_array
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.negatives import make_negatives
from samplesoft.bias.random_q_bound import cauchy_schwarz

_BLOCK = 64  # classes whose numbers stay in the cache
_TAIL = 9.0  # standard deviations; beyond are 1e-19 of a Gaussian
_STEP = 0.3  # of log u
_LEFT, _RIGHT = 30.0, 4.0  # beyond the fastest and the slowest change
_WIDEST = 0.5  # step over a Gaussian, in standard deviations
_FINEST = 0.35  # and over what changes where a lognormal number passes 1, times its deviation


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
    estimates, as `samplesoft.KernelTree` has one, makes it smaller. The cost is O(n^2).

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
        growth = _mean_inverses(vectors[negatives.keep], q, num)
        ratio = np.exp(negatives.log_ratio)  # r_j / Z_t of the kernel
        variance = zt**2 * float(
            np.exp(negatives.log_chi2)
            + np.exp(negatives.log_p - negatives.log_zt) @ (ratio * growth)
        )
        deviation = zt * (np.expm1(negatives.log_ratio) + ratio * growth)
        leading = e * (variance - deviation)
        out = negatives.fill(float(np.exp(negatives.log_a)) * variance, leading)
        bound = cauchy_schwarz(max(variance, 0.0) ** 0.5, zt) / inputs.num_sampled
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
        nodes = np.arange(-log_x[-1] - np.log(num) - _LEFT, -log_x[0] + _RIGHT, _STEP)
        exponents = np.outer(-np.exp(nodes), np.exp(log_x))
        falls = np.exp(exponents)
        rest = (num - 1) * _log_mean(exponents, falls, _gaussian(g, step))
        inverse = (num * _STEP * np.exp(nodes + rest)) @ falls
        for part in chunks(len(q), _BLOCK):
            means = _gaussian(g - (inner[j, part] / length)[:, None], step) @ inverse
            out[j] += q[part] @ (means - 1.0)
    return out


def _log_mean(exponents: FloatArray, falls: FloatArray, weights: FloatArray) -> FloatArray:
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
