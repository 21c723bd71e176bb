"""The exact bias of sampled softmax, by one integral and no sampling."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.bias.certain import join
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.jacobian import check_jacobian, contract, times_power, with_room
from samplesoft.bias.poisson import poisson_bias
from samplesoft.bias.with_replacement import Row, with_replacement_bias
from samplesoft.schemes import Scheme

SURE = 1e-10  # L1 norm of errors, relative to that of a bias, above which one is told
LOST = 1e-290  # near the least numbers of float64, all have few digits
ROUNDING = 16.0 * 2.0**-52  # relative error of the q of a softmax, for logits of order 1


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
    """

    bias: FloatArray
    probs: FloatArray
    loss_bias: Any
    error: Any
    loss_error: Any

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
        jac, excess = with_room(check_jacobian(jacobian, self.bias.shape))
        return times_power(contract(self.bias, jac), excess)


def exact_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
    certain: Any = None,
) -> ExactBias:
    """Compute exactly what sampled softmax does to the gradient, for one example or a batch.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels : int or array_like of int, shape (B,)
        The true class t.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all n classes, one for all examples or one for each; or an object with a
        method ``probs(h)``, such as a sampler. ``negatives``, ``jackknife`` and ``reject``
        condition it on not being the label; of a sampler the first two take
        ``probs(h, exclude=labels)``, what it then draws. For ``poisson`` the probabilities with
        which the classes are included.
    num_sampled : int
        Number m of draws, at least 1; at least 2 for the jackknives. Of no effect for
        ``poisson``.
    scheme : str or samplesoft.schemes.Scheme
        How the draws become a loss; e = exp(o), S is the sum below the fraction.

        - ``negatives``: S = e_t + sum of e_j / (m q_j) over m draws that are not the label.
        - ``masked``: m draws from q, of which those equal to t have no weight.
        - ``reject``: m draws from q, of which those equal to t are dropped and m replaced by
          the number K that is left; without any left p' = 1 on t.
        - ``candidate``: the label's logit is corrected too, S = e_t / (m q_t) + sum of
          e_j / (m q_j); t may be drawn and then counts as a negative as well.
        - ``candidate_masked``: the same without the draws of t.
        - ``importance``: S = sum of e_j / (m q_j), with no term for the label.
        - ``poisson``: class j is included with probability q_j, S = e_t + sum of e_j / q_j.
        - ``jackknife``, ``jackknife_masked``: m L'_m - (m - 1) times the mean of L'_{m-1} over the
          draws left out, with the losses L' of ``negatives`` and of ``masked``.
    h : array_like, shape (d,) or (B, d), optional
        Context vectors, where `q` is a sampler that looks at them.
    certain : array_like of int, shape (k,), optional
        Classes whose e is in S for certain, beside the label's and the draws; a
        `samplesoft.samplers.CertainSampler` as `q` brings its own. For ``negatives``, ``masked``,
        ``reject`` and their jackknives: there S gets the sum of e_j over those that are not the
        label, and a draw of one of them counts as one of the label does.

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
        If the estimated error is above 1e-10 of the L1 norm of the bias, which happens with
        the jackknives where the bias is very small. Not where q is the softmax among the classes
        that are drawn, up to rounding: its bias is made of that rounding alone.

    Notes
    -----
    From 1/S = int exp(-u S) du, E[p'_j] is a one-dimensional integral over powers of
    the Laplace transform sum_j q_j exp(-u w_j) of one draw; ``samplesoft/bias/README.md`` derives
    it step by step. The difference from p is taken under the integral, pair by
    pair of classes, so it keeps its digits where the bias is many orders below p. The cost is
    O(n), the memory O(n), at any m (``poisson`` costs O(n) for each of a few hundred nodes). As m
    grows ``candidate`` tends to the full softmax, ``candidate_masked`` to the softmax without the
    label.

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
    """
    return exact_bias_of(
        check_inputs(logits, labels, q, num_sampled, scheme, h, certain, takes_certain=True)
    )


def exact_bias_of(inputs: Inputs) -> ExactBias:
    """Return `exact_bias` of arguments that are checked."""
    if inputs.scheme.independent:
        rows = [poisson_bias(*row) for row in inputs.rows()]
    else:
        rows = [_with_certain(row, inputs) for row in inputs.rows()]
    result = ExactBias(*inputs.columns(rows))
    _warn_of_lost_digits(result, inputs)
    return result


def _with_certain(row: tuple[FloatArray, int, FloatArray], inputs: Inputs) -> Row:
    """Return the exact bias of one example, whose label the certain classes join."""
    how = inputs.num_sampled, inputs.scheme
    if not len(inputs.certain):
        return with_replacement_bias(*row, *how)
    joined = join(*row, inputs.certain)
    found = with_replacement_bias(joined.logits, joined.label, joined.q, *how)
    shift = joined.rounding * float(np.abs(found.bias).sum())
    return Row(
        joined.spread(found.bias),
        joined.spread(found.probs),
        found.loss_bias,
        found.error + shift,
        found.loss_error + shift,
    )


def _warn_of_lost_digits(result: ExactBias, inputs: Inputs) -> None:
    size, error = np.abs(result.bias).sum(axis=-1), np.asarray(result.error)
    lost = np.flatnonzero(error > np.maximum(SURE * size, LOST))
    if not len(lost):
        return
    rows = list(inputs.rows())
    row = next((int(i) for i in lost if not _is_softmax(*rows[i], inputs.scheme)), None)
    if row is not None:
        warnings.warn(
            f"the bias of scheme={inputs.scheme.name!r} may be off by {error.flat[row]:.1e} in the "
            f"L1 norm, where its own is {size.flat[row]:.1e} (example {row}); see ExactBias.error "
            "before you rely on its digits.",
            RuntimeWarning,
            stacklevel=4,
        )


def _is_softmax(logits: FloatArray, label: int, q: FloatArray, scheme: Scheme) -> bool:
    """Whether q is the softmax of the negatives to rounding, which is then all of the bias."""
    if scheme.independent or not scheme.excludes_label:
        return False
    others = np.delete(logits, label)
    with np.errstate(divide="ignore", invalid="ignore"):  # a class that is certain may have q = 0
        spread = float(np.ptp(others - np.log(np.delete(q, label))))
    return spread <= ROUNDING * (1.0 + float(np.abs(others).max()))
