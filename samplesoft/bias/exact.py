"""The exact bias of sampled softmax, by one integral and no sampling.

Read in this order; numbers (B1), (B2), ... are the equations of ``README.md`` beside this file:

1. ``exact.py``: the public function, and the result.
2. ``inputs.py``: the arguments, checked once, and the classes that are in S for certain; the facts
   of a scheme stand in ``samplesoft/schemes.py``.
3. ``with_replacement/``: the integral, for draws with replacement; its ``__init__.py`` lists its
   files in the order to read them.

``poisson.py`` stands in for 3 where each class is included for itself, ``without_replacement/`` for
draws without replacement, and ``chunks/`` for classes in chunks.
``plain.py`` has the whole in a hundred lines of NumPy, with fewer digits.
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
    contract,
    is_dask,
    ldexp_or_inf,
    merge_certain_into_label,
    require_digits,
    require_only_chunks,
    scaled_to_avoid_overflow,
)
from samplesoft.bias.numerics.quadrature import ExampleBias
from samplesoft.bias.numerics.summation import EPS, LARGEST_FLOAT, log_softmax
from samplesoft.bias.poisson import poisson_bias
from samplesoft.bias.with_replacement.integral import loses_digits, with_replacement_bias
from samplesoft.bias.without_replacement.set_bias import set_bias
from samplesoft.schemes import SCHEMES, Scheme

_LARGEST_LOG = 700.0  # of a quotient that is an ordinary number
_ROUNDING = 1e-8  # of the probabilities of a softmax, at most
SOFTMAX_ROUNDING = 16.0 * 2.0**-52  # relative error of the q of a softmax, for logits of order 1


@dataclass(frozen=True)
class ExactBias:
    """The exact expectation of sampled softmax beside the full softmax.

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
        Where draws are without replacement, the probability that the set of the draws holds a
        class.
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
        """Return the bias of the gradient in other parameters.

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
        return ldexp_or_inf(contract(self.bias, jac), excess)


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
        Finite logits o. A Dask array is read chunk by chunk, in several passes, by whatever
        scheduler Dask has; its bias is a Dask array, too. See `samplesoft.bias.BiasSums`.
    labels : int or array_like of int, shape (B,)
        The true class t.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all n classes, one for all examples or one for each; or an object with a
        method ``probs(h)``, such as a sampler. ``negatives``, ``jackknife`` and ``reject``
        condition it on not being the label; of a sampler the first two take
        ``probs(h, exclude=labels)``, what it then draws. It sums to 1 up to 1e-4, as float32 does,
        and is divided by its sum; up to 1e-6 of a Dask array. For ``poisson`` the probabilities
        with which the classes are included.
    num_sampled : int
        Number m of draws, at least 1; at least 2 for the jackknives. Of no effect for
        ``poisson``.
    scheme : str
        How the draws become a loss, log S - o_t; e = exp(o).

        - ``negatives``: S = e_t + sum of e_j / (m qn_j) over m draws from qn, which is q given
          "not the label".
        - ``masked``: m draws from q, of which those equal to t have no weight.
        - ``reject``: m draws from q, of which those equal to t are dropped and m replaced by
          the number K that is left, q by qn; without any left p' = 1 on t.
        - ``candidate``: the label's logit is corrected too, S = e_t / (m q_t) + sum of
          e_j / (m q_j); t may be drawn and then counts as a negative as well.
        - ``candidate_masked``: the same without the draws of t.
        - ``importance``: S = sum of e_j / (m q_j), with no term for the label.
        - ``poisson``: class j is included with probability q_j, S = e_t + sum of e_j / q_j.
        - ``jackknife``, ``jackknife_masked``: m L'_m - (m - 1) times the mean of L'_{m-1} over the
          draws left out, with the losses L' of ``negatives`` and of ``masked``.
        - ``distinct``: S = e_t + sum of e_j / pi_j over m distinct negatives, drawn without
          replacement: in turn, each in proportion to q among those that are left. pi_j is the
          probability that class j is among them.
        - ``distinct_masked``, ``distinct_candidate``, ``distinct_candidate_masked``,
          ``distinct_importance``: the same of all classes, with the label as in the schemes of
          these names: pi_j in place of m q_j.
    h : array_like, shape (d,) or (B, d), optional
        Context vectors, where `q` is a sampler that looks at them.
    certain : array_like of int, shape (k,), optional
        Classes whose e is in S for certain, beside the label's and the draws; a
        `samplesoft.samplers.CertainSampler` as `q` brings its own. For ``negatives``, ``masked``,
        ``reject`` and their jackknives: there S gets the sum of e_j over those that are not the
        label, and a draw of one of them counts as one of the label does.
    correction : array_like, shape (n,) or (B, n), optional
        What draws are corrected by where it is not what they are drawn by: numbers above 0, by
        which the formulas of `scheme` divide in place of ``q`` and ``qn``, as they are. Stale or
        estimated probabilities, for example; or ``1 / m`` for a sum of e_j without correction, as
        in InfoNCE. `q` may then be 0: such classes are never drawn. The correction of a label
        counts where the scheme corrects its logit. Without replacement it takes the place of pi.
    executor : concurrent.futures.Executor, optional
        Whose workers share the examples out, each on one thread: pools of threads or processes, or
        ``client.get_executor(pure=False)`` of Dask. The result has the same bits as without.

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
        If the estimated error is above 1e-10 of the L1 norm of the bias, which happens with the
        jackknives, and with ``distinct`` schemes of many draws, where the bias is very small. Not
        where q is the softmax among the classes that are drawn, up to rounding: its bias is made of
        that rounding alone.

    Notes
    -----
    From 1/S = int exp(-u S) du, E[p'_j] is a one-dimensional integral over powers of the Laplace
    transform sum_j q_j exp(-v r_j) of one draw, with r_j = e_j / q_j; ``samplesoft/bias/README.md``
    derives it step by step. The difference from p is taken under the integral, class by class
    against one reference, so it keeps its digits where the bias is many orders below p. The cost is
    O(n), the memory O(n), at any m. ``poisson`` costs O(n) for each of a few hundred nodes, and
    ``distinct`` seconds for some thousand classes, more for more draws. The first call compiles for
    some ten seconds. As m grows ``candidate`` tends to the full softmax, ``candidate_masked`` to
    the softmax without the label.

    The label and the `certain` classes are one class for all of this, which is never drawn: in
    every outcome they share its p' in the same proportions. With all classes certain nothing is
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

    A sampler in place of q, with its contexts `h` if it looks at them (here q is the same without
    the label):

    >>> sampler = samplesoft.samplers.UniformSampler(3)
    >>> samplesoft.exact_bias([0.0, 1.0, 2.0], 0, sampler, num_sampled=5).bias.round(4)
    array([ 0.0035,  0.0323, -0.0359])

    The largest class is certain:

    >>> samplesoft.exact_bias([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5, certain=[2]).bias.round(4)
    array([ 0., -0.,  0.])

    Draws by counts that are corrected as if they were uniform: no number of draws mends that:

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
        require_only_chunks(h=h, certain=certain, correction=correction, executor=executor)
        return ExactBias(*bias_of_dask(logits, labels, q, num_sampled, scheme))
    inputs = check_inputs(
        logits,
        labels,
        q,
        num_sampled,
        scheme,
        h,
        certain,
        takes_certain=True,
        takes_missing=correction is not None,
        takes_distinct=True,
    )
    require_digits(inputs)
    rows = None
    if correction is not None:
        rows = np.broadcast_to(check_correction(correction, inputs), inputs.logits.shape)
    result = exact_bias_of(inputs, rows, as_executor(executor))
    # with replacement, another correction makes a bias that is far above its error
    lost = lost_digits(result, inputs) if rows is None or inputs.scheme.distinct else None
    if lost is not None:
        warnings.warn(lost, RuntimeWarning, stacklevel=2)
    return result


def exact_bias_of(
    inputs: Inputs, corrections: FloatArray | None = None, executor: Executor | None = None
) -> ExactBias:
    """Return `exact_bias` of arguments that are checked, with `corrections` (B, n) if any."""
    if executor is None:
        return ExactBias(*inputs.columns(_rows_of((inputs, corrections))))
    tasks = (
        (inputs.of(part), None if corrections is None else corrections[part])
        for part in inputs.parts()
    )
    rows = chain.from_iterable(run_tasks(_rows_of, tasks, executor))
    return ExactBias(*inputs.columns(rows))


def _rows_of(task: tuple[Inputs, FloatArray | None]) -> list[ExampleBias]:
    inputs, corrections = task
    if corrections is None:
        return [_of_row(row, inputs) for row in inputs.rows()]
    pairs = zip(corrections, inputs.rows(), strict=True)
    return [_corrected_by(correction, row, inputs) for correction, row in pairs]


def _corrected_by(correction: FloatArray, example: Example, inputs: Inputs) -> ExampleBias:
    """Return the exact bias of one example whose draws are corrected by `correction` (n,).

    A weight ``e_j / (m c_j)`` is ``e'_j / (m q_j)`` with ``e'_j = e_j q_j / c_j``. So the
    expectation equals that for other logits o', and the bias gains the difference softmax(o') -
    softmax(o), eq. (B81).
    """
    logits, label, q = example
    scheme, n = inputs.scheme, len(q)
    if scheme.distinct:
        return set_bias(example, inputs.num_sampled, scheme, correction)
    own = np.zeros(n, bool)
    own[inputs.certain] = own[label] = True
    moves_own = scheme.corrects_label or scheme.draws_label
    moved = (q > 0.0) & (moves_own | ~own)
    conditional = scheme.divides_by_kept or (scheme.excludes_label and not scheme.independent)
    total = 1.0 if scheme.independent else float(q[~own].sum() if conditional else q.sum())
    shift = np.zeros(n)
    shift[moved] = _log_quotient(q[moved] / total, correction[moved])
    there, place = moved | own, label
    if q[label] == 0.0 and moves_own:  # no draw is of the label
        if scheme.corrects_label:  # whose mass in S is e_t / (m c_t), whatever is drawn
            shift[label] = -math.log(inputs.num_sampled) - math.log(correction[label])
            inputs = replace(inputs, scheme=SCHEMES["masked"])
        else:  # which is not in S: another one may be called the label
            there = moved
            place = int(moved.argmax())
    kept = np.flatnonzero(there)
    # rounded as a distance, for only distances count
    with np.errstate(over="ignore"):
        away = np.maximum(logits[kept] - logits[kept].max(), -LARGEST_FLOAT)
    other = away + shift[kept]
    places = np.searchsorted(kept, np.append(inputs.certain, place))
    row = _of_row((other, int(places[-1]), q[kept]), replace(inputs, certain=places[:-1]))

    # difference between the two softmaxes
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    with np.errstate(over="ignore"):
        # the first keeps digits where nearly nothing changes, the second where p underflows
        near, far = probs * np.expm1(np.clip(shift, -1.0, 1.0)), np.exp(log_probs + shift) - probs
        change = np.where(there, np.where(np.abs(shift) < 1.0, near, far), -probs)
        gain = float(change.sum())  # of the partition function
    if abs(gain) < 0.5:
        bias = (change - probs * gain) / (1.0 + gain)
        log_gain = math.log1p(gain)
        # p is the exponential of a log, by whose size it is off
        sizes = np.abs(change) * (2.0 - np.maximum(log_probs, -LARGEST_EXPONENT))
        rounding = 2.0 * float(sizes.sum()) / (1.0 + gain)
    else:  # far apart, where a difference loses nothing
        bias = -probs
        bias[kept] += row.probs
        log_gain = float(np.logaddexp.reduce(log_probs[kept] + shift[kept]))
        rounding = 2.0
    bias[kept] += row.bias
    loss_bias = row.loss_bias + log_gain - (shift[label] if scheme.corrects_label else 0.0)
    # the other logits are rounded, and with them the p' of the classes that they are of
    unit = float(np.spacing(np.abs(away) + np.abs(shift[kept])).max()) + 4.0 * EPS
    reached = 1.0 if moves_own else float(np.abs(probs + bias)[~own].sum())
    error = row.error + 2.0 * EPS * rounding + 2.0 * unit * reached
    loss_error = row.loss_error + 2.0 * EPS * rounding
    loss_error += unit * (1.0 + abs(log_gain) + abs(shift[label]))
    return ExampleBias(bias, probs, loss_bias, error, loss_error)


def _log_quotient(numerators: FloatArray, divisors: FloatArray) -> FloatArray:
    """Return log of the quotients (k,) of numbers above 0, which floats need not reach."""
    # a quotient first, for it is near 1 where a correction is nearly right
    with np.errstate(over="ignore", divide="ignore"):
        logs: FloatArray = np.log(numerators / divisors)
    far = np.abs(logs) > _LARGEST_LOG
    logs[far] = np.log(numerators[far]) - np.log(divisors[far])
    return logs


def bias_of_example(example: Example, inputs: Inputs) -> ExampleBias:
    """Return the exact bias of logits, label and q of one example, without certain classes."""
    if inputs.scheme.distinct:
        return set_bias(example, inputs.num_sampled, inputs.scheme)
    if inputs.scheme.independent:
        return poisson_bias(*example)
    return with_replacement_bias(*example, inputs.num_sampled, inputs.scheme)


def _of_row(example: Example, inputs: Inputs) -> ExampleBias:
    """Return the exact bias of one example, whose label the certain classes join."""
    if not len(inputs.certain):
        return bias_of_example(example, inputs)
    merged = merge_certain_into_label(*example, inputs.certain)
    row = bias_of_example(merged[:3], inputs)
    shift = merged.rounding * float(np.abs(row.bias).sum())
    row = row._replace(bias=merged.spread(row.bias), probs=merged.spread(row.probs))
    return row._replace(error=row.error + shift, loss_error=row.loss_error + shift)


def lost_digits(result: ExactBias, inputs: Inputs, first: int = 0) -> str | None:
    """Return a warning if a bias is not sure of its digits; `first` numbers the first example."""
    size, error = np.abs(result.bias).sum(axis=-1), np.asarray(result.error)
    lost = np.flatnonzero(loses_digits(error, size))
    if not len(lost):
        return None
    rows = list(inputs.rows())
    for row in map(int, lost):  # of the softmax itself rounding is all of the bias
        if not (error.flat[row] < _ROUNDING and _is_softmax(*rows[row], inputs.scheme)):
            break
    else:
        return None
    return (
        f"the bias of scheme={inputs.scheme.name!r} may be off by {error.flat[row]:.1e} in the L1 "
        f"norm, where its own is {size.flat[row]:.1e} (example {first + row}); see ExactBias.error "
        "before you rely on its digits."
    )


def _is_softmax(logits: FloatArray, label: int, q: FloatArray, scheme: Scheme) -> bool:
    """Whether q is the softmax of the negatives to rounding, which is then all of the bias."""
    if scheme.independent or not scheme.excludes_label:
        return False
    others = np.delete(logits, label)
    with np.errstate(divide="ignore", invalid="ignore"):  # a class that is certain may have q = 0
        spread = float(np.ptp(others - np.log(np.delete(q, label))))
    return spread <= SOFTMAX_ROUNDING * (1.0 + float(np.abs(others).max()))
