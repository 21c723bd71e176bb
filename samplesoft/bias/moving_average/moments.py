"""Squared bias, variance and mean squared error of the gradient in h of a moving average."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._moving_average import as_moving_average
from samplesoft._validation import FloatArray
from samplesoft.bias.inputs import Example, Inputs
from samplesoft.bias.moments.draws import term_rounding
from samplesoft.bias.moments.gradient import (
    GradientMoments,
    check_class_vectors,
    exact_gradient_moments_of,
)
from samplesoft.bias.moments.squares import integral_with_error, squared_norms
from samplesoft.bias.moving_average.bias import (
    bias_of_example,
    centred_examples,
    check_moving_average_inputs,
    check_states,
    exact_bias_of_example,
    inputs_of_example,
    softmax_gradient,
    with_memory,
)
from samplesoft.bias.moving_average.long_run import LongRun, long_runs
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.with_replacement.draws import make_draws

_VALUES_PER_CHUNK = 1 << 20  # number of nodes times the number of classes of a chunk
_MIN_LOG_TRANSFORM = -100.0  # nodes with a smaller log E exp(-y U) add nothing


def moving_average_moments(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: ArrayLike,
    *,
    tau: float = 1.0,
    gamma: float | None = None,
    alpha: float | None = None,
    log_sums: Any = None,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> GradientMoments:
    r"""Compute the exact squared bias and variance of the gradient in h of a moving average.

    Parameters
    ----------
    logits, labels, q, num_sampled, class_embeddings, tau, h
        As for `samplesoft.exact_gradient_moments`.
    gamma, alpha, log_sums, scheme
        As for `moving_average_bias`. In the long run, means are over all visits, and the variance
        is that of one visit; the gradients of successive visits are correlated through the state.

    Returns
    -------
    GradientMoments
        Squared bias, variance, mean squared error, and their numerical error, each a float or (B,).

    Raises
    ------
    TypeError, ValueError
        As for `moving_average_bias`.

    Notes
    -----
    In the long run the variance for a constant gamma is a difference of two second moments, and
    loses about log10(m) digits. The cost is O(n d) at each of some hundred nodes.

    Examples
    --------
    >>> from samplesoft.bias import moving_average_moments
    >>> for gamma in 1.0, 0.1:
    ...     moments = moving_average_moments(
    ...         [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
    ...         gamma=gamma,
    ...     )
    ...     print(round(moments.variance, 4), round(moments.squared_bias, 7))
    0.032 0.0010586
    0.0438 9.8e-06
    """
    inputs = check_moving_average_inputs(logits, labels, q, num_sampled, scheme, h)
    gamma, alpha = as_moving_average(gamma, alpha)
    states = check_states(log_sums, inputs)
    vectors, scale = check_class_vectors(class_embeddings, inputs.logits.shape[1], tau)
    rows = []
    for example, state in zip(centred_examples(inputs), states, strict=True):
        _, label, _ = example
        from_label = vectors - vectors[label]  # the gradient in h is a sum of these
        probs, parts = bias_of_example(example, state, inputs, gamma, alpha)
        of_softmax = softmax_gradient(example, probs)
        bias = (parts.turning_bias + parts.relative_step * of_softmax) @ from_label
        mean = of_softmax @ from_label + bias
        variance, error = _variance(example, state, inputs, gamma, alpha, from_label, mean)

        squared_bias = float(bias @ bias)
        largest = float(np.sqrt(squared_norms(from_label).max()))
        bias_error = (parts.error + 16.0 * EPS * float(np.abs(bias).sum())) * largest
        error += bias_error * (2.0 * math.sqrt(squared_bias) + bias_error)
        mse = squared_bias + variance
        rows.append((scale * squared_bias, scale * variance, scale * mse, scale * error))
    return GradientMoments(*inputs.columns(rows))


def _variance(
    example: Example,
    state: float,
    inputs: Inputs,
    gamma: float | None,
    alpha: float | None,
    vectors: FloatArray,
    mean: FloatArray,
) -> tuple[float, float]:
    """Return the variance of the sum of p'_j times the vector of class j, and its error.

    The label's vector is 0. `mean` (d,) is the mean of the sum. `state` is u before the visit, or
    NaN for the long run.
    """
    if np.isneginf(state) or gamma == 1.0:  # sampled softmax itself
        return _sampled_variance(example, inputs, vectors)

    if math.isnan(state) and alpha is None:
        assert gamma is not None
        draws = make_draws(*example, inputs.num_sampled, inputs.scheme)
        if draws.other_mass == 0.0:
            return 0.0, 0.0
        # the first quadrature is enough for a second moment
        with np.errstate(under="ignore", over="ignore"):
            square, error = _mean_square(next(iter(long_runs(draws, gamma))), gamma, vectors)
        return max(square - float(mean @ mean), 0.0), error

    memory = with_memory(example, state, gamma, alpha)
    with_state = memory.inputs(inputs)
    extended = np.vstack([vectors, np.zeros((1, vectors.shape[1]))])  # the old state has no vector
    variance, error = _sampled_variance(memory.example, with_state, extended)
    if not math.isnan(state):
        return variance / memory.gamma**2, error / memory.gamma**2

    # SCENT in the long run, (B92): A is the fraction of the old state, of mass w, in S + w, and
    # R = 1 / U is a linear recursion, R <- A (R + 1 / w)
    of_state = np.zeros((len(extended), 1))
    of_state[-1] = 1.0
    variance_of_a, error_of_a = _sampled_variance(memory.example, with_state, of_state)
    fraction, error_of_fraction = _mean_fraction_of_classes(memory.example, with_state)
    denominator = fraction * (2.0 - fraction) - variance_of_a  # 1 - E[A**2]
    mean_square = (2.0 - fraction) / (fraction * denominator)  # of w R + 1
    mean_of_numerator = fraction * mean
    spread = float(mean_of_numerator @ mean_of_numerator) * variance_of_a
    spread /= fraction**2 * denominator
    total = variance * mean_square + spread

    # relative errors of the factors, of which `denominator` and `fraction` are divisors
    relative = (2.0 * error_of_fraction + error_of_a) / denominator + error_of_fraction / fraction
    error = error * mean_square + 4.0 * (relative + 8.0 * EPS) * total
    error += float(mean @ mean) * error_of_a / denominator
    return total, error


def _mean_fraction_of_classes(example: Example, inputs: Inputs) -> tuple[float, float]:
    """Return 1 - E[A], where A is the fraction of the last class in the sum, and its error."""
    row = exact_bias_of_example(example, inputs)
    fraction = float(row.probs[:-1].sum())
    return fraction - float(row.bias[-1]), float(row.error) + 64.0 * EPS * fraction


def _sampled_variance(example: Example, inputs: Inputs, vectors: FloatArray) -> tuple[float, float]:
    """Return the variance of sampled softmax for one example, and its error."""
    moments = exact_gradient_moments_of(inputs_of_example(example, inputs), vectors)
    return moments.variance, moments.error


def _mean_square(run: LongRun, gamma: float, vectors: FloatArray) -> tuple[float, float]:
    """Return the mean square of the sum of p'_j times the `vectors` (n, d), and its error, (B91).

    1 / U**2 is the integral of y exp(-y U) dy. In the square, two different draws of the newest
    visit have two exponentials in place of factors T, and the square of one draw has one.
    """
    draws = run.draws
    m = draws.num_draws
    drawn = np.flatnonzero(draws.draw_probs > 0.0)
    log_probs = draws.log_probs[drawn]
    log_r = run.ratios.log_r[drawn]
    class_vectors = vectors[drawn]
    squares = squared_norms(class_vectors)

    nodes = run.nodes
    used = np.flatnonzero(run.log_transform > _MIN_LOG_TRANSFORM)
    # the square root of v**2 (m / gamma)**2 E exp(-y U), which is split between two factors
    log_half = nodes.x + math.log(m / gamma) + 0.5 * run.log_transform
    terms = np.zeros(len(nodes.x))
    size = max(1, _VALUES_PER_CHUNK // len(drawn))
    for start in range(0, len(used), size):
        k = used[start : start + size]
        x = nodes.x[k][:, None]
        rate = np.exp(np.minimum(x + log_r, LARGEST_EXPONENT))  # v r
        log_psi = -rate - nodes.log_transform[k][:, None]
        fractions = np.exp(log_probs + log_psi + log_half[k][:, None])
        sums = fractions @ class_vectors
        same = np.exp(log_probs + log_r + log_psi + 2.0 * log_half[k][:, None]) @ squares
        terms[k] = (1.0 - 1.0 / m) * squared_norms(sums) + same / m
    units = term_rounding(draws) * (1.0 + np.abs(run.log_transform))
    return integral_with_error(nodes.dx, terms, units * terms)
