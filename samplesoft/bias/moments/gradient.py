"""Exact squared bias, variance and mean squared error of the gradient in the context vector h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._temperature import require_squarable
from samplesoft._validation import FloatArray, as_positive, as_real_array
from samplesoft.bias.exact import bias_of_example
from samplesoft.bias.inputs import (
    Inputs,
    check_inputs,
    is_dask,
    merge_certain_into_label,
    require_digits,
    require_none_with_dask,
)
from samplesoft.bias.moments.chunks import moments_of_dask
from samplesoft.bias.moments.draws import (
    gradient_mse_of_draws,
    gradient_mse_of_inclusions,
    require_no_jackknife,
)
from samplesoft.bias.moments.sets import gradient_mse_of_sets
from samplesoft.bias.moments.squares import center_vectors, squared_norm_with_error, squared_norms
from samplesoft.bias.numerics.quadrature import ExampleBias
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.with_replacement.draws import Draws, make_draws


@dataclass(frozen=True)
class GradientMoments:
    """Error of the sampled gradient in h: ``mse = squared_bias + variance``.

    Attributes
    ----------
    squared_bias, variance, mse : float or ndarray, shape (B,)
        Squared Euclidean norms, in the units of the squared gradient in h.
    error : float or ndarray, shape (B,)
        Estimated numerical error of each of the three, from quadrature and rounding. A variance far
        below the squared bias, or below `error`, has few correct digits or none.
    """

    squared_bias: Any
    variance: Any
    mse: Any
    error: Any


def exact_gradient_moments(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: ArrayLike,
    *,
    tau: float = 1.0,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
) -> GradientMoments:
    """Compute the exact squared bias, variance and mean squared error of the gradient in h.

    The gradient of the loss in h is tau * (sum_i p'_i c_i - c_t).

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o = tau * h . c. Dask arrays, also of `q` and `class_embeddings`, are read
        chunk by chunk; fewer than ten draws may then raise ValueError.
    labels, q, h, certain
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number m of draws, at least 1.
    class_embeddings : array_like, shape (n, d)
        Class vectors c.
    tau : float
        Inverse temperature.
    scheme : str
        As for `samplesoft.exact_bias`, except the jackknife.

    Returns
    -------
    GradientMoments
        Squared bias, variance, mean squared error, and their numerical error, each a float or (B,).

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the scheme is a jackknife.

    Notes
    -----
    The second moment follows from 1/S**2 = int u exp(-u S) du, as section 9 of
    ``samplesoft/bias/README.md`` shows, and section 22 for draws without replacement. The latter
    need about 100,000 nodes, each with a product with all class vectors: 1,000 classes with 64
    dimensions take seconds, and 10,000 a minute; draws with replacement take milliseconds. Without
    replacement, a variance below 1e-18 of the largest squared class vector is not resolved.

    References
    ----------
    Rawat et al., "Sampled Softmax with Random Fourier Features", 2019, eq. 8.

    Examples
    --------
    >>> import samplesoft
    >>> moments = samplesoft.exact_gradient_moments(
    ...     [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    ... )
    >>> round(moments.variance, 4), round(moments.squared_bias, 6)
    (0.032, 0.001059)

    Three draws from four negatives, with and without replacement:

    >>> for scheme in "negatives", "distinct":
    ...     moments = samplesoft.exact_gradient_moments(
    ...         [0.0, 1.0, 2.0, 0.5, 1.5], 0, [0.2] * 5, 3, [[x] for x in range(5)], scheme=scheme
    ...     )
    ...     print(round(moments.variance, 4))
    0.3889
    0.1233
    """
    if is_dask(logits) or is_dask(q) or is_dask(class_embeddings):
        require_none_with_dask(h=h, certain=certain)
        columns = moments_of_dask(logits, labels, q, num_sampled, class_embeddings, tau, scheme)
        return GradientMoments(*columns)

    inputs = check_inputs(
        logits,
        labels,
        q,
        num_sampled,
        scheme,
        h,
        certain,
        allows_always_included=True,
        require=require_no_jackknife,
    )

    require_digits(inputs)
    return exact_gradient_moments_of(inputs, class_embeddings, tau)


def exact_gradient_moments_of(
    inputs: Inputs, class_embeddings: ArrayLike, tau: float = 1.0
) -> GradientMoments:
    """Return `exact_gradient_moments` for checked `inputs`; checks the other two arguments."""
    require_no_jackknife(inputs.scheme)
    return moments_with_square(inputs, class_embeddings, tau, gradient_mse_of_draws)


def moments_with_square(
    inputs: Inputs,
    class_embeddings: ArrayLike,
    tau: float,
    mse_of_draws: Callable[[Draws, FloatArray], tuple[float, float]],
) -> GradientMoments:
    """Return the gradient moments for checked `inputs`, given a function for the mean square.

    For draws with replacement, ``mse_of_draws(draws, vectors)`` returns ``E|sum_i p'_i c_i|**2``
    and its error, where the vectors c (n, d) have the mean 0 under the softmax.
    """
    vectors, scale = check_class_vectors(class_embeddings, inputs.logits.shape[1], tau)

    rows = []
    for example in inputs.rows():
        class_vectors = vectors
        merge_error = 0.0
        if len(inputs.certain):
            merged = merge_certain_into_label(*example, inputs.certain)

            # subtracting the label's vector from all vectors does not change the moments, and
            # avoids cancellation in means
            class_vectors = merged.mean_rows(vectors - vectors[example[1]])
            example = merged[:3]
            merge_error = merged.rounding

        row = bias_of_example(example, inputs)
        centred = center_vectors(class_vectors, row.probs)
        if inputs.scheme.independent:
            mse, rounding = gradient_mse_of_inclusions(example, centred)
        elif inputs.scheme.distinct:
            mse, rounding = gradient_mse_of_sets(example, inputs, centred)
        else:
            draws = make_draws(*example, inputs.num_sampled, inputs.scheme)
            mse, rounding = mse_of_draws(draws, centred)

        squared_bias, error = _squared_bias(row, class_vectors)
        mse = scale * max(mse, squared_bias)
        squared_bias = scale * squared_bias
        error = scale * (error + rounding) + (merge_error + 4.0 * EPS) * mse
        rows.append((squared_bias, mse - squared_bias, mse, error))

    return GradientMoments(*inputs.columns(rows))


def check_class_vectors(class_embeddings: ArrayLike, n: int, tau: Any) -> tuple[FloatArray, float]:
    """Check the class vectors and tau; return the vectors (n, d) in float64, and tau squared."""
    vectors = as_real_array("class_embeddings", class_embeddings, (2,))
    if len(vectors) != n:
        raise ValueError(
            f"`class_embeddings` must have one row for each of the {n} classes of `logits`, got "
            f"shape {vectors.shape}."
        )

    scale = as_positive("tau", tau)
    require_squarable(vectors, scale)
    return vectors, scale * scale


def _squared_bias(row: ExampleBias, vectors: FloatArray) -> tuple[float, float]:
    """Return the squared norm of the bias of the gradient in h, and its error, for tau = 1."""
    # the bias sums to 0, so subtracting the most probable class's vector does not change the result
    offsets = vectors - vectors[np.argmax(row.probs)]
    max_distance = float(np.sqrt(squared_norms(offsets).max()))
    rounding = EPS * (len(row.bias) + 8) * float(np.abs(row.bias).sum())
    return squared_norm_with_error(row.bias @ offsets, (row.error + rounding) * max_distance)
