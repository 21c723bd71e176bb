"""Exact inclusion probabilities of successive draws without replacement.

Successive sampling is a race of exponential clocks. The clock of class j rings once, after an
exponential time with rate ``w_j``, and the first m clocks to ring are the sample. The number N(t)
of clocks that have rung by time t has the generating function
``G(z) = prod_j (1 - p_j + p_j z)`` with ``p_j = 1 - exp(-w_j t)``. A sum over points z on a circle
near the saddle point gives P(N <= m - 1). Division by one factor removes one clock from N. The
product is computed over atoms: an atom is one clock, or represents many clocks with nearly equal
rates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._cached import cached_property
from samplesoft._jit import chunks, njit, thread_for_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import panels

ComplexArray = NDArray[np.complex128]

# With the next two constants, interpolation in log w has a relative error of 1e-11. At a late time
# t it is less accurate, because 1 - exp(-w t) is steep in log w. But the probability that none of
# many clocks has rung by then is negligible.
_PANEL_WIDTH = 0.2  # width in log w of a panel, an interval of log rates
# smallest number of classes in a panel at which Chebyshev nodes replace the classes
_MIN_CROWDED_CLASSES = 32
# Gauss-Legendre nodes on [-1, 1] and their weights, for each panel of log t
_TIME_NODES = np.polynomial.legendre.leggauss(16)
_TIME_CHUNK = 8  # number of times in one task of a thread
# size of arrays of points on a half circle; at most 54 points have terms that are not negligible,
# and the maximum is reached if the variance of N is 17
_CIRCLE_POINTS = 56
_LOG_TINY = -34.0  # log of the relative magnitude below which terms are omitted
# width of a panel of log t, divided by the scale in log t on which the distribution of N changes;
# the 16 nodes suffice for this width
_PANEL_LOG_TIME = 1.5
_MAX_LOG_RADIUS = 300.0  # limit of |log |z|| at saddle points z, so that z**2 is finite


class _Atoms(NamedTuple):
    """Atoms of the generating function: clocks, or Chebyshev nodes that represent many clocks."""

    log_rates: FloatArray  # (A,)
    # (A,): number of clocks that an atom represents; fractional for a node
    counts: FloatArray


class _Quadrature(NamedTuple):
    """Nodes of the integral over t, with the terms of P(N(t) <= m - 1) at each node.

    There are S circles for each node, 1 or 2: one for each value of `shift` in `_write_contours`.
    """

    log_t_start: float  # log t before which the probability of m rings is negligible
    log_t: FloatArray  # (K,): nodes
    weights: FloatArray  # (K,): quadrature weights in log t
    z: ComplexArray  # (S, K, _CIRCLE_POINTS): points on a half circle
    circle_terms: ComplexArray  # (S, K, _CIRCLE_POINTS): terms of the sum over the circle


class SuccessiveInclusion:
    """Inclusion probabilities of m successive draws without replacement, in proportion to weights.

    `log_weights` (n,) are the logs of the weights, -inf for classes that are never drawn. m is at
    most the number of classes that can be drawn.

    Class j has an exponential clock of rate w_j, and classes are drawn in the order in which their
    clocks ring. Let N(t) be the number of clocks other than clock i that have rung by time t. Class
    i has the inclusion probability

        pi_i = int_0^inf w_i exp(-w_i t) P(N(t) <= m - 1) dt.

    N(t) is a sum of independent indicators. Its distribution function is a contour integral of
    its generating function over a circle near the saddle point, where terms do not cancel. Clock i,
    and the clock of an excluded class, are removed from the generating function by one division
    each. The integral over log t uses Gauss-Legendre quadrature on panels that are as wide as the
    distribution of N(t) allows. If a panel of log w has many classes, they are replaced by the
    Chebyshev nodes of the panel, so that n classes cost O(n) once.

    The relative error of pi was at most 3e-12. It was compared with enumeration, for ratios of
    weights up to 1e600, and with atoms that are single classes in the hardest case for the nodes.

    TensorFlow uses ``1 - (1 - q_i)**tries``, where tries is the number of draws, with repeats,
    until there are m distinct classes. CNTK uses the same formula with the mean number of tries in
    simulations. Both are approximations.

    Sources: Rosén (1972), "Asymptotic theory for successive sampling with varying probabilities
    without replacement, I": the clocks. Daniels (1954), "Saddlepoint approximations in
    statistics": the contour.
    """

    def __init__(self, log_weights: FloatArray, m: int) -> None:
        self._log_w = log_weights - log_weights.max()
        self._is_drawable = np.isfinite(self._log_w)
        self._num_left_over = int(self._is_drawable.sum()) - m
        if self._num_left_over == 0:  # all classes are drawn
            return

        atoms = self._make_atoms()
        self._atoms = atoms
        edges = _log_time_panel_edges(atoms, m)
        half = 0.5 * np.diff(edges)[:, None]
        log_t = (edges[:-1, None] + half * (1.0 + _TIME_NODES[0])).ravel()

        # Shift 1 is for excluded classes. If one class is left over, exclusion needs no integral.
        num_shifts = min(self._num_left_over, 2)
        z = np.zeros((num_shifts, len(log_t), _CIRCLE_POINTS), np.complex128)
        circle_terms = np.zeros_like(z)

        def fill_contours(chunk: slice) -> None:
            for shift in range(num_shifts):
                _write_contours(
                    log_t[chunk], atoms, m, shift, z[shift, chunk], circle_terms[shift, chunk]
                )

        thread_for_each(fill_contours, chunks(len(log_t), _TIME_CHUNK))
        weights = (half * _TIME_NODES[1]).ravel()
        self._quadrature = _Quadrature(float(edges[0]), log_t, weights, z, circle_terms)

    def of_classes(self, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the inclusion probabilities (B, k) of classes `ids` (B, k).

        `exclude` (B,) holds, for each row, the class that is not drawn, or a negative number if all
        classes can be drawn.
        """
        probs = np.empty(ids.shape)
        order = np.argsort(exclude, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(exclude[order])) + 1)

        def fill_group(rows: IntArray) -> None:
            # all `rows` exclude the same class
            excluded = int(exclude[rows[0]])
            classes = ids[rows]
            if excluded < 0:
                probs[rows] = self._probs_without_exclusion[classes]
            else:
                probs[rows] = self._inclusion_probs(classes, excluded)

        thread_for_each(fill_group, groups)
        return probs

    @cached_property
    def _probs_without_exclusion(self) -> FloatArray:
        """Inclusion probabilities (n,) of all classes if no class is excluded."""
        return self._inclusion_probs(np.arange(len(self._log_w)), -1)

    def _inclusion_probs(self, ids: IntArray, excluded: int) -> FloatArray:
        """Return inclusion probabilities of classes `ids`, of any shape, without class `excluded`.

        If `excluded` is negative, no class is excluded.
        """
        log_excluded = -np.inf if excluded < 0 else float(self._log_w[excluded])
        if self._num_left_over == (log_excluded > -np.inf):  # all remaining classes are drawn
            probs: FloatArray = self._is_drawable[ids].astype(np.float64)
        elif ids.size <= len(self._atoms.counts):  # fewer integrals than one for each atom
            log_rates = self._log_w[ids].ravel()
            probs = _probs_among_first(log_rates, log_excluded, self._quadrature).reshape(ids.shape)
        else:
            atoms = _probs_among_first(self._atoms.log_rates, log_excluded, self._quadrature)
            probs = self._interpolate_from_atoms(ids.ravel(), atoms).reshape(ids.shape)
        probs[ids == excluded] = 0.0
        return probs

    def _make_atoms(self) -> _Atoms:
        """Return the atoms: first the nodes of all crowded panels, then single classes.

        A panel is an interval of log w. It is crowded if it has at least `_MIN_CROWDED_CLASSES`
        classes. Its Chebyshev nodes then represent these classes.
        """
        log_w = self._log_w
        is_drawable = self._is_drawable
        min_log_w = float(np.min(log_w, where=is_drawable, initial=0.0))
        first_panel = int(np.floor(min_log_w / _PANEL_WIDTH))

        panel, position = panels.place(log_w, _PANEL_WIDTH, first_panel, 1 - first_panel)
        is_crowded = np.bincount(panel, is_drawable, 1 - first_panel) >= _MIN_CROWDED_CLASSES

        self._on_panel = is_drawable & is_crowded[panel]
        self._single_classes = np.flatnonzero(is_drawable & ~self._on_panel)
        self._panel = (np.cumsum(is_crowded) - 1)[panel]
        self._panel_position = position

        crowd_positions = (self._panel[self._on_panel], position[self._on_panel])
        moments = np.zeros((int(is_crowded.sum()), 1, panels.DEGREE))
        panels.add_moments(*crowd_positions, np.ones((1, len(crowd_positions[0]))), moments)

        node_positions = first_panel + np.flatnonzero(is_crowded)[:, None] + panels.node_positions()
        log_rates = np.append((node_positions * _PANEL_WIDTH).ravel(), log_w[self._single_classes])

        # number of classes that a node represents: the sum, over the classes of the panel, of the
        # node's Lagrange polynomial
        counts = (moments[:, 0] @ panels.coefficient_matrix().T).ravel()
        return _Atoms(log_rates, np.append(counts, np.ones(len(self._single_classes))))

    def _interpolate_from_atoms(self, ids: IntArray, atoms: FloatArray) -> FloatArray:
        """Return probabilities (k,) of classes `ids` (k,), interpolated from `atoms` (A,).

        `atoms` holds the inclusion probabilities of clocks with the rates of the A atoms.
        """
        num_nodes = len(atoms) - len(self._single_classes)
        coefficients = atoms[:num_nodes].reshape(-1, 1, panels.DEGREE) @ panels.coefficient_matrix()

        on_panel = self._on_panel[ids]
        probs = np.zeros(len(ids))
        positions = (self._panel[ids[on_panel]], self._panel_position[ids[on_panel]])
        probs[on_panel] = panels.evaluate(*positions, coefficients)[0]

        is_single = self._is_drawable[ids] & ~on_panel
        probs[is_single] = atoms[num_nodes + np.searchsorted(self._single_classes, ids[is_single])]
        return np.minimum(probs, 1.0)


@njit
def _ring_probs(log_rate: float, log_t: float) -> tuple[float, float, float]:
    """Return ``w t``, ``exp(-w t)`` and ``1 - exp(-w t)`` for the rate w of a clock and a time t.

    The last two are the probabilities that the clock has not rung, and has rung, by time t.
    """
    age = math.exp(min(log_rate + log_t, LARGEST_EXPONENT))
    return age, math.exp(-age), -math.expm1(-age)


@njit
def _log_modulus_and_argument(p_silent: float, p_rung: float, z: complex) -> tuple[float, float]:
    """Return the log modulus and the argument of ``1 - p + p z``, the factor of a clock in G(z).

    `p_rung` is p, and `p_silent` is 1 - p. Both are arguments, so that neither loses digits if p is
    near 0 or 1.
    """
    real = (z.real - 1.0) * p_rung
    imag = z.imag * p_rung
    if abs(real) < 0.5 and abs(imag) < 0.5:
        log_modulus = 0.5 * math.log1p(2.0 * real + real * real + imag * imag)
        return log_modulus, math.atan2(imag, 1.0 + real)

    real = p_silent + z.real * p_rung
    return math.log(math.hypot(real, imag)), math.atan2(imag, real)


@njit
def _mean_and_change_rate(log_t: float, atoms: _Atoms) -> tuple[float, float]:
    """Return the mean of N(t), and how fast the distribution of N(t) changes with log t.

    The second value is a heuristic estimate. A panel of log t has a width of about
    `_PANEL_LOG_TIME` divided by it.
    """
    log_rates, counts = atoms
    mean = 0.0
    variance = 0.0
    mean_rate = 0.0  # derivative of the mean in log t

    for a in range(len(counts)):
        age, p_silent, p_rung = _ring_probs(log_rates[a], log_t)
        mean += counts[a] * p_rung
        variance += counts[a] * p_rung * p_silent
        mean_rate += counts[a] * age * p_silent

    rate = 0.2 + 2.0 * min(mean_rate, 1.0) + 0.2 * mean_rate * mean_rate / (variance + 1.0)
    return mean, math.sqrt(rate)


@njit
def _saddle_point(log_t: float, atoms: _Atoms, power: float) -> tuple[float, float, float]:
    """Return the x that minimises ``log G(exp(x)) - power * x``, the minimum, and a variance.

    The saddle point is z = exp(x). The minimum is an upper bound on the log of the smaller of
    P(N <= power) and P(N >= power). The variance is the variance of N if its probabilities are
    multiplied by exp(x N) and normalised. The method is Newton's, safeguarded by bisection.
    """
    log_rates, counts = atoms
    low = -_MAX_LOG_RADIUS
    high = _MAX_LOG_RADIUS
    x = 0.0
    variance = 0.0

    while high - low > 1e-6:
        mean = 0.0
        variance = 0.0
        tilt = math.exp(x)

        for a in range(len(counts)):
            _, p_silent, p_rung = _ring_probs(log_rates[a], log_t)
            tilted = p_rung * tilt / (p_silent + p_rung * tilt)
            mean += counts[a] * tilted
            variance += counts[a] * tilted * (1.0 - tilted)

        if mean > power:
            high = x
        else:
            low = x

        gap = power - mean
        if abs(gap) < 1e-6 * variance:
            break

        # limit the step, because at extreme x the nodes no longer represent their classes
        x += gap / variance if abs(gap) < 2.0 * variance else math.copysign(2.0, gap)
        if not low < x < high:
            x = 0.5 * (low + high)

    minimum = -power * x
    z = complex(math.exp(x), 0.0)
    for a in range(len(counts)):
        _, p_silent, p_rung = _ring_probs(log_rates[a], log_t)
        minimum += counts[a] * _log_modulus_and_argument(p_silent, p_rung, z)[0]

    return x, minimum, variance


@njit
def _bisect_tail_end(middle: float, end: float, atoms: _Atoms, m: int) -> float:
    """Return the log t beyond which the smaller of P(N >= m) and P(N <= m) is negligible.

    Beyond means in the direction of `end`. The value is found by bisection between two values of
    log t: `middle`, where the mean of N is about m, and `end`.
    """
    log_t_inside = middle
    while abs(log_t_inside - end) > 0.05:
        log_t = 0.5 * (log_t_inside + end)
        # stricter at late times, because the integrand in log t has the factor t
        log_tiny = _LOG_TINY - max(log_t - middle, 0.0)
        if _saddle_point(log_t, atoms, m)[1] < log_tiny:
            end = log_t
        else:
            log_t_inside = log_t
    return end


@njit
def _log_time_panel_edges(atoms: _Atoms, m: int) -> FloatArray:
    """Return the edges of panels of log t for the quadrature.

    On each panel, the probabilities of N(t) are nearly polynomials of log t.
    Before the first edge, P(N >= m) is negligible; after the last edge, P(N <= m) is negligible.
    """
    # at the earlier time no clock has rung, at the later time all have
    min_log_t = -atoms.log_rates.max() - math.log(atoms.counts.sum()) + 3.0 * _LOG_TINY
    max_log_t = -atoms.log_rates.min() + 8.0

    low = min_log_t
    high = max_log_t
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if _mean_and_change_rate(middle, atoms)[0] < m:
            low = middle
        else:
            high = middle

    max_log_t = _bisect_tail_end(low, max_log_t, atoms, m)
    edges = [_bisect_tail_end(low, min_log_t, atoms, m)]

    while edges[-1] < max_log_t:
        step = _PANEL_LOG_TIME / _mean_and_change_rate(edges[-1], atoms)[1]
        # the distribution may change faster at the end of the panel
        step = min(step, _PANEL_LOG_TIME / _mean_and_change_rate(edges[-1] + step, atoms)[1])
        edges.append(edges[-1] + step)

    return np.array(edges)


@njit
def _write_contours(
    log_t: FloatArray,
    atoms: _Atoms,
    m: int,
    shift: int,
    z: ComplexArray,
    circle_terms: ComplexArray,
) -> None:
    """Write points z on a circle for each time, and their terms in the sum P(N <= m - 1).

    The logs of the times are `log_t` (K,). The points are written to `z` (K, P). They are on the
    upper half of the circle; their modulus is below 1 if N is more likely above m than below. The
    terms are written to `circle_terms` (K, P), up to the first negligible term; the others stay 0.
    Clocks will be divided out of the terms, and the radius suits what remains. With `shift` 0 one
    clock is divided out, and with `shift` 1 also a second clock, which has rung.
    """
    log_rates, counts = atoms

    for k in range(len(log_t)):
        # the exponent m - 1/2 is halfway between m and m - 1, so that the circle is near the saddle
        # point whether or not the clock that is divided out has rung
        x, _, variance = _saddle_point(log_t[k], atoms, m + shift - 0.5)

        # The integrand has a pole at z = 1. A circle farther from the pole needs fewer points, but
        # loses one digit.
        distance = max(abs(x), 2.4 / math.sqrt(variance + 2.0))
        z[k, 0] = math.exp(x)
        if x < 1.0 - _MAX_LOG_RADIUS:  # the probability is negligible
            continue
        x = math.copysign(distance, x)
        # an odd number, so that no point is -1
        num_points = int(8.0 * math.sqrt(variance) + 12.0 - _LOG_TINY / distance) | 1

        for i in range(min(num_points // 2 + 1, _CIRCLE_POINTS)):
            angle = 2.0 * math.pi * i / num_points
            z[k, i] = complex(math.exp(x) * math.cos(angle), math.exp(x) * math.sin(angle))

            # the log modulus and the argument of z^-(m-1) G(z)
            log_term = -(m - 1) * x
            phase = -(m - 1) * angle
            for a in range(len(counts)):
                _, p_silent, p_rung = _ring_probs(log_rates[a], log_t[k])
                log_modulus, argument = _log_modulus_and_argument(p_silent, p_rung, z[k, i])
                log_term += counts[a] * log_modulus
                phase += counts[a] * argument
            magnitude = math.exp(log_term) * (1.0 if i == 0 else 2.0) / num_points

            term = complex(magnitude * math.cos(phase), magnitude * math.sin(phase))
            circle_terms[k, i] = term / (1.0 - z[k, i])

            if abs(circle_terms[k, i]) < math.exp(_LOG_TINY) * abs(circle_terms[k, 0]):
                break


@njit
def _divide_out_clock(
    log_rate: float, log_t: float, z: ComplexArray, circle_terms: ComplexArray, out: ComplexArray
) -> int:
    """Write the terms of P(N <= m - 1) at one time, without one clock in N.

    The clock has the log rate `log_rate`; if that is -inf, no clock is removed. `out` has the shape
    (2, P): the points on the circle are written to ``out[0]``, and the terms to ``out[1]``. The
    number of terms is returned. `z` (S, P) and `circle_terms` (S, P) are the results of
    `_write_contours` for shift 0 and, if S = 2, shift 1.
    """
    _, p_silent, p_rung = _ring_probs(log_rate, log_t)
    # On the circle, the probabilities of N are in effect multiplied by |z|**N and normalised. Shift
    # 1 is used if, in this distribution, the clock has rung with a probability above 1/4. If the
    # probability is neither near 0 nor near 1, both shifts are accurate, but shift 0 may have fewer
    # terms.
    shift = 1 if 3.0 * p_rung * abs(z[0, 0]) > p_silent else 0

    for i in range(_CIRCLE_POINTS):
        out[0, i] = z[shift, i]
        if circle_terms[shift, i] == 0.0:
            return i
        out[1, i] = circle_terms[shift, i] / (p_silent + p_rung * z[shift, i])
    return _CIRCLE_POINTS


@njit
def _probs_among_first(
    log_rates: FloatArray, excluded: float, quadrature: _Quadrature
) -> FloatArray:
    """Return the probabilities (I,) that each of I clocks is among the first m clocks to ring.

    `log_rates` (I,) are the log rates of the clocks. The clock with log rate `excluded` does not
    take part; -inf excludes none. The result is the integral over t of
    ``w exp(-w t) P(N <= m - 1)``, where N counts neither the clock itself nor the excluded clock.
    """
    log_t_start, log_t, weights, z, circle_terms = quadrature
    num_clocks = len(log_rates)

    out = np.empty(num_clocks)
    terms = np.empty((2, _CIRCLE_POINTS), np.complex128)
    p_silent = np.empty(num_clocks)
    p_rung = np.empty(num_clocks)
    density = np.empty(num_clocks)
    prob = np.empty(num_clocks)

    for i in range(num_clocks):
        # a clock that rings before `log_t_start` is among the first m
        out[i] = _ring_probs(log_rates[i], log_t_start)[2]

    for k in range(len(log_t)):
        num_terms = _divide_out_clock(excluded, log_t[k], z[:, k], circle_terms[:, k], terms)

        # The sum of the terms is P(N <= m - 1) if z is inside the unit circle. Outside it is less
        # by 1, because of the pole at z = 1; the sum then starts from 1.
        is_inside = abs(terms[0, 0]) < 1.0
        for i in range(num_clocks):
            age, p_silent[i], p_rung[i] = _ring_probs(log_rates[i], log_t[k])
            density[i] = weights[k] * age * p_silent[i]
            prob[i] = 0.0 if is_inside else 1.0

        for j in range(num_terms):
            x = terms[0, j].real
            y = terms[0, j].imag
            a = terms[1, j].real
            b = terms[1, j].imag

            for i in range(num_clocks):  # the innermost loop, so that it is vectorised
                real = p_silent[i] + p_rung[i] * x
                imag = p_rung[i] * y
                prob[i] += (a * real + b * imag) / (real * real + imag * imag)

        for i in range(num_clocks):
            out[i] += density[i] * prob[i]

    for i in range(num_clocks):
        out[i] = min(out[i], 1.0)
    return out
