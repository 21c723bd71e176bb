"""Exact inclusion probabilities of draws without replacement.

Successive sampling is a race: class j rings at an exponential time of rate ``w_j``, and the first m
to ring are the sample. The number N(t) that have rung by time t has the generating function
``G(z) = prod_j (1 - p_j + p_j z)`` with ``p_j = 1 - exp(-w_j t)``. Its values on a circle around 0
near the saddle point give P(N <= m - 1), and a division by one factor leaves one clock out. The
product runs over atoms, of which each may stand for many clocks of nearly equal rates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._cached import cached_property
from samplesoft._jit import chunks, njit, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import panels

ComplexArray = NDArray[np.complex128]

# At a late time t, 1 - exp(-w t) is steep in log w. But that none of many classes has rung by then
# is so unlikely that such times add nothing: the two numbers keep a relative error of 1e-11.
_PANEL_WIDTH = 0.2  # of a panel in log w
_CROWD_CLASSES = 32  # a panel of so many classes or more is replaced by its Chebyshev nodes
_TIME_NODES = np.polynomial.legendre.leggauss(16)
_TIME_CHUNK = 8
_CIRCLE_POINTS = 56  # of a half circle; at most 54 matter, where the variance of N is 17
_LOG_TINY = -34.0  # smaller parts are left out
# width of a panel in log t, over that in which the distribution changes: 16 nodes suffice
_PANEL_LOG_TIME = 1.5
_FARTHEST_LOG_POINT = 300.0  # of a saddle point, in log |z|: squares neither underflow nor overflow


class _Atoms(NamedTuple):
    """What the product of the generating function runs over."""

    log_rates: FloatArray  # (A,)
    counts: FloatArray  # (A,): clocks that an atom stands for, not whole where they are spread


class _Quadrature(NamedTuple):
    """Nodes of the integral over t, with the distribution of N at each."""

    start: float  # log t, before which fewer than m clocks have rung
    log_t: FloatArray  # (K,)
    weights: FloatArray  # (K,)
    z: ComplexArray  # (S, K, _CIRCLE_POINTS): circles, for each shift; see `_contours`
    values: ComplexArray  # (S, K, _CIRCLE_POINTS): their terms


class SuccessiveInclusion:
    """Inclusion for draws in turn, in proportion to the weights of the classes not yet drawn.

    `log_weights` (n,) are -inf for classes that are never drawn; m is at most the number of others.

    Give class j an exponential clock of rate w_j. The clocks ring in the order of such draws, so
    with N(t) the number of all others that have rung by time t,

        pi_i = int_0^inf w_i exp(-w_i t) P(N(t) <= m - 1) dt.

    N(t) is a sum of independent indicators. Its distribution function is a contour integral of
    its generating function over a circle near the saddle point, where nothing cancels; clock i,
    and that of an excluded class, leave the product by one division each. The integral in log t
    is Gauss-Legendre on panels as wide as the distribution of N(t) allows. Classes of nearly equal
    weight, many in one panel of log w, are replaced by the Chebyshev nodes of the panel, so that n
    classes cost O(n) once.

    The relative error of pi was at most 3e-12, compared with enumeration for weights that span up
    to 1e600, and compared with the sum over single classes where the nodes had the hardest case.

    TensorFlow takes ``1 - (1 - q_i)**tries`` with the number of tries that its draws needed, and
    CNTK the same with the mean number of tries in simulations; both are approximations.

    Sources: Rosén (1972), "Asymptotic theory for successive sampling with varying probabilities
    without replacement, I": the clocks. Daniels (1954), "Saddlepoint approximations in
    statistics": the contour.
    """

    def __init__(self, log_weights: FloatArray, m: int) -> None:
        self._log_w = log_weights - log_weights.max()
        self._positive = np.isfinite(self._log_w)
        self._spare = int(self._positive.sum()) - m
        if self._spare == 0:  # all are drawn
            return
        self._atoms = atoms = self._make_atoms()
        edges = _time_panels(atoms, m)
        half = 0.5 * np.diff(edges)[:, None]
        log_t = (edges[:-1, None] + half * (1.0 + _TIME_NODES[0])).ravel()
        shifts = min(self._spare, 2)  # the second serves examples that exclude a class
        z = np.zeros((shifts, len(log_t), _CIRCLE_POINTS), np.complex128)
        values = np.zeros_like(z)

        def fill_contours(part: slice) -> None:
            for shift in range(shifts):
                _contours(log_t[part], atoms, m, shift, z[shift, part], values[shift, part])

        thread_each(fill_contours, chunks(len(log_t), _TIME_CHUNK))
        weights = (half * _TIME_NODES[1]).ravel()
        self._quadrature = _Quadrature(float(edges[0]), log_t, weights, z, values)

    def of_classes(self, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the probabilities of classes `ids` (B, k)."""
        probs = np.empty(ids.shape)
        order = np.argsort(exclude, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(exclude[order])) + 1)

        def fill(rows: IntArray) -> None:  # examples that exclude the same class share its terms
            excluded = int(exclude[rows[0]])
            classes = ids[rows]
            group = self._plain[classes] if excluded < 0 else self._without(classes, excluded)
            probs[rows] = group

        thread_each(fill, groups)
        return probs

    @cached_property
    def _plain(self) -> FloatArray:
        """Those of all classes (n,) where none is excluded."""
        return self._without(np.arange(len(self._log_w)), -1)

    def _without(self, ids: IntArray, excluded: int) -> FloatArray:
        """Return those of classes, of any shape; `excluded` is not drawn, negative for none."""
        log_excluded = -np.inf if excluded < 0 else float(self._log_w[excluded])
        if self._spare == (log_excluded > -np.inf):  # all that are left are drawn
            probs: FloatArray = self._positive[ids].astype(np.float64)
        elif ids.size <= len(self._atoms.counts):  # one integral a class is the least
            log_rates = self._log_w[ids].ravel()
            probs = _first_rings(log_rates, log_excluded, self._quadrature).reshape(ids.shape)
        else:
            atoms = _first_rings(self._atoms.log_rates, log_excluded, self._quadrature)
            probs = self._from_atoms(ids.ravel(), atoms).reshape(ids.shape)
        probs[ids == excluded] = 0.0
        return probs

    def _make_atoms(self) -> _Atoms:
        """Choose atoms: the nodes of the crowded panels of log w, then each other class."""
        log_w = self._log_w
        positive = self._positive
        least = float(np.min(log_w, where=positive, initial=0.0))
        first = int(np.floor(least / _PANEL_WIDTH))
        panel, s = panels.place(log_w, _PANEL_WIDTH, first, 1 - first)
        crowded = np.bincount(panel, positive, 1 - first) >= _CROWD_CLASSES
        self._shared = positive & crowded[panel]
        self._lone = np.flatnonzero(positive & ~self._shared)
        self._panel = (np.cumsum(crowded) - 1)[panel]
        self._s = s
        shared = self._panel[self._shared], s[self._shared]
        moments = np.zeros((int(crowded.sum()), 1, panels.DEGREE))
        panels.add_moments(*shared, np.ones((1, len(shared[0]))), moments)
        places = first + np.flatnonzero(crowded)[:, None] + panels.node_places()
        log_rates = np.append((places * _PANEL_WIDTH).ravel(), log_w[self._lone])
        # how many classes a node stands for: its Lagrange polynomial summed over them
        counts = (moments[:, 0] @ panels.to_coefficients().T).ravel()
        return _Atoms(log_rates, np.append(counts, np.ones(len(self._lone))))

    def _from_atoms(self, ids: IntArray, atoms: FloatArray) -> FloatArray:
        """Return (k,) the probabilities of classes `ids` from those of the atoms."""
        nodes = len(atoms) - len(self._lone)
        coefficients = atoms[:nodes].reshape(-1, 1, panels.DEGREE) @ panels.to_coefficients()
        shared = self._shared[ids]
        probs = np.zeros(len(ids))
        on_panels = self._panel[ids[shared]], self._s[ids[shared]]
        probs[shared] = panels.evaluate(*on_panels, coefficients)[0]
        lone = self._positive[ids] & ~shared
        probs[lone] = atoms[nodes + np.searchsorted(self._lone, ids[lone])]
        return np.minimum(probs, 1.0)


@njit
def _clock(log_rate: float, log_t: float) -> tuple[float, float, float]:
    """Return w t and the probabilities that a clock of rate w is still silent, and has rung."""
    age = math.exp(min(log_rate + log_t, LARGEST_EXPONENT))
    return age, math.exp(-age), -math.expm1(-age)


@njit
def _log_factor(silent: float, rung: float, z: complex) -> tuple[float, float]:
    """Return log modulus and argument of 1 - p + p z, to full precision where p is small."""
    real = (z.real - 1.0) * rung
    imag = z.imag * rung
    if abs(real) < 0.5 and abs(imag) < 0.5:
        size = 0.5 * math.log1p(2.0 * real + real * real + imag * imag)
        return size, math.atan2(imag, 1.0 + real)
    real = silent + z.real * rung
    return math.log(math.hypot(real, imag)), math.atan2(imag, real)


@njit
def _pace(log_t: float, atoms: _Atoms) -> tuple[float, float]:
    """Return the mean of N(t), and how fast its distribution changes in log t."""
    log_rates, counts = atoms
    mean = variance = mean_rate = 0.0  # of N(t), and the derivative of its mean in log t
    for a in range(len(counts)):
        age, silent, rung = _clock(log_rates[a], log_t)
        mean += counts[a] * rung
        variance += counts[a] * rung * silent
        mean_rate += counts[a] * age * silent
    rate = 0.2 + 2.0 * min(mean_rate, 1.0) + 0.2 * mean_rate * mean_rate / (variance + 1.0)
    return mean, math.sqrt(rate)


@njit
def _saddle(log_t: float, atoms: _Atoms, power: float) -> tuple[float, float, float]:
    """Find the x where log G(exp(x)) - power x is least.

    The value there bounds the log of P(N <= power) or of P(N >= power), whichever is smaller. The
    third result is the variance of N in the distribution tilted by exp(x N).
    """
    log_rates, counts = atoms
    low = -_FARTHEST_LOG_POINT
    high = _FARTHEST_LOG_POINT
    x = 0.0
    variance = 0.0
    while high - low > 1e-6:
        mean = variance = 0.0
        tilt = math.exp(x)
        for a in range(len(counts)):
            _, silent, rung = _clock(log_rates[a], log_t)
            share = rung * tilt / (silent + rung * tilt)
            mean += counts[a] * share
            variance += counts[a] * share * (1.0 - share)
        if mean > power:
            high = x
        else:
            low = x
        gap = power - mean
        if abs(gap) < 1e-6 * variance:
            break
        # far out, where atoms no longer stand for their classes, a long step might get lost
        x += gap / variance if abs(gap) < 2.0 * variance else math.copysign(2.0, gap)
        if not low < x < high:
            x = 0.5 * (low + high)
    value = -power * x
    z = complex(math.exp(x), 0.0)
    for a in range(len(counts)):
        _, silent, rung = _clock(log_rates[a], log_t)
        value += counts[a] * _log_factor(silent, rung, z)[0]
    return x, value, variance


@njit
def _tail_end(middle: float, end: float, atoms: _Atoms, m: int) -> float:
    """Bisect from `middle`, where N is about m, towards `end` until a tail of N is nothing."""
    inside = middle
    while abs(inside - end) > 0.05:
        log_t = 0.5 * (inside + end)
        # integrals over late times count their length too
        tiny = _LOG_TINY - max(log_t - middle, 0.0)
        if _saddle(log_t, atoms, m)[1] < tiny:
            end = log_t
        else:
            inside = log_t
    return end


@njit
def _time_panels(atoms: _Atoms, m: int) -> FloatArray:
    """Return edges in log t of panels on which polynomials follow the distribution of N(t).

    Before the first edge fewer than m of the clocks have rung, after the last one more than m.
    """
    # so early that none of them has rung, so late that all have
    first = -atoms.log_rates.max() - math.log(atoms.counts.sum()) + 3.0 * _LOG_TINY
    last = -atoms.log_rates.min() + 8.0
    low = first
    high = last
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if _pace(middle, atoms)[0] < m:
            low = middle
        else:
            high = middle
    last = _tail_end(low, last, atoms, m)
    edges = [_tail_end(low, first, atoms, m)]
    while edges[-1] < last:
        step = _PANEL_LOG_TIME / _pace(edges[-1], atoms)[1]
        # the pace may quicken ahead
        step = min(step, _PANEL_LOG_TIME / _pace(edges[-1] + step, atoms)[1])
        edges.append(edges[-1] + step)
    return np.array(edges)


@njit
def _contours(
    log_t: FloatArray, atoms: _Atoms, m: int, shift: int, z: ComplexArray, values: ComplexArray
) -> None:
    """Lay a circle for each time and evaluate the generating function of P(N <= m - 1) on it.

    Times are `log_t` (K,). Besides the clock of `_first_rings`, so many as `shift` will be left
    out that have rung. Written are the `_CIRCLE_POINTS` points of each upper half circle, `z`
    (K, P), of modulus below 1 where N is more likely above m than below, and their terms, `values`
    (K, P), which are 0 from where they no longer matter.
    """
    log_rates, counts = atoms
    for k in range(len(log_t)):
        # the half keeps the circle near the saddle point both with a clock and without it
        x, _, variance = _saddle(log_t[k], atoms, m + shift - 0.5)
        # the sum over N has a pole at 1: fewer points do at a distance, at the cost of one digit
        distance = max(abs(x), 2.4 / math.sqrt(variance + 2.0))
        z[k, 0] = math.exp(x)
        if x < 1.0 - _FARTHEST_LOG_POINT:  # the probability is nothing
            continue
        x = math.copysign(distance, x)
        points = int(8.0 * math.sqrt(variance) + 12.0 - _LOG_TINY / distance) | 1  # odd: never -1
        for i in range(min(points // 2 + 1, _CIRCLE_POINTS)):
            angle = 2.0 * math.pi * i / points
            z[k, i] = complex(math.exp(x) * math.cos(angle), math.exp(x) * math.sin(angle))
            # of z^-(m-1) G(z), as logarithms
            size = -(m - 1) * x
            phase = -(m - 1) * angle
            for a in range(len(counts)):
                _, silent, rung = _clock(log_rates[a], log_t[k])
                log_modulus, argument = _log_factor(silent, rung, z[k, i])
                size += counts[a] * log_modulus
                phase += counts[a] * argument
            size = math.exp(size) * (1.0 if i == 0 else 2.0) / points
            values[k, i] = complex(size * math.cos(phase), size * math.sin(phase)) / (1.0 - z[k, i])
            if abs(values[k, i]) < math.exp(_LOG_TINY) * abs(values[k, 0]):
                break


@njit
def _left_out(
    log_rate: float, log_t: float, z: ComplexArray, values: ComplexArray, out: ComplexArray
) -> int:
    """Leave out a clock: write its circle and terms into `out` (2, P), and return their number.

    `z` and `values` (S, P) are those with no shift and, if any, with a shift of 1.
    """
    _, silent, rung = _clock(log_rate, log_t)
    # has it rung in the distribution tilted by the circle? where that is a toss-up, either circle
    # serves, but the first may have ended
    shift = 1 if 3.0 * rung * abs(z[0, 0]) > silent else 0
    for i in range(_CIRCLE_POINTS):
        out[0, i] = z[shift, i]
        if values[shift, i] == 0.0:
            return i
        out[1, i] = values[shift, i] / (silent + rung * z[shift, i])
    return _CIRCLE_POINTS


@njit
def _first_rings(log_rates: FloatArray, excluded: float, quadrature: _Quadrature) -> FloatArray:
    """Return the probability (I,) that a clock is among the first m of all but the excluded one.

    This is the integral of w exp(-w t) P(N without the two clocks <= m - 1) over t. The clocks have
    `log_rates` (I,), the excluded one the log rate `excluded`, -inf for none.
    """
    start, log_t, weights, z, values = quadrature
    num = len(log_rates)
    out = np.empty(num)
    terms = np.empty((2, _CIRCLE_POINTS), np.complex128)
    silent = np.empty(num)
    rung = np.empty(num)
    density = np.empty(num)
    at_most = np.empty(num)
    for i in range(num):
        out[i] = _clock(log_rates[i], start)[2]  # before, all that ring are among the first
    for k in range(len(log_t)):
        used = _left_out(excluded, log_t[k], z[:, k], values[:, k], terms)
        # inside the unit circle the sum is P(N <= m - 1), outside it is that minus 1, by the pole
        late = abs(terms[0, 0]) < 1.0
        for i in range(num):
            age, silent[i], rung[i] = _clock(log_rates[i], log_t[k])
            density[i] = weights[k] * age * silent[i]
            at_most[i] = 0.0 if late else 1.0
        for j in range(used):
            x = terms[0, j].real
            y = terms[0, j].imag
            a = terms[1, j].real
            b = terms[1, j].imag
            for i in range(num):  # the innermost loop, for it runs in vectors
                real = silent[i] + rung[i] * x
                imag = rung[i] * y
                at_most[i] += (a * real + b * imag) / (real * real + imag * imag)
        for i in range(num):
            out[i] += density[i] * at_most[i]
    for i in range(num):
        out[i] = min(out[i], 1.0)
    return out
