"""Exact bias, variance and mean squared error of the gradient in the input embedding h.

Section 9 of ``samplesoft/bias/README.md`` derives the integrals. They have one shape, an integral
over nodes of squares: for draws, for classes that are included independently of each other, and for
the jackknife in ``figures/jackknife_moments.py``. Draws without replacement (section 22) have nodes
in two times and on a circle. Each comes with the sizes of what it adds up, which say how large the
error is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, njit, thread_each, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._temperature import require_squares
from samplesoft._validation import FloatArray, IntArray, as_positive, as_real_array
from samplesoft.bias import poisson
from samplesoft.bias.chunks.dask import rows_of_dask
from samplesoft.bias.chunks.passes import BiasSums, ChunkBias, Known, Pass, check_chunk
from samplesoft.bias.exact import bias_of_example
from samplesoft.bias.inputs import (
    Example,
    Inputs,
    check_inputs,
    is_dask,
    merge_certain_into_label,
    require_digits,
    require_only_chunks,
)
from samplesoft.bias.numerics.quadrature import (
    STEP,
    ExampleBias,
    estimate_error,
    halving_change,
    rounding_at,
)
from samplesoft.bias.numerics.summation import EPS, Sum
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.draws import Draws, draws_of_chunk, make_draws
from samplesoft.bias.with_replacement.node_weights import log_kept
from samplesoft.bias.with_replacement.nodes import Nodes, lost_nodes, make_nodes
from samplesoft.bias.with_replacement.ratios import Ratios, make_ratios, ratios_of_chunk
from samplesoft.bias.without_replacement import successive
from samplesoft.schemes import Scheme

_CHUNK_NUMBERS = 1 << 20  # nodes times classes at a time
_LARGEST = 150.0 * np.log(10.0)  # of log y: its square is finite
_MOST_EXPONENT = 1e4  # what falls by more is 0
_SET_CLASSES = 2048  # at a time
_SET_LEFT_OUT = 1e-18  # by the ends of the nodes in t, and of the circles
_SET_GONE = 1e-19
_MATTERS = -45.0  # of log weights, above which a node adds digits
_LEAST = 1e-290  # of the squared class vectors: near the least numbers all have few digits


@dataclass(frozen=True)
class GradientMoments:
    """Error of the sampled gradient in h: ``mse = squared_bias + variance``.

    Attributes
    ----------
    squared_bias, variance, mse : float or ndarray, shape (B,)
        Squared Euclidean norms, in the units of the squared gradient in h.
    error : float or ndarray, shape (B,)
        Estimated numerical error of each of them: quadrature and rounding. A variance far below
        the squared bias, or below its own error, has few digits or none.
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
    """Compute exactly how far one sampled gradient in h is from the full one.

    The gradient of the loss in h is tau * (sum_i p'_i c_i - c_t).

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o = tau * h . c. Dask arrays, also of `q` and `class_embeddings`, are read
        chunk by chunk; fewer than ten draws may then be refused.
    labels, q, h, certain
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number m of draws, at least 1.
    class_embeddings : array_like, shape (n, d)
        Class vectors c.
    tau : float
        Inverse temperature.
    scheme : str
        As for `samplesoft.exact_bias`, but for the jackknife.

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
    ``samplesoft/bias/README.md`` shows, and section 22 for draws without replacement. These have
    some 100,000 nodes, for each of which a product with all class vectors is taken: 1,000 classes
    of 64 numbers take seconds, and 10,000 a minute, where draws with replacement take milliseconds.
    What of a variance lies below 1e-18 of the largest squared class vector, they do not tell.

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

    Three draws from four classes beside the label, with and without replacement:

    >>> for scheme in "negatives", "distinct":
    ...     moments = samplesoft.exact_gradient_moments(
    ...         [0.0, 1.0, 2.0, 0.5, 1.5], 0, [0.2] * 5, 3, [[x] for x in range(5)], scheme=scheme
    ...     )
    ...     print(round(moments.variance, 4))
    0.3889
    0.1233
    """
    if is_dask(logits) or is_dask(q) or is_dask(class_embeddings):
        require_only_chunks(h=h, certain=certain)
        return _of_dask(logits, labels, q, num_sampled, class_embeddings, tau, scheme)
    inputs = check_inputs(
        logits,
        labels,
        q,
        num_sampled,
        scheme,
        h,
        certain,
        takes_certain=True,
        require=_require_no_jackknife,
    )
    require_digits(inputs)
    return exact_gradient_moments_of(inputs, class_embeddings, tau)


def exact_gradient_moments_of(
    inputs: Inputs, class_embeddings: ArrayLike, tau: float = 1.0
) -> GradientMoments:
    """Return `exact_gradient_moments` of other arguments that are checked."""
    _require_no_jackknife(inputs.scheme)
    return moments_by(inputs, class_embeddings, tau, _draws_square)


def _require_no_jackknife(scheme: Scheme) -> None:
    if scheme.jackknife:
        raise ValueError(
            f"`scheme` must be one without the jackknife, got {scheme.name!r}; the module "
            "figures/jackknife_moments.py of the repository has its moments."
        )


def moments_by(
    inputs: Inputs,
    class_embeddings: ArrayLike,
    tau: float,
    square_of: Callable[[Draws, FloatArray], tuple[float, float]],
) -> GradientMoments:
    """Return the moments of checked arguments.

    `square_of` returns E|sum_i p'_i c_i|**2 and its error, of draws and of vectors (n, d) whose
    mean under the softmax is 0.
    """
    vectors, scale = check_vectors(class_embeddings, inputs.logits.shape[1], tau)
    rows = []
    for example in inputs.rows():
        rows_of_c, joining = vectors, 0.0
        if len(inputs.certain):
            merged = merge_certain_into_label(*example, inputs.certain)
            # a constant is free, and digits of what vectors have in common would be lost in means
            rows_of_c = merged.mean_rows(vectors - vectors[example[1]])
            example, joining = merged[:3], merged.rounding
        row = bias_of_example(example, inputs)
        centred = centre(rows_of_c, row.probs)
        if inputs.scheme.independent:
            mse, rounding = _inclusion_square(example, centred)
        elif inputs.scheme.distinct:
            mse, rounding = _set_square(example, inputs, centred)
        else:
            draws = make_draws(*example, inputs.num_sampled, inputs.scheme)
            mse, rounding = square_of(draws, centred)
        squared_bias, error = _squared_bias(row, rows_of_c)
        squared_bias, mse = scale * squared_bias, scale * max(mse, squared_bias)
        error = scale * (error + rounding) + (joining + 4.0 * EPS) * mse
        rows.append((squared_bias, mse - squared_bias, mse, error))
    return GradientMoments(*inputs.columns(rows))


def check_vectors(class_embeddings: ArrayLike, n: int, tau: Any) -> tuple[FloatArray, float]:
    """Return the vectors of n classes, (n, d), and the square of tau, both checked."""
    vectors = as_real_array("class_embeddings", class_embeddings, (2,))
    if len(vectors) != n:
        raise ValueError(
            f"`class_embeddings` must have one row for each of the {n} classes of `logits`, got "
            f"shape {vectors.shape}."
        )
    scale = as_positive("tau", tau)
    require_squares(vectors, scale)
    return vectors, scale * scale


def _squared_bias(row: ExampleBias, vectors: FloatArray) -> tuple[float, float]:
    """Return the squared norm of the bias of the gradient, and its error, for tau = 1."""
    apart = vectors - vectors[np.argmax(row.probs)]  # a constant is free, for the biases sum to 0
    reach = float(np.sqrt(squared_norms(apart).max()))
    rounding = EPS * (len(row.bias) + 8) * float(np.abs(row.bias).sum())
    return _square_with_error(row.bias @ apart, (row.error + rounding) * reach)


def _square_with_error(mean: FloatArray, off: float) -> tuple[float, float]:
    """Return the squared norm of a vector (d,) that is `off` by so much, and its error."""
    squared = float(mean @ mean)
    return squared, off * (2.0 * squared**0.5 + off)


# What the integrals have in common


def centre(vectors: FloatArray, probs: FloatArray) -> FloatArray:
    """Return class vectors (n, d) less their mean under the softmax."""
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred: FloatArray = vectors - vectors[np.argmax(probs)]
    centred -= probs @ centred
    return centred


def _reach(centred: FloatArray, probs: FloatArray) -> FloatArray:
    """Return how large the numbers are that the centred vectors (n, d) come from, (n,)."""
    norms = np.sqrt(squared_norms(centred))
    return norms + float((probs * norms).sum())  # the mean that was taken off is rounded, too


def squared_norms(vectors: FloatArray) -> FloatArray:
    """Return the squared norms (k,) of vectors (k, d)."""
    squares: FloatArray = np.einsum("kd,kd->k", vectors, vectors)
    return squares


def _square_and_error(
    change: FloatArray, size: FloatArray, units: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the squared norms of `change` (K, d), and bounds on their errors, both (K,).

    Terms of the size `size` (K,) add up to `change`; `units` (K,) are their relative errors.
    """
    square, moved = squared_norms(change), units * size
    return square, moved * (2.0 * np.sqrt(square) + moved) + units * square


def _add_up_classes(
    class_terms: Callable[[slice], tuple[FloatArray, FloatArray, FloatArray]],
    num_nodes: int,
    centred: FloatArray,
    reach: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Add up what the classes give to a vector at each node, its size, and what to its square.

    Of the classes of a slice `class_terms` returns what their vectors c are multiplied by, the
    sizes of that, by which `reach` (n,) or (n, k) is, and what |c|**2 is multiplied by, all
    (K, classes). The sums are (K, d), (K,) or (K, k), and (K,).
    """
    squares, num = squared_norms(centred), (num_nodes,)
    sums = np.zeros(num + centred.shape[1:]), np.zeros(num + reach.shape[1:]), np.zeros(num)

    def work(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        rise, size, second = class_terms(part)
        return rise @ centred[part], size @ reach[part], second @ squares[part]

    parts = chunks(len(centred), max(1, _CHUNK_NUMBERS // num_nodes))
    for more in thread_map(work, parts):
        for total, some in zip(sums, more, strict=True):
            total += some
    return sums


def integrate(
    weights: FloatArray, terms: FloatArray, errors: FloatArray, margin: float = 1.0
) -> tuple[float, float]:
    """Return the sum of weighted terms (K,), and its error from theirs and of the quadrature."""
    total = float(weights @ terms)
    coarse = halving_change(weights * terms)  # half the step squares the relative error, (B25)
    quadrature = margin * coarse * min(coarse / max(abs(total), _LEAST), 1.0) ** 0.5
    return total, float(weights @ errors) + quadrature


# Independent draws


class DrawNodes(NamedTuple):
    """The distribution of one draw at the nodes, and the relative error of a term."""

    ratios: Ratios
    atoms: Atoms
    nodes: Nodes
    unit: float


def nodes_of_draws(draws: Draws) -> DrawNodes | None:
    """Evaluate the distribution of one draw; None where p' is the same in every outcome."""
    scheme = draws.scheme
    num_outcomes = np.count_nonzero(draws.drawn) + (scheme.random_count and draws.label_draw > 0.0)
    if num_outcomes <= 1 or (draws.other_mass == 0.0 and not scheme.draws_label):
        return None
    ratios = make_ratios(draws)
    atoms = make_atoms(draws, ratios)
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(draws, ratios, atoms, STEP)
    return DrawNodes(ratios, atoms, nodes, _term_unit(draws))


def _term_unit(draws: Draws) -> float:
    return rounding_at(max(draws.largest_product, draws.largest_base_log))


def _draws_square(draws: Draws, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, or 0 where that is the square of the bias."""
    at = nodes_of_draws(draws)
    if at is None:
        return 0.0, 0.0
    with np.errstate(under="ignore", over="ignore"):
        mse, error = integrate(at.nodes.dx, *_terms(draws, at, centred))
    if draws.scheme.divides_by_kept:  # no draw may be left: then p' is 1 on the label
        none_left = draws.label_draw**draws.num_draws * float(
            squared_norms(centred[[draws.totals.label]])[0]
        )
        return mse + none_left, error + 4.0 * EPS * none_left
    return mse, error


def _terms(draws: Draws, at: DrawNodes, centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the integrand of E|sum_i p'_i c_i|**2 for class vectors (n, d) of mean 0 under p.

    With A = B c_t + sum_k e_k psi_k c_k, it is (B28),
    v E[theta**K (K**2 |A|**2 + K (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2))],
    where K is the number of draws that S is divided by: m, or for some schemes a random one. With
    it come bounds on its rounding.
    """
    log_first, ratio = _node_weights(draws, at.nodes)
    numerator = numerator_moments(draws, at.ratios, at.nodes, centred, 0.5 * log_first)
    return _square_terms(at.unit, log_first, ratio, numerator)


def _node_weights(draws: Draws, nodes: Nodes) -> tuple[FloatArray, FloatArray]:
    """Return log E[K theta**K] at the nodes, and E[K**2 theta**K] over it, both (K,)."""
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    return _count_moments(draws, nodes.log_transform - v_base)


def _square_terms(
    unit: float,
    log_first: FloatArray,
    ratio: FloatArray,
    numerator: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    # half of the weight of each node is in A; in the exponents, no factor overflows
    change, scatter, size, scatter_size = numerator
    # an exponent is known to its relative rounding, and so is what it is the log of
    units = unit * (1.0 + np.minimum(np.abs(log_first), _MOST_EXPONENT))
    square, error = _square_and_error(change, size, units)
    return ratio * square + scatter, ratio * error + units * scatter_size


def numerator_moments(
    draws: Draws, ratios: Ratios, nodes: Nodes, centred: FloatArray, log_half: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return v A, what a draw adds to its square, and the sizes of the terms of both.

    A is that of `_terms`, (K, d). What a draw adds is the scatter, (K,),
    v**2 (sum_k e_k r_k psi_k |c_k|**2 - |sum_k e_k psi_k c_k|**2). The first is times
    exp(`log_half`), (K,), the second times its square.
    """
    own, reach = centred[draws.totals.label], _reach(centred, draws.probs)
    class_terms = partial(_class_terms, draws, ratios, nodes, log_half[:, None])
    sums = _add_up_classes(class_terms, len(nodes.x), centred, reach)
    return _with_label(draws, nodes, log_half, own, float(reach[draws.totals.label]), sums)


def _with_label(
    draws: Draws,
    nodes: Nodes,
    log_half: FloatArray,
    own: FloatArray,
    own_reach: float,
    sums: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return `numerator_moments` of the `sums` over classes and the label's vector `own` (d,)."""
    # A, written as changes from psi_R of the label, if it is not drawn, and of the classes: the
    # centred sum is 0
    change, size, square = sums
    of_label, label_size = _label_change(draws, nodes, log_half)
    change = change + np.outer(of_label, own)
    size = size + label_size * own_reach
    base = np.exp(nodes.x + draws.log_base + log_half)
    drawn_part = change - np.outer(base, own)
    drawn_square = squared_norms(drawn_part)
    drawn_size = size + base * np.sqrt(own @ own)
    scatter_size = square + drawn_square + 2.0 * np.sqrt(drawn_square) * drawn_size
    return change, np.maximum(square - drawn_square, 0.0), size, scatter_size


def _count_moments(draws: Draws, log_theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log E[K theta**K], and E[K**2 theta**K] over it, both (K,)."""
    m = draws.num_draws
    if not draws.scheme.divides_by_kept:
        return math.log(m) + m * log_theta, np.full(len(log_theta), float(m))
    log_mix = log_kept(draws, log_theta)
    log_one = math.log(draws.other_draw) + log_theta
    ratio = 1.0 + (m - 1) * np.exp(log_one - log_mix)
    return math.log(m) + log_one + (m - 1) * log_mix, ratio


def _label_change(
    draws: Draws, nodes: Nodes, log_half: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return v times what A has of c_t beside the draws, less e_t psi_R if the label is not drawn.

    It is weighted by exp(log_half), and comes with the size of its terms. The plain base mass e_t
    is told from e_t psi_R by `above`.
    """
    base = np.exp(nodes.x + draws.log_base + log_half)
    if draws.scheme.draws_label:
        return base, base
    own = nodes.x + draws.log_label + log_half
    with np.errstate(divide="ignore"):
        log_above = np.log(np.abs(nodes.above)) - nodes.log_transform_least
    above = np.exp(own + log_above)
    change: FloatArray = np.sign(nodes.above) * above
    if draws.scheme.corrects_label:
        return change + base - np.exp(own), above + base + np.exp(own)
    return change, above


def _class_terms(
    draws: Draws, ratios: Ratios, nodes: Nodes, log_half: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return v e (psi - psi_R), its size, and v**2 e r psi, all (K, classes of `part`), weighted.

    The first is times exp(log_half), the last times its square; `log_half` is (K, 1).
    """
    x = nodes.x[:, None]
    q = draws.drawn[part]
    kappa = ratios.contrast[part]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_r = np.where(q > 0.0, ratios.log_r[part], -np.inf)
        log_mass = np.where(q > 0.0, np.log(q), 0.0) + x + log_r + log_half  # of v e
        log_away = np.logaddexp(log_r, ratios.log_ref) + np.log(np.abs(kappa))
    y = np.exp(np.minimum(x + log_r, LARGEST_EXPONENT))
    away = np.sign(kappa) * np.exp(np.minimum(x + log_away, LARGEST_EXPONENT))
    log_psi = -y - nodes.log_transform[:, None]
    psi_ref = np.exp(nodes.log_psi_ref[:, None] + log_mass)
    far = np.exp(log_psi + log_mass) - psi_ref
    rise = np.where(away > -1.0, psi_ref * np.expm1(-np.maximum(away, -1.0)), far)
    return rise, np.abs(rise), np.exp(log_mass + x + log_r + log_psi + log_half)


# Classes in chunks


def _of_dask(
    logits: Any,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: Any,
    tau: float,
    scheme: str,
) -> GradientMoments:
    """Return `exact_gradient_moments` of Dask arrays."""
    da: Any = import_module("dask.array")
    vectors, scale = da.asarray(class_embeddings, dtype=float), as_positive("tau", tau)
    require_squares(np.ones(1), scale)
    if vectors.ndim != 2 or len(vectors) != logits.shape[-1]:
        raise ValueError(
            f"`class_embeddings` must have one row for each of the {logits.shape[-1]} classes of "
            f"`logits`, got shape {vectors.shape}."
        )

    def make(label: int) -> BiasSums:
        sums = BiasSums(num_sampled, label, scheme)
        _require_no_jackknife(sums.scheme)
        return sums.then(_Means)

    _, rows = rows_of_dask(logits, labels, q, make, ChunkBias.both, vectors)
    columns = [scale * scale * np.array(column) for column in zip(*rows, strict=True)]
    if logits.ndim == 1:
        return GradientMoments(*(float(column[0]) for column in columns))
    return GradientMoments(*columns)


class _Means(Pass):
    """The fourth sums of classes in chunks: means of their vectors by p, and by the bias."""

    takes_vectors, stage = True, "means"

    def __init__(self, known: Known) -> None:
        self.known, self.bias = known, ChunkBias(known)
        self.heaviest, self.origin = -math.inf, np.zeros(0)  # a class that vectors start from
        self.own = np.zeros(0)  # the label's vector
        self.reach = 0.0  # no vector is farther from the origin
        self.weights, self.sums = Sum((3,)), Sum()  # of p, the bias and its size; of vectors (2, d)

    def empty(self) -> _Means:
        """Return the same pass without any classes."""
        return _Means(self.known)

    def add(self, start: int, logits: Any, q: Any, vectors: Any) -> _Means:
        """Add the classes from number `start` on."""
        if np.size(logits):
            totals = self.known.totals
            o, proposal = check_chunk(start, logits, q, totals)
            draws = draws_of_chunk(totals, start, o, proposal)
            other, bias = self.empty(), self.bias.bias_of_draws(draws)
            c = as_real_array("class_embeddings", vectors, (2,))
            heaviest = int(draws.probs.argmax())
            other.heaviest, other.origin = float(draws.log_probs[heaviest]), c[heaviest]
            apart, rows = c - other.origin, np.stack([draws.probs, bias])
            other.sums = Sum.of(rows @ apart)
            other.weights = Sum.of(np.append(rows.sum(axis=1), np.abs(bias).sum()))
            other.reach = float(np.sqrt(squared_norms(apart).max()))
            if draws.label is not None:
                other.own = c[draws.label]
            self.merge(other)
        return self

    def merge(self, other: _Means) -> _Means:
        """Add what another has summed in the same pass."""
        if not len(other.origin):
            return self
        if not len(self.origin):
            vars(self).update(vars(other))
            return self
        heavier = max(self, other, key=lambda one: one.heaviest)
        total, reach = Sum(self.sums.value.shape), 0.0
        for one in (self, other):
            away = one.origin - heavier.origin
            total.merge(one.sums)
            total.add(np.outer(one.weights.value[:2], away))
            reach = max(reach, one.reach + float(np.sqrt(away @ away)))
        self.weights = self.weights.times(1.0)
        self.weights.merge(other.weights)
        self.own = self.own if len(self.own) else other.own
        self.sums, self.reach = total, reach
        self.origin, self.heaviest = heavier.origin, heavier.heaviest
        return self

    def finish(self) -> Any:
        """Return the last pass, or the moments where p' is the same in every outcome."""
        totals, scheme = self.known.totals, self.known.totals.scheme
        outcomes = totals.num - (not scheme.draws_label)
        outcomes += bool(scheme.random_count and totals.label_q > 0.0)
        if self.known.ratios is None or outcomes <= 1:
            return self.moments(0.0, 0.0)
        return _NodeSums(self)

    def moments(self, mse: float, rounding: float) -> tuple[float, float, float, float]:
        """Return the moments for tau = 1, of E|sum_i p'_i c_i|**2 and its error."""
        size = float(self.weights.value[2])
        off = (self.bias.error + EPS * (self.known.totals.num + 8) * size) * self.reach
        squared_bias, error = _square_with_error(self.sums.value[1], off)
        mse = max(mse, squared_bias)
        return squared_bias, mse - squared_bias, mse, error + rounding + 4.0 * EPS * mse


class _NodeSums(Pass):
    """The fifth sums of classes in chunks: what they give to a vector at each node."""

    takes_vectors, stage = True, "nodes"

    def __init__(self, means: _Means) -> None:
        self.means, self.draws = means, means.known.draws
        with np.errstate(under="ignore", over="ignore"):
            self.nodes = make_nodes(self.draws, means.known.ratios, means.known.atoms[0], STEP)
        self.log_first, self.ratio = _node_weights(self.draws, self.nodes)
        _require_digits(self.draws, self.nodes, self.log_first)
        num = len(self.nodes.x)
        self.change, self.scalars, self.norm = Sum((num, 1)), Sum((3, num)), Sum()

    def empty(self) -> _NodeSums:
        """Return the same pass without any classes."""
        return _NodeSums(self.means)

    def centred(self, vectors: FloatArray) -> FloatArray:
        """Return vectors (k, d) less the mean of all under the softmax."""
        centred: FloatArray = vectors - self.means.origin - self.means.sums.value[0]
        return centred

    def add(self, start: int, logits: Any, q: Any, vectors: Any) -> _NodeSums:
        """Add the classes from number `start` on."""
        if np.size(logits):
            totals = self.draws.totals
            o, proposal = check_chunk(start, logits, q, totals)
            draws = draws_of_chunk(totals, start, o, proposal)
            ratios = ratios_of_chunk(draws, self.means.known.ratios)
            centred = self.centred(np.asarray(vectors, float))
            norms = np.sqrt(squared_norms(centred))
            half = 0.5 * self.log_first[:, None]
            reach = np.column_stack([norms, np.ones(len(norms))])
            with np.errstate(under="ignore", over="ignore"):
                terms = partial(_class_terms, draws, ratios, self.nodes, half)
                change, sizes, square = _add_up_classes(terms, len(half), centred, reach)
            self.change.add(change)
            self.scalars.add(np.stack([*sizes.T, square]))
            self.norm.add(float((draws.probs * norms).sum()))
        return self

    def merge(self, other: _NodeSums) -> _NodeSums:
        """Add what another has summed in the same pass."""
        self.change.merge(other.change)
        self.scalars.merge(other.scalars)
        self.norm.merge(other.norm)
        return self

    def finish(self) -> tuple[float, float, float, float]:
        """Return the moments."""
        draws, own, norm = self.draws, self.centred(self.means.own[None])[0], float(self.norm.value)
        sizes, weights, square = self.scalars.value
        sums = self.change.value, sizes + norm * weights, square
        own_norm = float(np.sqrt(own @ own))
        with np.errstate(under="ignore", over="ignore"):
            half = 0.5 * self.log_first
            numerator = _with_label(draws, self.nodes, half, own, own_norm + norm, sums)
            terms = _square_terms(_term_unit(draws), self.log_first, self.ratio, numerator)
            mse, error = integrate(self.nodes.dx, *terms)
        none_left = 0.0
        if draws.scheme.divides_by_kept:
            none_left = draws.label_draw**draws.num_draws * own_norm**2
        return self.means.moments(mse + none_left, error + 4.0 * EPS * none_left)


def _require_digits(draws: Draws, nodes: Nodes, log_first: FloatArray) -> None:
    """Raise ValueError where nodes matter at which panels leave no digits of the transform."""
    lost = lost_nodes(nodes.x, nodes.log_transform)
    # the noise is divided by T, twice where few draws may be left of many
    times = 1.0 + draws.scheme.divides_by_kept
    weights = (log_first - times * nodes.log_transform)[lost] - log_first.max()
    if (weights > _MATTERS).any():
        raise ValueError(
            f"`num_sampled` must be larger for classes in chunks, as a rule at least 10, got "
            f"{draws.num_draws} with scheme={draws.scheme.name!r}; compute the arrays first if "
            "they fit into memory."
        )


# Independent inclusion


def _inclusion_square(example: Example, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, eq. (B78), or 0 where all p' are the same."""
    law = poisson.make_inclusion_law(*example)
    if law.others == 0.0:
        return 0.0, 0.0
    reach, classes, known = _reach(centred, law.probs), law.classes, law.known
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        atoms = poisson.make_inclusion_atoms(classes)
        x, weights = poisson.make_nodes(classes, atoms, law.log_base, STEP)[:2]
        x, weights = x[weights > 0.0], weights[weights > 0.0]
        class_terms = partial(_inclusion_terms, classes, x)
        change, size, scatter = _add_up_classes(class_terms, len(x), centred, reach)
        u_base = np.exp(np.minimum(x + law.log_base, LARGEST_EXPONENT))
        of_base = u_base * poisson.base_contrast(x, classes)
        change += np.outer(of_base, law.shares @ centred[known])
        size += np.abs(of_base) * (law.shares @ reach[known])
        half = np.sqrt(weights)  # at either factor of the square, so that none overflows
        units = law.unit * (1.0 + np.abs(np.log(weights)))
        square, errors = _square_and_error(half[:, None] * change, half * size, units)
        scatter *= weights
        return integrate(np.ones(len(x)), square + scatter, errors + units * scatter)


def _inclusion_terms(
    classes: poisson.Included, x: FloatArray, part: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return u e (psi - psi_R), (B27), its size, and u**2 pi (1 - pi) (w / f)**2 exp(-u w)."""
    x, pi, pi_ref = x[:, None], classes.pi[part], classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w[part], _LARGEST))
    y_ref = np.exp(np.minimum(x + classes.log_w_ref, _LARGEST))
    away = classes.contrast[part] * (y + y_ref)  # y - y_ref
    decay, decay_ref = np.exp(-y), np.exp(-y_ref)
    near = np.abs(away) < 1.0
    drop = np.where(near, decay_ref * np.expm1(-np.where(near, away, 0.0)), decay - decay_ref)
    factor, factor_ref = (1.0 - pi) + pi * decay, (1.0 - pi_ref) + pi_ref * decay_ref
    of_decay, of_pi = (1.0 - pi) * drop, (pi_ref - pi) * np.expm1(-y_ref) * decay
    rise = (of_decay + of_pi) / (factor * factor_ref)
    size = pi * y * ((np.abs(of_decay) + np.abs(of_pi)) / (factor * factor_ref))
    second = pi * (1.0 - pi) * y * (y * decay / factor) / factor
    return pi * y * rise, size, second


# Draws without replacement


def _set_square(example: Example, inputs: Inputs, centred: FloatArray) -> tuple[float, float]:
    """Return E|sum_i p'_i c_i|**2 and its error, eq. (B85), or 0 where all classes are drawn."""
    logits, label, _ = example
    race, which = successive.draws_of(example, inputs.num_sampled, inputs.scheme)
    known = np.append(which, label) if inputs.scheme.label_in_sum else which
    largest = float(squared_norms(centred[known]).max())
    if not isinstance(race, successive.ExponentialRace) or largest == 0.0:
        return 0.0, 0.0
    divisors, coarse = np.ones((2, len(logits)))
    divisors[which], coarse[which] = race.inclusion
    weights = successive.weigh(logits, label, inputs.scheme, divisors)
    terms = weights.terms(which[race.order], race.inclusion[0][race.order])
    unit = rounding_at(terms.largest_log)
    units = unit + np.minimum(np.abs(coarse / divisors - 1.0), 1.0) ** 1.5
    # beside the vectors stand 1, the square of whose sum is 1, and how far p' c may be off
    reach = units * _reach(centred, weights.probs)
    columns = np.column_stack([centred, np.ones(len(reach)), reach])
    sums = _set_sums(race, terms, columns[which[race.order]], columns[label], largest)
    squares = sums.squares[:, 0] / sums.squares[:, 1]
    mse, moved = float(squares[0]), math.sqrt(abs(float(sums.squares[0, 2])))
    error = moved * (2.0 * math.sqrt(abs(mse)) + moved) + _SET_LEFT_OUT * largest
    error += (unit + race.noise + 2.0 * abs(float(sums.squares[0, 1]) - 1.0)) * sums.size
    for other in squares[1:]:
        error += estimate_error(abs(float(other) - mse), 0.0, abs(mse), 0.0)
    return mse, error


class _SetSums(NamedTuple):
    """E|sum_i p'_i c_i|**2 for vectors c side by side."""

    squares: FloatArray  # (3, 3) by all nodes, by half of those in u, and in t
    size: float  # of the terms of the first


def _set_sums(
    race: successive.ExponentialRace,
    terms: successive.Terms,
    vectors: FloatArray,
    own: FloatArray,
    largest: float,
) -> _SetSums:
    """Integrate over u, for classes of the `vectors` (N, d + 2) and of the first N `terms`.

    `own` (d + 2,) is that of the label, and `largest` the largest square of the first d columns.
    """
    squares = _add_blocks(vectors * vectors)
    sums, size, survival, left = np.zeros((3, 3)), 0.0, 1.0, 2
    past: list[FloatArray] = []
    scales = successive.scales_of_sum(terms)
    for node in successive.nodes_of(terms, *scales, successive.steps):
        if successive.changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, LARGEST_EXPONENT))
            circles = race.circles(decay[:-1], past)
            survival, base = 0.0, math.exp(-decay[-1])
            if circles is not None and base > 0.0:
                found = _set_terms(race, circles, decay[:-1], vectors, squares, decay[-1] * own)
                over_t = base * (race.scale @ found)
                survival = base * float(race.scale[0] @ circles.density)
                sums += node.weights[:, None] * over_t[[0, 0, 1], :3]
                size += float(node.weights[0] * over_t[0, 3])
        # what is left is of the order of survival times `largest`; relative to the sum it must be
        # nothing, for where one class has most of the mass the sum is of rare sets without it
        gone = survival * largest <= _SET_GONE * abs(sums[0, 0]) or survival < _LEAST
        left = left - 1 if gone else 2
        if not left:
            break
    return _SetSums(sums, size)


def _add_blocks(columns: Any) -> Any:
    """Return the sums (K, 3) over the first d of columns (K, d + 2), and the other two."""
    return np.add.reduceat(columns, [0, columns.shape[1] - 2, columns.shape[1] - 1], axis=1)


def _set_terms(
    race: successive.ExponentialRace,
    circles: successive.Circles,
    decay: FloatArray,
    vectors: FloatArray,
    squares: FloatArray,
    own: FloatArray,
) -> FloatArray:
    """Return the terms of the three squares at each t, and the size of the first, (T, 4).

    `decay` (N,) is u w; `vectors` are (N, d + 2), `squares` (N, 3), and `own` (d + 2,) is u times
    the label's part of the sum.
    """
    # no circle where the density is 0
    there = circles.values[:, 0] ** 2 + circles.values[:, 1] ** 2 > 0.5
    terms = np.zeros((len(race.t), 4))

    def work(part: slice) -> None:
        time, point = np.nonzero(there[part])
        x, y, real, imag, rate, rate_y = circles.values[part][time, :, point].T
        at = race.t[part], circles.log_r[part], time, x, y
        first, second = np.zeros((4, len(x), len(own))), np.zeros((4, len(x), 3))
        for some in chunks(len(decay), _SET_CLASSES):
            bits = np.empty((8, len(x), some.stop - some.start))
            _write_bits(race.q[some], decay[some], circles.decay[some], *at, bits)
            first += bits[:4] @ vectors[some]
            second += bits[4:] @ squares[some]
        mean, last = first[::2] + 1j * first[1::2]
        scatter, last_scatter = second[::2] + 1j * second[1::2]
        mean += own
        term, hazard = (real + 1j * imag)[:, None], (rate + 1j * rate_y)[:, None]
        cross = 2.0 * _add_blocks(mean * last)
        value = hazard * (_add_blocks(mean * mean) + scatter) - cross + last_scatter
        size = np.abs(hazard) * (_add_blocks(np.abs(mean) ** 2) + np.abs(scatter))
        size += np.abs(cross) + np.abs(last_scatter)
        np.add.at(terms[part, :3], time, (term * value).real)
        np.add.at(terms[part, 3], time, (np.abs(term) * size)[:, 0])

    thread_each(work, chunks(len(race.t), max(4, _SET_CLASSES // len(decay))))
    return terms


@njit
def _write_bits(
    q: FloatArray,
    decay: FloatArray,
    less: FloatArray,
    t: FloatArray,
    log_r: FloatArray,
    time: IntArray,
    x: FloatArray,
    y: FloatArray,
    bits: FloatArray,
) -> None:
    """Write what classes give to the sums of (B85) at points x + i y of circles, (8, K, N).

    They are u w phi, q u w phi (1 - phi), (u w)**2 phi (1 - phi) and q (u w)**2 phi (1 - phi)
    (2 phi - 1), each in two rows. `decay` is u w, and `less` the decay that the circles have.
    """
    share, silent, number = np.empty(len(q)), np.empty(len(q)), -1
    for k in range(len(x)):
        if time[k] != number:
            number = time[k]
            for j in range(len(q)):
                log_odds = log_r[number] + successive.log_growth(q[j] * t[number]) - less[j]
                share[j], silent[j] = successive.chances(log_odds)
        for j in range(len(q)):
            w, rate = decay[j], q[j]
            u, v = silent[j] + share[j] * x[k], share[j] * y[k]
            inverse = 1.0 / (u * u + v * v)
            # phi, and phi (1 - phi)
            a = share[j] * (x[k] * u + y[k] * v) * inverse
            b = share[j] * (y[k] * u - x[k] * v) * inverse
            rest = silent[j] * inverse
            c, d = rest * (a * u + b * v), rest * (b * u - a * v)
            bits[0, k, j], bits[1, k, j] = w * a, w * b
            bits[2, k, j], bits[3, k, j] = rate * w * c, rate * w * d
            c, d = w * (w * c), w * (w * d)
            bits[4, k, j], bits[5, k, j] = c, d
            a, b = 2.0 * a - 1.0, 2.0 * b
            bits[6, k, j], bits[7, k, j] = rate * (c * a - d * b), rate * (c * b + d * a)
