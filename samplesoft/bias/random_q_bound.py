"""A bound on the bias of a random proposal that needs no pairs of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_nonnegative, as_positive, as_real_array
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.negatives import Negatives, make_negatives

_CHANCES = np.geomspace(1e-16, 0.5, 64)


@dataclass(frozen=True)
class RandomQBound:
    """A bound on the bias over a random proposal.

    Attributes
    ----------
    norm_bound : float
        What the mean over q of the L1 norm of the bias does not exceed; at most 2.
    chance : float
        Bound on the probability that some estimate is not close to its kernel.
    close_bound : float
        What the norm does not exceed for every q whose estimates are all close.
    closeness : ndarray, shape (n,)
        How close: the largest relative error t of each class, below 1. Chosen, like `chance`, for
        the least `norm_bound`; with a bound of 2 they are 1.
    """

    norm_bound: float
    chance: float
    close_bound: float
    closeness: FloatArray


def random_q_bound(
    logits: ArrayLike,
    labels: Any,
    kernel: ArrayLike,
    variance: ArrayLike,
    num_sampled: int,
    *,
    largest_term: float,
    floor: float = 0.0,
) -> RandomQBound:
    """Bound the mean bias of a proposal made of bounded random features, for every m and n.

    Estimates that are all close to their kernel give a proposal close to the kernel's, and
    Bernstein's inequality bounds the chance of others. Scheme ``negatives``.

    Parameters
    ----------
    logits : array_like, shape (n,)
        Finite logits o of one example.
    labels : int
        Its true class t.
    kernel : array_like, shape (n,)
        Mean estimate of each class, greater than 0: ``phi.kernel(h, classes)[0]``.
    variance : array_like, shape (n,)
        Variance of the estimates: ``phi.variance(h, classes)[0]``.
    num_sampled : int
        Number m of draws.
    largest_term : float
        An estimate is a sum of independent terms; the most by which one of them can differ from its
        mean. For random Fourier features with D independent frequencies it is 2 / D.
    floor : float
        Least estimate, from which on the sampler clips, in the scale of the kernel. It then has no
        effect on estimates that are close.

    Returns
    -------
    RandomQBound
        The bound, and what it is made of.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    What follows eq. (B59) of ``samplesoft/bias/README.md``. The cost is O(n). It says
    something only where all relative errors are likely to be small: random Fourier features of many
    dimensions take D of 1,000 for nu = 1, and of 100,000 or more for nu = 4.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.feature_maps import RandomFourierFeatures
    >>> rows = np.random.default_rng(0).normal(size=(1001, 16))
    >>> h, *classes = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    >>> logits = 4.0 * np.array(classes) @ h
    >>> for num_features in (1000, 10_000):
    ...     phi = RandomFourierFeatures(16, num_features, nu=1.0)
    ...     args = phi.kernel(h, classes)[0], phi.variance(h, classes)[0]
    ...     found = random_q_bound(logits, 0, *args, 1000, largest_term=2.0 / num_features)
    ...     print(f"{found.norm_bound:.4f}, errors of up to {found.closeness.max():.2f}")
    0.0038, errors of up to 0.73
    0.0021, errors of up to 0.23
    """
    o = as_real_array("logits", logits, (1,))
    kappa, spread = (
        as_real_array(name, value, (1,))
        for name, value in (("kernel", kernel), ("variance", variance))
    )
    if kappa.shape != o.shape or spread.shape != o.shape:
        raise ValueError(
            f"`kernel` of shape {kappa.shape} and `variance` of shape {spread.shape} do not match "
            f"`logits` of shape {o.shape}; give one number for each class."
        )
    if kappa.min() <= 0.0 or spread.min() < 0.0:
        raise ValueError(
            "`kernel` must be greater than 0 and `variance` at least 0, got "
            f"{kappa.min():g} and {spread.min():g}."
        )
    term, least = as_positive("largest_term", largest_term), as_nonnegative("floor", floor)
    top = float(kappa.max())
    scaled = kappa / top
    inputs = check_inputs(o, labels, scaled / scaled.sum(), num_sampled)
    (row,) = inputs.rows()
    negatives = make_negatives(*row)
    if negatives.log_p.size < 2:
        return RandomQBound(0.0, 0.0, 0.0, np.zeros(len(o)))
    best = RandomQBound(2.0, 1.0, 2.0, np.ones(len(o)))
    with np.errstate(all="ignore"):  # what overflows is no better than the bound of 2
        errors = np.sqrt(spread / top / top) / scaled
        terms = term / top / scaled
        for chance in _CHANCES:
            within = _bernstein(errors, terms, np.log(2.0 * len(o) / chance))
            if not np.all((within < 1.0) & (least <= (1.0 - within) * kappa)):
                continue
            # the means of squared errors for the mean, the largest errors for every q
            mean, most = (
                _bound(negatives, e, within) / inputs.num_sampled for e in (errors, within)
            )
            if mean + 2.0 * chance < best.norm_bound:
                best = RandomQBound(mean + 2.0 * float(chance), float(chance), most, within)
    return best


def cauchy_schwarz(deviation: float, zt: float) -> float:
    """Return ``V + sqrt(V (V + Z_t^2))``, which bounds m times the L1 norm, from ``sqrt(V)``."""
    return deviation * (deviation + float(np.hypot(deviation, zt)))


def _bound(negatives: Negatives, errors: FloatArray, within: FloatArray) -> float:
    """Bound m times the L1 norm, for relative errors (n,) of estimates that are all `within`."""
    own, most = errors[negatives.keep], within[negatives.keep]
    q, zt = np.exp(negatives.log_qn), float(np.exp(negatives.log_zt))
    ratio = np.exp(negatives.log_ratio)
    apart = np.abs(np.expm1(negatives.log_ratio)) + ratio * (own + q @ own) / (1.0 - most)
    share = (1.0 + most) / (1.0 - q @ most)
    return cauchy_schwarz(zt * float(np.sqrt((q * share) @ apart**2)), zt)


def _bernstein(errors: FloatArray, terms: FloatArray, exponent: float) -> FloatArray:
    """Return what each error exceeds, in size, with a chance of at most 2 exp(-exponent).

    It is the root s of ``s^2 = 2 (variance + term s / 3) exponent``.
    """
    part = terms * exponent / 3.0
    found: FloatArray = part + np.sqrt(part**2 + 2.0 * exponent * errors**2)
    return found
