"""The exact bias of sampled softmax, by one integral and no sampling.

``README.md`` in this folder has the equations (B1), (B2), ... and the order in which to read the
code. The integral itself is in one of four places: ``with_replacement/`` for independent draws,
``poisson.py`` if each class is included independently, ``without_replacement/`` for sets of
distinct classes, and ``chunks/`` for classes in chunks. ``plain.py`` computes the same bias in a
few short NumPy functions, with fewer digits.
"""

from __future__ import annotations

import math
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._executors import as_executor, run_tasks
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.chunks.dask import bias_of_dask
from samplesoft.bias.inputs import (
    Example,
    Inputs,
    check_correction,
    check_inputs,
    check_jacobian,
    is_dask,
    ldexp_or_inf,
    merge_certain_into_label,
    require_digits,
    require_none_with_dask,
    scaled_to_avoid_overflow,
    weighted_row_sum,
)
from samplesoft.bias.numerics.quadrature import ExampleBias
from samplesoft.bias.numerics.summation import EPS, LARGEST_FLOAT, log_softmax
from samplesoft.bias.poisson import poisson_bias
from samplesoft.bias.with_replacement.integral import loses_digits, with_replacement_bias
from samplesoft.bias.without_replacement.set_bias import set_bias
from samplesoft.schemes import SCHEMES, Scheme

_MAX_LOG_QUOTIENT = 700.0  # largest |log| of a quotient that neither overflows nor underflows
_MAX_SOFTMAX_ROUNDING = 1e-8  # largest error without a warning if q is the softmax, with bias 0
SOFTMAX_ROUNDING = 16.0 * 2.0**-52  # relative rounding error of a q that is a softmax


@dataclass(frozen=True)
class ExactBias:
    """The exact bias of sampled softmax and of its loss, and the full softmax.

    Attributes
    ----------
    bias : ndarray, shape (n,) or (B, n)
        E[p'] - p, the bias of the gradient in the logits. It sums to 0 over the classes.
    probs : ndarray, shape (n,) or (B, n)
        The full softmax p.
    loss_bias : float or ndarray, shape (B,)
        E[L'] - L, in nats.
    error : float or ndarray, shape (B,)
        Estimated numerical error of `bias` in the L1 norm: quadrature and rounding.
    loss_error : float or ndarray, shape (B,)
        Estimated numerical error of `loss_bias`, in nats.
    inclusion : ndarray, shape (n,) or (B, n), or None
        For draws without replacement, the probability that the set of draws contains each class.
    """

    bias: FloatArray
    probs: FloatArray
    loss_bias: Any
    error: Any
    loss_error: Any
    inclusion: FloatArray | None = None

    @property
    def expected_probs(self) -> FloatArray:
        """E[p'], of the shape of `bias`."""
        return self.probs + self.bias

    def gradient_bias(self, jacobian: ArrayLike) -> FloatArray:
        """Return the bias of the gradient in any parameters, given the Jacobian of the logits.

        Parameters
        ----------
        jacobian : array_like, shape (n, P) or (B, n, P)
            Derivatives of the n logits with respect to P parameters.

        Returns
        -------
        ndarray, shape (P,) or (B, P)
            E[gradient of L'] - gradient of L.

        Raises
        ------
        TypeError, ValueError
            If `jacobian` is malformed or not for n classes.
        """
        jac, excess = scaled_to_avoid_overflow(check_jacobian(jacobian, self.bias.shape))
        return ldexp_or_inf(weighted_row_sum(self.bias, jac), excess)


def exact_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
    correction: ArrayLike | None = None,
    executor: Executor | None = None,
) -> ExactBias:
    """Compute exactly what sampled softmax does to the gradient, for one example or a batch.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o. A Dask array is read chunk by chunk, in several passes, by the active Dask
        scheduler; its bias is then a Dask array, too. See `samplesoft.bias.BiasSums`.
    labels : int or array_like of int, shape (B,)
        The true class t.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all n classes, one for all examples or one for each; or an object with a
        method ``probs(h)``, such as a sampler. ``negatives``, ``jackknife`` and ``reject``
        condition it on not being the label; with a sampler the first two use
        ``probs(h, exclude=labels)``, the distribution of its draws. It must sum to 1 up to 1e-4
        (enough for float32), or 1e-6 for a Dask array, and is divided by its sum. For ``poisson``:
        the inclusion probabilities of the classes.
    num_sampled : int
        Number m of draws, at least 1; at least 2 for the jackknives. Of no effect for
        ``poisson``.
    scheme : str
        How the draws become a loss, log S - o_t; e = exp(o).

        - ``negatives``: S = e_t + sum of e_j / (m qn_j) over m draws from qn, which is q given
          "not the label".
        - ``masked``: m draws from q; draws of t have weight 0.
        - ``reject``: m draws from q; draws of t are dropped, m is replaced by the number K of
          accepted draws, and q by qn. If K = 0, p' = 1 on t.
        - ``candidate``: the label's logit is corrected too, S = e_t / (m q_t) + sum of
          e_j / (m q_j); t may be drawn and then counts as a negative as well.
        - ``candidate_masked``: as ``candidate``, but draws of t have weight 0.
        - ``importance``: S = sum of e_j / (m q_j), with no term for the label.
        - ``poisson``: class j is included with probability q_j, S = e_t + sum of e_j / q_j.
        - ``jackknife``, ``jackknife_masked``: m L'_m - (m - 1) times the mean of L'_{m-1} over the
          draws left out, with the losses L' of ``negatives`` and of ``masked``.
        - ``distinct``: S = e_t + sum of e_j / pi_j over m distinct negatives, drawn without
          replacement: in turn, each in proportion to q among the remaining ones. pi_j is the
          probability that class j is among them.
        - ``distinct_masked``, ``distinct_candidate``, ``distinct_candidate_masked``,
          ``distinct_importance``: draws without replacement among all classes, with pi_j in place
          of m q_j; the label is treated as in ``masked``, ``candidate`` and so on.
    h : array_like, shape (d,) or (B, d), optional
        Context vectors, where `q` is a sampler that looks at them.
    certain : array_like of int, shape (k,), optional
        Always-included classes: S contains the sum of their e_j, except for the label, and a draw
        of one of them is treated like a draw of the label. A `samplesoft.samplers.CertainSampler`
        as `q` has its own. Allowed for ``negatives``, ``masked``, ``reject`` and the jackknives.
    correction : array_like, shape (n,) or (B, n), optional
        Divisors of the draws where they are not the proposal: positive values that replace ``q``
        and ``qn`` in the formulas of `scheme`, without normalisation. Examples are stale or
        estimated probabilities, or ``1 / m`` for a sum of e_j without correction, as in InfoNCE.
        `q` may then be 0: such classes are never drawn. The label's entry matters only where the
        scheme corrects its logit. Without replacement it replaces pi.
    executor : concurrent.futures.Executor, optional
        Computes the examples on its workers, each on one thread: a pool of threads or processes, or
        ``client.get_executor(pure=False)`` of Dask. The result has the same bits as without it.

    Returns
    -------
    ExactBias
        The bias, the loss bias, and estimates of their numerical errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or q is 0 on a class that the scheme draws.

    Warns
    -----
    RuntimeWarning
        If the estimated error is above 1e-10 of the L1 norm of the bias. This happens with the
        jackknives, and with the ``distinct`` schemes at many draws, where the bias is very small.
        There is no warning where q equals the softmax of the drawn classes up to rounding, because
        the whole bias is then rounding.

    Notes
    -----
    From 1/S = int exp(-u S) du, E[p'_j] is a one-dimensional integral over powers of the Laplace
    transform sum_j q_j exp(-v r_j) of one draw, with r_j = e_j / q_j; ``samplesoft/bias/README.md``
    derives it step by step. The difference from p is taken under the integral, class by class
    against one reference, so it keeps its digits where the bias is many orders below p. Cost and
    memory are O(n) at any m. ``poisson`` costs O(n) for each of a few hundred nodes. ``distinct``
    takes seconds for some thousand classes, and more for more draws. The first call compiles for
    about ten seconds. As m grows ``candidate`` tends to the full softmax, ``candidate_masked`` to
    the softmax without the label.

    The label and the `certain` classes are treated as one class that is never drawn: in every
    outcome they divide its p' in the same proportions. If all classes are certain, nothing is
    drawn, and the bias is 0.

    References
    ----------
    Rawat et al., "Sampled Softmax with Random Fourier Features", 2019, eqs. 5-9 (`negatives`).
    Bengio and Senecal, "Adaptive importance sampling ...", 2008 (`importance`).
    Jean et al., "On using very large target vocabulary ...", 2014 (`candidate`).

    Examples
    --------
    >>> import numpy as np
    >>> import samplesoft
    >>> result = samplesoft.exact_bias([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], num_sampled=5)
    >>> result.bias.round(4)
    array([ 0.0035,  0.0323, -0.0359])
    >>> float(abs(result.bias.sum())) < 1e-15
    True

    A sampler in place of q, with context vectors `h` if it uses them (here q without the label is
    the same as above):

    >>> sampler = samplesoft.samplers.UniformSampler(3)
    >>> samplesoft.exact_bias([0.0, 1.0, 2.0], 0, sampler, num_sampled=5).bias.round(4)
    array([ 0.0035,  0.0323, -0.0359])

    The class with the largest logit is always included:

    >>> samplesoft.exact_bias([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, certain=[2]).bias.round(4)
    array([ 0., -0.,  0.])

    Draws by counts that are corrected as if they were uniform. More draws do not remove this bias:

    >>> logits, q, ones = [0.0, 1.0, 2.0], [0.2, 0.6, 0.2], np.ones(3)
    >>> for m in 10, 1000:
    ...     result = samplesoft.exact_bias(
    ...         logits, 0, q, m, scheme="masked", correction=ones / 3
    ...     )
    ...     print(result.bias.round(3))
    [ 0.012  0.258 -0.27 ]
    [ 0.007  0.229 -0.236]
    """
    if is_dask(logits) or is_dask(q):
        require_none_with_dask(h=h, certain=certain, correction=correction, executor=executor)
        return ExactBias(*bias_of_dask(logits, labels, q, num_sampled, scheme))
    inputs = check_inputs(
        logits,
        labels,
        q,
        num_sampled,
        scheme,
        h,
        certain,
        allows_always_included=True,
        takes_missing=correction is not None,
        takes_distinct=True,
    )
    require_digits(inputs)
    rows = None
    if correction is not None:
        rows = np.broadcast_to(check_correction(correction, inputs), inputs.logits.shape)
    result = exact_bias_of(inputs, rows, as_executor(executor))

    # with replacement, a correction other than q makes the bias far larger than its error
    warning = lost_digits(result, inputs) if rows is None or inputs.scheme.distinct else None
    if warning is not None:
        warnings.warn(warning, RuntimeWarning, stacklevel=2)
    return result


def exact_bias_of(
    inputs: Inputs, corrections: FloatArray | None = None, executor: Executor | None = None
) -> ExactBias:
    """Return the exact bias of checked inputs.

    `corrections` (B, n) are the divisors of the draws; by default, they are the proposal of
    `inputs`. The examples are computed by `executor` if there is one.
    """
    if executor is None:
        return ExactBias(*inputs.columns(_example_biases((inputs, corrections))))
    tasks = (
        (inputs.of(examples), None if corrections is None else corrections[examples])
        for examples in inputs.parts()
    )
    rows = chain.from_iterable(run_tasks(_example_biases, tasks, executor))
    return ExactBias(*inputs.columns(rows))


def _example_biases(task: tuple[Inputs, FloatArray | None]) -> list[ExampleBias]:
    """Return the exact bias of each example of a task, which is (inputs, corrections)."""
    inputs, corrections = task
    if corrections is None:
        return [_bias_with_merged_label(row, inputs) for row in inputs.rows()]
    pairs = zip(corrections, inputs.rows(), strict=True)
    return [_bias_with_correction(correction, row, inputs) for correction, row in pairs]


def _bias_with_correction(correction: FloatArray, example: Example, inputs: Inputs) -> ExampleBias:
    """Return the exact bias of one example whose draws are corrected by `correction` (n,).

    A weight ``e_j / (m c_j)`` equals ``e'_j / (m q_j)`` with ``e'_j = e_j q_j / c_j``. So E[p'] is
    the same as for logits o' = o + log(q / c), corrected by q. The bias is the bias for o' plus the
    difference softmax(o') - softmax(o), eq. (B81).
    """
    logits, label, q = example
    scheme = inputs.scheme
    n = len(q)
    if scheme.distinct:
        return set_bias(example, inputs.num_sampled, scheme, correction)
    always_in = np.zeros(n, bool)
    always_in[inputs.certain] = always_in[label] = True
    label_moves = scheme.corrects_label or scheme.draws_label
    shifted = (q > 0.0) & (label_moves | ~always_in)
    conditional = scheme.divides_by_accepted or (scheme.excludes_label and not scheme.independent)
    total = 1.0 if scheme.independent else float(q[~always_in].sum() if conditional else q.sum())
    shift = np.zeros(n)
    shift[shifted] = _log_quotient(q[shifted] / total, correction[shifted])
    in_sum = shifted | always_in
    new_label = label
    if q[label] == 0.0 and label_moves:  # the label is never drawn
        if scheme.corrects_label:  # the label has the mass e_t / (m c_t) in every outcome
            shift[label] = -math.log(inputs.num_sampled) - math.log(correction[label])
            inputs = replace(inputs, scheme=SCHEMES["masked"])
        else:  # S does not contain the label, so any other class may take its role
            in_sum = shifted
            new_label = int(shifted.argmax())
    kept = np.flatnonzero(in_sum)

    # only differences of logits matter, and logits minus their maximum have smaller rounding errors
    with np.errstate(over="ignore"):
        centred = np.maximum(logits[kept] - logits[kept].max(), -LARGEST_FLOAT)
    new_logits = centred + shift[kept]
    indices = np.searchsorted(kept, np.append(inputs.certain, new_label))
    row = _bias_with_merged_label(
        (new_logits, int(indices[-1]), q[kept]), replace(inputs, certain=indices[:-1])
    )

    # difference between the two softmaxes
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    with np.errstate(over="ignore"):
        # the naive exp(log_p + shift) - p cancels where the shift is small: for |shift| < 1 take
        # p expm1(shift); for |shift| >= 1 take the difference, because p may underflow
        near = probs * np.expm1(np.clip(shift, -1.0, 1.0))
        far = np.exp(log_probs + shift) - probs
        change = np.where(in_sum, np.where(np.abs(shift) < 1.0, near, far), -probs)
        gain = float(change.sum())  # (sum of exp(o')) / (sum of exp(o)) - 1

    if abs(gain) < 0.5:
        bias = (change - probs * gain) / (1.0 + gain)
        log_gain = math.log1p(gain)
        # p = exp(log p) has a relative error of about |log p| EPS
        sizes = np.abs(change) * (2.0 - np.maximum(log_probs, -LARGEST_EXPONENT))
        rounding = 2.0 * float(sizes.sum()) / (1.0 + gain)
    else:  # the softmaxes are far apart, and their difference loses no digits
        bias = -probs
        bias[kept] += row.probs
        log_gain = float(np.logaddexp.reduce(log_probs[kept] + shift[kept]))
        rounding = 2.0
    bias[kept] += row.bias
    loss_bias = row.loss_bias + log_gain - (shift[label] if scheme.corrects_label else 0.0)

    # rounding of the modified logits changes the p' of their classes
    unit = float(np.spacing(np.abs(centred) + np.abs(shift[kept])).max()) + 4.0 * EPS
    affected_mass = 1.0 if label_moves else float(np.abs(probs + bias)[~always_in].sum())
    error = row.error + 2.0 * EPS * rounding + 2.0 * unit * affected_mass
    loss_error = row.loss_error + 2.0 * EPS * rounding
    loss_error += unit * (1.0 + abs(log_gain) + abs(shift[label]))

    return ExampleBias(bias, probs, loss_bias, error, loss_error)


def _log_quotient(numerators: FloatArray, divisors: FloatArray) -> FloatArray:
    """Return log(numerators / divisors), (k,), also where the quotient is beyond float64.

    The naive log(a) - log(b) cancels where a is near b, and a / b may overflow or underflow. So
    take log(a / b) where it is within +-700, and log(a) - log(b) elsewhere.
    """
    with np.errstate(over="ignore", divide="ignore"):
        logs: FloatArray = np.log(numerators / divisors)
    far = np.abs(logs) > _MAX_LOG_QUOTIENT
    logs[far] = np.log(numerators[far]) - np.log(divisors[far])
    return logs


def bias_of_example(example: Example, inputs: Inputs) -> ExampleBias:
    """Return the exact bias of one example without always-included classes."""
    if inputs.scheme.distinct:
        return set_bias(example, inputs.num_sampled, inputs.scheme)
    if inputs.scheme.independent:
        return poisson_bias(*example)
    return with_replacement_bias(*example, inputs.num_sampled, inputs.scheme)


def _bias_with_merged_label(example: Example, inputs: Inputs) -> ExampleBias:
    """Return the exact bias of one example, with always-included classes merged into the label."""
    if not len(inputs.certain):
        return bias_of_example(example, inputs)
    merged = merge_certain_into_label(*example, inputs.certain)
    row = bias_of_example(merged[:3], inputs)
    shift = merged.rounding * float(np.abs(row.bias).sum())
    row = row._replace(
        bias=merged.unmerged_values(row.bias), probs=merged.unmerged_values(row.probs)
    )
    return row._replace(error=row.error + shift, loss_error=row.loss_error + shift)


def lost_digits(result: ExactBias, inputs: Inputs, first: int = 0) -> str | None:
    """Return a warning about the first example whose bias has lost digits, or None.

    `first` is the index of the first example of `result`, for the message.
    """
    size = np.abs(result.bias).sum(axis=-1)
    error = np.asarray(result.error)
    imprecise = np.flatnonzero(loses_digits(error, size))
    if not len(imprecise):
        return None
    rows = list(inputs.rows())

    for row in map(int, imprecise):  # if q is the softmax, the whole bias is rounding: no warning
        if not (error.flat[row] < _MAX_SOFTMAX_ROUNDING and _is_softmax(*rows[row], inputs.scheme)):
            break
    else:
        return None

    return (
        f"the bias of scheme={inputs.scheme.name!r} may be off by {error.flat[row]:.1e} in the L1 "
        f"norm, where its own is {size.flat[row]:.1e} (example {first + row}); see ExactBias.error "
        "before you rely on its digits."
    )


def _is_softmax(logits: FloatArray, label: int, q: FloatArray, scheme: Scheme) -> bool:
    """Return whether q is the softmax of the negatives up to rounding.

    The computed bias then consists of rounding errors.
    """
    if scheme.independent or not scheme.excludes_label:
        return False
    others = np.delete(logits, label)
    with np.errstate(divide="ignore", invalid="ignore"):  # always-included classes may have q = 0
        spread = float(np.ptp(others - np.log(np.delete(q, label))))
    return spread <= SOFTMAX_ROUNDING * (1.0 + float(np.abs(others).max()))
